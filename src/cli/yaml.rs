//! YAML for people and for kubectl: read and written so that YAML 1.1, which Kubernetes' tools speak, and YAML 1.2, which
//! Envoy does, mean the same by it.
//!
//! A crate's writer knows only one of the two: `on` without quotes is a text to 1.2 and a boolean to 1.1.

use std::fmt::Write as _;
use std::rc::Rc;

use serde_json::{Map, Number, Value};

use crate::rules::problem::{Problems, Strictness};
use crate::rules::scalar::{Meaning, Scalar};
use crate::rules::yaml::{NodeKind, YamlNode, documents};

/// Keys that stand first in a map, because readers look for them.
const FIRST: [&str; 4] = ["apiVersion", "kind", "metadata", "name"];

/// A value as a block of YAML.
pub(crate) fn yaml(value: &Value) -> String {
    lines(value).into_iter().map(|line| line + "\n").collect()
}

fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
            fields.into_iter().flat_map(|(key, value)| field(key, value)).collect()
        }
        Value::Array(list) if !list.is_empty() => list.iter().flat_map(|value| dashed(lines(value))).collect(),
        Value::Object(_) => vec!["{}".to_owned()],
        Value::Array(_) => vec!["[]".to_owned()],
        Value::String(text) => vec![quoted(text)],
        other => vec![other.to_string()],
    }
}

fn field(key: &str, value: &Value) -> Vec<String> {
    let (key, below) = (quoted(key), lines(value));
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            std::iter::once(format!("{key}:")).chain(below.into_iter().map(|line| format!("  {line}"))).collect()
        }
        Value::Array(list) if !list.is_empty() => std::iter::once(format!("{key}:")).chain(below).collect(),
        _ => vec![format!("{key}: {}", below.concat())],
    }
}

fn dashed(lines: Vec<String>) -> Vec<String> {
    let dash = |(number, line): (usize, String)| format!("{}{line}", if number == 0 { "- " } else { "  " });
    lines.into_iter().enumerate().map(dash).collect()
}

/// A text on one line, the same text to every reader.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    // A flag of a command needs no quotes either.
    let begins_plainly =
        text.strip_prefix("--").unwrap_or(text).starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_word =
        ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if begins_plainly && !is_word && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut quoted = String::new();
    for c in Value::from(text).to_string().chars() {
        match is_printed(c) {
            true => quoted.push(c),
            false => drop(write!(quoted, "\\u{:04x}", u32::from(c))),
        }
    }
    quoted
}

/// A text as a comment may have it: on one line, whatever is in it.
pub(crate) fn in_comment(text: &str) -> String {
    text.chars().map(|c| if is_printed(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// Whether it is neither a control character nor one that ends a line for some reader. All characters that are not
/// printed are below U+10000, so four digits are enough to escape them.
fn is_printed(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Moves every line to the right.
pub(crate) fn indented(columns: usize, text: &str) -> String {
    let pad = " ".repeat(columns);
    text.split_terminator('\n')
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("{pad}{line}\n") })
        .collect()
}

/// Turns a map into an element of a list.
pub(crate) fn element(map: &str) -> String {
    indented(2, map).replacen("  ", "- ", 1)
}

/// What a document says to Kubernetes' tools.
#[derive(Debug, PartialEq)]
pub(crate) struct Read {
    /// Null where there is no document.
    pub value: Value,
    /// Some of it is merged from elsewhere (`<<`), so that an addition in one place may hide what another one brings.
    pub is_merged: bool,
}

/// Reads one document, or says what is wrong with it in which of its lines.
pub(crate) fn read(text: &str) -> Result<Read, (usize, String)> {
    let mut problems = Problems::new(Strictness::Lenient);
    let read = documents(&"document".into(), text, &mut problems);
    if let Some(problem) = problems.into_sorted().first() {
        let message = problem.message.rsplit("yaml: ").next().unwrap_or_default();
        return Err((problem.place.position.line, message.to_owned()));
    }
    let mut is_merged = false;
    match read.as_slice() {
        [] => Ok(Read { value: Value::Null, is_merged }),
        [document] => Ok(Read { value: value(document, &mut is_merged), is_merged }),
        [_, second, ..] => Err((second.at.line, "another document begins here without ---".to_owned())),
    }
}

fn value(node: &YamlNode, is_merged: &mut bool) -> Value {
    match &node.kind {
        NodeKind::Scalar(scalar) => of_scalar(scalar),
        NodeKind::List(list) => list.iter().map(|node| value(node, is_merged)).collect(),
        NodeKind::Map(pairs) => {
            let mut fields = Map::new();
            let mut merged = Vec::new();
            for (key, node) in pairs {
                let Some(name) = key.as_scalar() else { continue };
                match name.plain && name.text == "<<" {
                    true => merged.extend(maps(node)),
                    false => drop(fields.insert(name.text.clone(), value(node, is_merged))),
                }
            }
            for map in merged {
                *is_merged = true;
                if let Value::Object(more) = value(&map, is_merged) {
                    for (key, value) in more {
                        fields.entry(key).or_insert(value);
                    }
                }
            }
            Value::Object(fields)
        }
    }
}

fn maps(node: &Rc<YamlNode>) -> Vec<Rc<YamlNode>> {
    match &node.kind {
        NodeKind::List(list) => list.clone(),
        _ => vec![node.clone()],
    }
}

fn of_scalar(scalar: &Scalar) -> Value {
    if let Some(is_on) = scalar.legacy_bool() {
        return Value::Bool(is_on);
    }
    let text = || Value::from(scalar.text.as_str());
    match scalar.meaning() {
        Meaning::Null => Value::Null,
        Meaning::Bool(is_true) => Value::Bool(is_true),
        Meaning::Int(number) => {
            let number = i64::try_from(number).map(Number::from).or_else(|_| u64::try_from(number).map(Number::from));
            number.map_or_else(|_| text(), Value::Number)
        }
        Meaning::LeadingZero => {
            i64::from_str_radix(&scalar.text.replace('_', ""), 8).map_or_else(|_| text(), Value::from)
        }
        Meaning::Float(number) => Number::from_f64(number).map_or_else(text, Value::Number),
        Meaning::Text => text(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_text_is_read_back_as_it_was_by_both_kinds_of_readers() {
        for text in [
            "edge",
            "tidegate.svc",
            "no",
            "Null",
            "1",
            "1e3",
            "",
            "a: b",
            "#x",
            "\"",
            "a\nb",
            "ä",
            "::1",
            "-",
            "on",
            "Y",
            "0644",
            "1_000",
            "=",
            "\u{2028}",
            "\u{85}",
            "\u{1b}[31m",
            "\u{feff}",
            "%",
            "{{",
            "*",
            "&a",
            "!t",
            "🦀",
            "~",
        ] {
            let value = json!({"a": [{"b": text}, text], text: text});
            let written = yaml(&value);
            assert_eq!(read(&written), Ok(Read { value: value.clone(), is_merged: false }), "{written}");
            assert_eq!(serde_yaml::from_str::<Value>(&written).expect("it is YAML"), value, "{written}");
        }
        assert_eq!((quoted("edge"), quoted("on")), ("edge".to_owned(), "\"on\"".to_owned()));
    }

    #[test]
    fn a_value_is_written_as_people_would() {
        let value = json!({"spec": {"list": [{"z": 1, "name": "x"}, [], {}, [[1, 2]]], "empty": {}}, "kind": "Pod"});
        let written =
            "kind: Pod\nspec:\n  empty: {}\n  list:\n  - name: x\n    z: 1\n  - []\n  - {}\n  - - - 1\n      - 2\n";
        assert_eq!(yaml(&value), written);
    }

    #[test]
    fn documents_are_read_as_kubernetes_does() {
        let text = "a: yes\nb: 0644\nc: '0644'\nd: 1_000\ne: \"on\"\nf: 1.5\ng: ~\n";
        let value = json!({"a": true, "b": 420, "c": "0644", "d": 1000, "e": "on", "f": 1.5, "g": null});
        assert_eq!(read(text), Ok(Read { value, is_merged: false }));
        let merged = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nboth:\n  <<: [*b, {z: 4, x: 5}]\n";
        let value = json!({"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}, "both": {"x": 1, "y": 2, "z": 4}});
        assert_eq!(read(merged), Ok(Read { value, is_merged: true }));
        assert_eq!(read("# nothing\n"), Ok(Read { value: Value::Null, is_merged: false }));
        assert_eq!(read("a: [\n").map_err(|(line, _)| line), Err(1));
    }

    #[test]
    fn a_comment_stays_one_line() {
        assert_eq!(in_comment("a\n- b\u{2028}\r"), "a\\n- b\\u{2028}\\r");
    }

    #[test]
    fn lines_are_moved_and_empty_ones_stay_empty() {
        assert_eq!(indented(2, "a:\n\n- b\n"), "  a:\n\n  - b\n");
        assert_eq!(element("a: 1\nb:\n  c: 2\n"), "- a: 1\n  b:\n    c: 2\n");
    }
}
