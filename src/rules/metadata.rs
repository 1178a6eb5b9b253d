//! The `metadata` of a rule: any YAML map that can be said in JSON, handed back with the requests that the rule lets pass.

use serde_json::{Map, Number, Value};

use crate::rules::fields::{ProblemSink, is_merge_key};
use crate::rules::scalar::{Meaning, Scalar};
use crate::rules::yaml::{NodeKind, YamlNode};

/// Reads the map under `metadata`. Its keys are the operator's own and are not checked.
pub(crate) fn read(node: &YamlNode, report: &mut ProblemSink<'_>) -> Option<Map<String, Value>> {
    let NodeKind::Map(pairs) = &node.kind else {
        report.error(
            node.at,
            format!("error parsing metadata: it is {}, not a map", node.describe()),
            "write metadata as key: value pairs",
        );
        return None;
    };
    let mut fields = Map::new();
    for (key, value) in pairs.iter().filter(|(key, _)| !is_merge_key(key)) {
        let name = match key.as_scalar() {
            Some(scalar) if scalar.meaning() == Meaning::Text => {
                warn_of_legacy_bool(scalar, key, report);
                scalar.text.clone()
            }
            _ => {
                report.error(
                    key.at,
                    format!("error parsing metadata: the key {} is not a string", key.describe()),
                    "put the key in quotes",
                );
                continue;
            }
        };
        if fields.contains_key(&name) {
            report.tolerable(key.at, format!("the key '{name}' is there twice"), "keep one of the two");
        }
        if let Some(value) = value_of(value, report) {
            fields.insert(name, value);
        }
    }
    for (_, merged) in pairs.iter().filter(|(key, _)| is_merge_key(key)) {
        let sources = match &merged.kind {
            NodeKind::List(items) => items.iter().collect(),
            NodeKind::Map(_) | NodeKind::Scalar(_) => vec![merged],
        };
        for (name, value) in sources.into_iter().filter_map(|source| read(source, report)).flatten() {
            fields.entry(name).or_insert(value);
        }
    }
    Some(fields)
}

fn value_of(node: &YamlNode, report: &mut ProblemSink<'_>) -> Option<Value> {
    Some(match &node.kind {
        NodeKind::Map(_) => Value::Object(read(node, report)?),
        NodeKind::List(items) => Value::Array(items.iter().filter_map(|item| value_of(item, report)).collect()),
        NodeKind::Scalar(scalar) => match scalar.meaning() {
            Meaning::Null => Value::Null,
            Meaning::Bool(value) => Value::Bool(value),
            Meaning::Int(value) => Number::from_f64(value as f64).into(),
            Meaning::Float(value) if value.is_finite() => Number::from_f64(value).into(),
            Meaning::Float(_) | Meaning::LeadingZero | Meaning::Text => {
                warn_of_legacy_bool(scalar, node, report);
                Value::String(scalar.text.clone())
            }
        },
    })
}

fn warn_of_legacy_bool(scalar: &Scalar, node: &YamlNode, report: &mut ProblemSink<'_>) {
    if let Some(value) = scalar.legacy_bool() {
        report.warning(
            node.at,
            format!("'{}' is a string here; envoyproxy/ratelimit reads it as {value}", scalar.text),
            format!("write {value}, or put '{}' in quotes", scalar.text),
        );
    }
}
