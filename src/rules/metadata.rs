//! The `metadata` of a rule, as the protobuf struct that goes into dynamic metadata.

use prost_types::value::Kind as Wire;
use prost_types::{ListValue, Struct, Value};

use crate::rules::fields::Report;
use crate::rules::yaml::{Kind, Meaning, Node, Scalar};

/// Reads the map under `metadata`. Its keys are the operator's own and are not checked.
pub fn read(node: &Node, report: &mut Report<'_>) -> Option<Struct> {
    let Kind::Map(pairs) = &node.kind else {
        report.error(
            node.at,
            format!("error parsing metadata: it is {}, not a map", node.describe()),
            "write metadata as key: value pairs",
        );
        return None;
    };
    let mut fields = std::collections::BTreeMap::new();
    for (key, value) in pairs {
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
        if let Some(value) = value_of(value, report) {
            fields.insert(name, value);
        }
    }
    Some(Struct { fields })
}

fn value_of(node: &Node, report: &mut Report<'_>) -> Option<Value> {
    let kind = match &node.kind {
        Kind::Map(_) => Wire::StructValue(read(node, report)?),
        Kind::List(items) => {
            Wire::ListValue(ListValue { values: items.iter().filter_map(|item| value_of(item, report)).collect() })
        }
        Kind::Scalar(scalar) => match scalar.meaning() {
            Meaning::Null => Wire::NullValue(0),
            Meaning::Bool(value) => Wire::BoolValue(value),
            Meaning::Int(value) => Wire::NumberValue(value as f64),
            Meaning::Float(value) if value.is_finite() => Wire::NumberValue(value),
            Meaning::Float(_) | Meaning::LeadingZero | Meaning::Text => {
                warn_of_legacy_bool(scalar, node, report);
                Wire::StringValue(scalar.text.clone())
            }
        },
    };
    Some(Value { kind: Some(kind) })
}

fn warn_of_legacy_bool(scalar: &Scalar, node: &Node, report: &mut Report<'_>) {
    if let Some(value) = scalar.legacy_bool() {
        report.warning(
            node.at,
            format!("'{}' is a string here; envoyproxy/ratelimit reads it as {value}", scalar.text),
            format!("write {value}, or put '{}' in quotes", scalar.text),
        );
    }
}
