//! Explains a decision in `dynamic_metadata`: with the fields of envoyproxy/ratelimit, and under `tidegate` with the rule that
//! settled it and why.

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::google::protobuf::{ListValue, Struct, Value, value::Kind};

use crate::engine::{Decision, StatusKind};
use crate::request::Request;
use crate::rules::Ruleset;
use crate::rules::policy::{Scope, Word};

/// Stands for the value of a key that a rule marks as sensitive.
const HIDDEN: &str = "<sensitive>";

/// The metadata of one answer.
pub(crate) fn dynamic_metadata(
    message: &RateLimitRequest,
    request: &Request<'_>,
    decision: &Decision<'_>,
    ruleset: &Ruleset,
    is_cut_off: bool,
) -> Struct {
    let mut fields = Struct::default();
    let mut set = |name: &str, value: Value| fields.fields.insert(name.to_owned(), value);
    set("domain", string(request.domain()));
    let domain = ruleset.domain(request.domain());
    let is_hidden = |key: &str| domain.is_some_and(|domain| domain.tree().sensitive_keys.contains_key(key));
    set("descriptors", list(message.descriptors.iter().map(|wire| describe(wire, is_hidden)).collect()));
    if message.hits_addend != 0 {
        set("hitsAddend", number(f64::from(message.hits_addend)));
    }
    let metadata = rules_metadata(decision);
    if !metadata.is_empty() {
        set("metadata", structure(&metadata));
    }
    set("tidegate", account(decision, is_cut_off));
    fields
}

fn describe(wire: &RateLimitDescriptor, is_hidden: impl Fn(&str) -> bool) -> Value {
    let entries = wire
        .entries
        .iter()
        .map(|entry| string(format!("{}={}", entry.key, if is_hidden(&entry.key) { HIDDEN } else { &entry.value })));
    let mut fields = Struct::default();
    fields.fields.insert("entries".into(), list(entries.collect()));
    if let Some(limit) = &wire.limit {
        // The answer's units have all the names; the request's own enum lacks the week.
        let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).as_str_name();
        let text = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit);
        fields.fields.insert("limit".into(), string(text));
    }
    if let Some(hits) = &wire.hits_addend {
        fields.fields.insert("hitsAddend".into(), number(hits.value as f64));
    }
    Value { kind: Some(Kind::StructValue(fields)) }
}

/// The metadata of all rules that let their descriptor pass. The first value of a name wins, except that maps are joined.
fn rules_metadata(decision: &Decision<'_>) -> serde_json::Map<String, serde_json::Value> {
    let mut joined = serde_json::Map::new();
    for status in decision.statuses.iter().filter(|status| !status.is_over) {
        let is_by_rule = matches!(&status.kind, StatusKind::Limited(limited) if limited.limit.is_some());
        if let Some(metadata) = status.rule.filter(|_| is_by_rule).and_then(|rule| rule.metadata.as_ref()) {
            join(&mut joined, metadata);
        }
    }
    joined
}

fn join(into: &mut serde_json::Map<String, serde_json::Value>, from: &serde_json::Map<String, serde_json::Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => {
                into.insert(name.clone(), value.clone());
            }
            (Some(serde_json::Value::Object(into)), serde_json::Value::Object(from)) => join(into, from),
            (Some(_), _) => {}
        }
    }
}

/// Which rule settled the answer, and why.
fn account(decision: &Decision<'_>, is_cut_off: bool) -> Value {
    let unlimited = || decision.statuses.iter().find(|status| matches!(status.kind, StatusKind::Unlimited));
    let decisive = decision.decisive().or_else(unlimited);
    let mut fields = Struct::default();
    let mut set = |name: &str, value: Value| fields.fields.insert(name.to_owned(), value);
    set("reason", string(decision.reason().word()));
    if let Some(status) = decisive {
        set("rule", string(status.rule.map_or(crate::rules::OVERRIDE_RULE_ID, |rule| &*rule.id)));
        let (scope, layer, by) = match &status.kind {
            StatusKind::Limited(limited) => {
                (limited.scope, limited.layer(is_cut_off), limited.decided_by().word_for_clients())
            }
            StatusKind::Unmatched | StatusKind::Unlimited => (Scope::Local, Scope::Local, "memory"),
        };
        set("scope", string(scope.word()));
        set("layer", string(layer.word()));
        set("by", string(by));
        if let StatusKind::Limited(limited) = &status.kind {
            set("reset_ms", number(limited.verdict.reset_ms as f64));
        }
    }
    if let Some(wait_ms) = decision.retry_after_ms() {
        set("retry_after_ms", number(wait_ms as f64));
    }
    Value { kind: Some(Kind::StructValue(fields)) }
}

fn string(text: impl Into<String>) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn number(value: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(value)) }
}

fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values })) }
}

fn structure(map: &serde_json::Map<String, serde_json::Value>) -> Value {
    let fields = map.iter().map(|(name, value)| (name.clone(), from_json(value))).collect();
    Value { kind: Some(Kind::StructValue(Struct { fields })) }
}

fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value { kind: Some(Kind::NullValue(0)) },
        serde_json::Value::Bool(value) => Value { kind: Some(Kind::BoolValue(*value)) },
        serde_json::Value::Number(value) => number(value.as_f64().unwrap_or_default()),
        serde_json::Value::String(value) => string(value.as_str()),
        serde_json::Value::Array(values) => list(values.iter().map(from_json).collect()),
        serde_json::Value::Object(map) => structure(map),
    }
}
