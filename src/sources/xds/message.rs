//! A server's message as a rule file would say it.
//!
//! JSON is YAML, so the text is read as every rule file is, and an error names the resource, the line of the text and
//! what to write instead.

use crate::proto::google::protobuf::value::Kind;
use crate::proto::google::protobuf::{Struct, Value as ProtoValue};
use crate::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use serde_json::{Map, Value, json};

use crate::rules::RuleText;

/// How deep descriptors are followed, and structures in metadata. Deeper ones are left out; rule files refuse
/// descriptors this deep.
const DEPTH_MAX: usize = 64;

/// The rule file that a message stands for. Its name plays the role of the file's.
pub(crate) fn source(config: &RateLimitConfig) -> RuleText {
    let descriptors: Vec<Value> = config.descriptors.iter().map(|descriptor| written(descriptor, DEPTH_MAX)).collect();
    let file = json!({"domain": config.domain, "descriptors": descriptors});
    let name = if config.name.is_empty() { &config.domain } else { &config.name };
    RuleText { name: format!("xds:{name}").into(), text: format!("{file:#}") }
}

/// Writes only what is set: the defaults are those of rule files.
fn written(descriptor: &RateLimitDescriptor, depth: usize) -> Value {
    let RateLimitDescriptor { key, value, rate_limit, descriptors, shadow_mode, detailed_metric, quota_mode, metadata } =
        descriptor;
    let mut map = Map::new();
    map.insert("key".into(), json!(key));
    if !value.is_empty() {
        map.insert("value".into(), json!(value));
    }
    if let Some(policy) = rate_limit {
        map.insert("rate_limit".into(), limit(policy));
    }
    for (name, is_set) in
        [("shadow_mode", shadow_mode), ("detailed_metric", detailed_metric), ("quota_mode", quota_mode)]
    {
        if *is_set {
            map.insert(name.into(), json!(true));
        }
    }
    if let Some(metadata) = metadata {
        map.insert("metadata".into(), structure(metadata, DEPTH_MAX));
    }
    if !descriptors.is_empty() && depth > 0 {
        let below: Vec<Value> = descriptors.iter().map(|below| written(below, depth - 1)).collect();
        map.insert("descriptors".into(), json!(below));
    }
    Value::Object(map)
}

fn limit(policy: &RateLimitPolicy) -> Value {
    let RateLimitPolicy { unit, requests_per_unit, unlimited, name, replaces } = policy;
    let mut map = Map::new();
    if *unlimited {
        // A number beside it does nothing, and a message always has one.
        map.insert("unlimited".into(), json!(true));
    } else {
        map.insert("requests_per_unit".into(), json!(requests_per_unit));
        let unit = RateLimitUnit::try_from(*unit)
            .map_or_else(|_| unit.to_string(), |unit| unit.as_str_name().to_ascii_lowercase());
        map.insert("unit".into(), json!(unit));
    }
    if !name.is_empty() {
        map.insert("name".into(), json!(name));
    }
    if !replaces.is_empty() {
        let names: Vec<Value> = replaces.iter().map(|replaced| json!({"name": replaced.name})).collect();
        map.insert("replaces".into(), json!(names));
    }
    Value::Object(map)
}

fn structure(structure: &Struct, depth: usize) -> Value {
    let fields = structure.fields.iter().map(|(name, field)| (name.clone(), plain(field, depth)));
    Value::Object(fields.collect())
}

fn plain(value: &ProtoValue, depth: usize) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(is_true)) => json!(is_true),
        Some(Kind::StructValue(_) | Kind::ListValue(_)) if depth == 0 => Value::Null,
        Some(Kind::StructValue(below)) => structure(below, depth - 1),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(|value| plain(value, depth - 1)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ratelimit::config::ratelimit::v3::RateLimitReplace;
    use crate::rules::{Options, Ruleset};

    fn policy(unit: RateLimitUnit, requests_per_unit: u32) -> Option<RateLimitPolicy> {
        Some(RateLimitPolicy { unit: unit.into(), requests_per_unit, ..RateLimitPolicy::default() })
    }

    fn config(descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
        RateLimitConfig { name: "route/a".into(), domain: "edge".into(), descriptors }
    }

    fn descriptor(key: &str, rate_limit: Option<RateLimitPolicy>) -> RateLimitDescriptor {
        RateLimitDescriptor { key: key.into(), rate_limit, ..RateLimitDescriptor::default() }
    }

    #[test]
    fn a_message_is_read_like_a_file() {
        let below = RateLimitDescriptor {
            value: "POST".into(),
            shadow_mode: true,
            ..descriptor("method", policy(RateLimitUnit::Minute, 5))
        };
        let unlimited = RateLimitPolicy {
            unlimited: true,
            requests_per_unit: 7,
            replaces: vec![RateLimitReplace { name: "all".into() }],
            ..RateLimitPolicy::default()
        };
        let named = RateLimitPolicy { name: "all".into(), ..policy(RateLimitUnit::Week, 100).unwrap() };
        let source = source(&config(vec![
            RateLimitDescriptor { descriptors: vec![below], ..descriptor("path", policy(RateLimitUnit::Second, 1)) },
            descriptor("vip", Some(unlimited)),
            descriptor("any", Some(named)),
        ]));
        assert_eq!(&*source.name, "xds:route/a");
        let loaded = Ruleset::load(&[source], &Options::default());
        let ruleset = loaded.ruleset.unwrap_or_else(|| panic!("{:?}", loaded.problems));
        let rules: Vec<String> = ruleset.domain("edge").unwrap().rules().map(|rule| rule.id.to_string()).collect();
        assert_eq!(rules, ["path", "path/method=POST", "vip", "any"]);
    }

    #[test]
    fn a_bad_message_names_the_resource() {
        for bad in [
            descriptor("", policy(RateLimitUnit::Second, 1)),
            descriptor("k", policy(RateLimitUnit::Unknown, 1)),
            descriptor("k", Some(RateLimitPolicy { unit: 99, ..RateLimitPolicy::default() })),
        ] {
            let loaded = Ruleset::load(&[source(&config(vec![bad]))], &Options::default());
            assert!(loaded.ruleset.is_none());
            assert!(loaded.problems[0].place.to_string().starts_with("xds:route/a:"), "{:?}", loaded.problems);
        }
    }

    #[test]
    fn values_with_any_characters_arrive_as_they_are() {
        for value in ["\"", "a: b", "* #", "\n\t\u{1}", "é\u{2028}", "{[&*!|>'%@`"] {
            let asked =
                RateLimitDescriptor { value: value.into(), ..descriptor("k", policy(RateLimitUnit::Second, 1)) };
            let loaded = Ruleset::load(&[source(&config(vec![asked]))], &Options::default());
            let ruleset = loaded.ruleset.unwrap_or_else(|| panic!("{value:?}: {:?}", loaded.problems));
            let id = ruleset.domain("edge").unwrap().rules().next().unwrap().id.to_string();
            assert_eq!(id, format!("k={value}"));
        }
    }
}
