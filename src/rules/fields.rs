//! The fields of one YAML map, read by name and type.
//!
//! Every getter reports what is wrong where it stands and goes on with the default, so that one load shows all errors.

use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use crate::rules::policy::Word;
use crate::rules::problem::{Position, Problems};
use crate::rules::scalar::{Meaning, Scalar, excerpt};
use crate::rules::yaml::{NodeKind, YamlNode};

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Located<T> {
    /// As read, converted to its type.
    pub value: T,
    /// The value's first character in the file, where problems with it are reported.
    pub at: Position,
}

/// Where problems go: the file being read and what has been found so far.
pub(crate) struct ProblemSink<'p> {
    file: &'p Arc<str>,
    problems: &'p mut Problems,
    /// What reported unknown keys were probably meant to be, by their place and the kind of map that was expected
    /// there. Aliases bring the same key again and again; it is reported once.
    unknown: HashMap<(Position, &'static str), Option<&'static str>>,
}

impl<'p> ProblemSink<'p> {
    pub(crate) fn new(file: &'p Arc<str>, problems: &'p mut Problems) -> ProblemSink<'p> {
        ProblemSink { file, problems, unknown: HashMap::new() }
    }

    pub(crate) fn file(&self) -> &'p Arc<str> {
        self.file
    }

    pub(crate) fn error(&mut self, at: Position, message: impl Into<String>, help: impl Into<String>) {
        self.problems.error(self.file, at, message, help);
    }

    pub(crate) fn warning(&mut self, at: Position, message: impl Into<String>, help: impl Into<String>) {
        self.problems.warning(self.file, at, message, help);
    }

    pub(crate) fn tolerable(&mut self, at: Position, message: impl Into<String>, help: impl Into<String>) {
        self.problems.tolerable(self.file, at, message, help);
    }
}

/// One of the four kinds of map in a rule file, and the keys that belong there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapShape {
    /// With its article, as messages call it.
    pub name: &'static str,
    /// All keys that may stand in it. Help names the first two as examples.
    pub keys: &'static [&'static str],
}

pub(crate) const ROOT: MapShape = MapShape { name: "a document", keys: &["domain", "descriptors"] };
pub(crate) const DESCRIPTOR: MapShape = MapShape {
    name: "a descriptor",
    keys: &[
        "key",
        "value",
        "rate_limit",
        "rate_limits",
        "descriptors",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "sensitive",
        "metadata",
    ],
};
pub(crate) const LIMIT: MapShape = MapShape {
    name: "a rate limit",
    keys: &[
        "requests_per_unit",
        "unit",
        "window",
        "unlimited",
        "name",
        "replaces",
        "algorithm",
        "burst",
        "scope",
        "slack",
        "on_outage",
        "class",
        "charge",
    ],
};
pub(crate) const REPLACES: MapShape = MapShape { name: "a replaces entry", keys: &["name"] };

/// The keys that envoyproxy/ratelimit knows. It looks for all of them at every level.
const REFERENCE_KEYS: &[&str] = &[
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

struct FieldValue {
    key: String,
    key_at: Position,
    node: Rc<YamlNode>,
}

/// The fields of one map.
pub(crate) struct MapFields {
    /// Where the map starts. Problems with a missing field are reported here.
    pub at: Position,
    fields: Vec<FieldValue>,
    /// Known keys that a misspelt key was probably meant to be. They are not reported as missing too.
    meant: Vec<&'static str>,
}

/// A plain `<<`. In quotes it is a key like any other.
pub(crate) fn is_merge_key(key: &YamlNode) -> bool {
    matches!(&key.kind, NodeKind::Scalar(scalar) if scalar.plain && scalar.text == "<<")
}

impl MapFields {
    /// Reads a map: merges `<<`, reports keys that are unknown, misplaced or there twice. `None` if it is no map.
    pub(crate) fn read(node: &YamlNode, shape: MapShape, report: &mut ProblemSink<'_>) -> Option<MapFields> {
        let NodeKind::Map(pairs) = &node.kind else {
            report.error(
                node.at,
                format!("config error, yaml file contains {} where {} is expected", node.describe(), shape.name),
                match shape {
                    LIMIT if matches!(node.kind, NodeKind::List(_)) => {
                        "for several limits, write rate_limits".to_owned()
                    }
                    _ => {
                        format!("write a map with keys such as {}", list(&shape.keys[..2.min(shape.keys.len())], "and"))
                    }
                },
            );
            return None;
        };
        let mut fields = MapFields { at: node.at, fields: Vec::with_capacity(pairs.len()), meant: Vec::new() };
        for (key, value) in pairs {
            if is_merge_key(key) {
                continue;
            }
            let Some(text) = string_key(key, report) else { continue };
            if let Some(index) = fields.fields.iter().position(|field| field.key == text) {
                let first = fields.fields[index].key_at;
                report.tolerable(
                    key.at,
                    format!("the key '{}' is there twice, first at line {}", excerpt(text), first.line),
                    "keep one of the two",
                );
                fields.fields[index].node = value.clone();
                continue;
            }
            if fields.belongs(text, key.at, shape, report) {
                fields.fields.push(FieldValue { key: text.to_owned(), key_at: key.at, node: value.clone() });
            }
        }
        for (key, value) in pairs {
            if is_merge_key(key) {
                fields.merge(value, shape, report);
            }
        }
        Some(fields)
    }

    /// `<<: *anchor`: takes from there what is not given here.
    fn merge(&mut self, node: &YamlNode, shape: MapShape, report: &mut ProblemSink<'_>) {
        let sources: Vec<&YamlNode> = match &node.kind {
            NodeKind::Map(_) => vec![node],
            NodeKind::List(items) => items.iter().map(Rc::as_ref).collect(),
            NodeKind::Scalar(_) => {
                report.error(node.at, "'<<' merges maps only", "write <<: *anchor, where the anchor is on a map");
                return;
            }
        };
        for source in sources {
            let Some(merged) = MapFields::read(source, shape, report) else { continue };
            self.meant.extend(merged.meant);
            for field in merged.fields {
                if !self.fields.iter().any(|own| own.key == field.key) {
                    self.fields.push(field);
                }
            }
        }
    }

    fn belongs(&mut self, key: &str, at: Position, shape: MapShape, report: &mut ProblemSink<'_>) -> bool {
        if shape.keys.contains(&key) {
            return true;
        }
        // Descriptors first: most keys that are misplaced in a limit belong there.
        let home = [DESCRIPTOR, ROOT, LIMIT].into_iter().find(|other| other.keys.contains(&key));
        if let Some(home) = home {
            let message = format!("the key '{key}' belongs into {}, not into {}", home.name, shape.name);
            let help = match home {
                LIMIT => format!("move '{key}' under rate_limit"),
                DESCRIPTOR if shape == LIMIT => format!("move '{key}' out of the rate limit, beside rate_limit"),
                _ => format!("move '{key}' to {}", home.name),
            };
            if REFERENCE_KEYS.contains(&key) {
                report.tolerable(at, message, help);
            } else {
                report.error(at, message, help);
            }
            return false;
        }
        let meant = report.unknown.get(&(at, shape.name)).copied();
        self.meant.extend(meant.unwrap_or_else(|| report_unknown(key, at, shape, report)));
        false
    }

    /// Whether a key is there, or another one that was probably meant to be it.
    pub(crate) fn mentions(&self, key: &str) -> bool {
        self.get(key).is_some() || self.is_misspelt(key)
    }

    /// Whether an unknown key was probably meant to be this one.
    pub(crate) fn is_misspelt(&self, key: &str) -> bool {
        self.meant.contains(&key)
    }

    /// Whether a key is there but can't be read, or is misspelt. Either has been reported already.
    pub(crate) fn is_spoilt<T>(&self, key: &str, read: Option<&T>) -> bool {
        read.is_none() && (self.node(key).is_some() || self.is_misspelt(key))
    }

    fn get(&self, key: &str) -> Option<&FieldValue> {
        self.fields.iter().find(|field| field.key == key)
    }

    /// The node of a field that is there and not null.
    pub(crate) fn node(&self, key: &str) -> Option<&Rc<YamlNode>> {
        self.get(key).map(|field| &field.node).filter(|node| !node.is_null())
    }

    /// Where the key of a field stands.
    pub(crate) fn key_at(&self, key: &str) -> Option<Position> {
        self.get(key).map(|field| field.key_at)
    }

    /// A string; numbers and booleans count as their text. Null is the same as absent.
    pub(crate) fn string(&self, key: &str, report: &mut ProblemSink<'_>) -> Option<Located<String>> {
        let node = self.node(key)?;
        let Some(scalar) = node.as_scalar() else {
            report.error(node.at, format!("{key} is {}, not a string", node.describe()), format!("write {key}: \"…\""));
            return None;
        };
        if let Meaning::Float(_) = scalar.meaning() {
            // The value is not quoted: whether it is sensitive is known only when all descriptors of its domain have
            // been read.
            let (number, quoted) = match key {
                "value" => ("a floating-point number".to_owned(), "…".to_owned()),
                _ => (format!("the number {}", excerpt(&scalar.text)), excerpt(&scalar.text)),
            };
            report.error(
                node.at,
                format!("error checking config: {key} is {number}, not a string"),
                format!("put it in quotes: {key}: \"{quoted}\""),
            );
            return None;
        }
        Some(Located { value: scalar.text.clone(), at: node.at })
    }

    /// One of few words. A map, a list or a floating-point number is reported, with the choices as help; any other text
    /// is for the caller to check.
    pub(crate) fn choice(&self, key: &str, help: &str, report: &mut ProblemSink<'_>) -> Option<Located<String>> {
        let node = self.node(key)?;
        match node.as_scalar() {
            Some(scalar) if !matches!(scalar.meaning(), Meaning::Float(_)) => {
                Some(Located { value: scalar.text.clone(), at: node.at })
            }
            _ => {
                report.error(node.at, format!("{key} is {}", node.describe()), help);
                None
            }
        }
    }

    /// A boolean, in the words of YAML 1.2 and 1.1. Absent is false.
    pub(crate) fn boolean(&self, key: &str, report: &mut ProblemSink<'_>) -> bool {
        self.boolean_or_spoilt(key, report).unwrap_or(false)
    }

    /// A boolean, or `None` if something else stands there. Absent is false.
    pub(crate) fn boolean_or_spoilt(&self, key: &str, report: &mut ProblemSink<'_>) -> Option<bool> {
        let Some(node) = self.node(key) else { return Some(false) };
        let value = node.as_scalar().and_then(|scalar| match scalar.meaning() {
            Meaning::Bool(value) => Some(value),
            _ => scalar.legacy_bool(),
        });
        if value.is_none() {
            report.error(
                node.at,
                format!("{key} is {}, not a boolean", node.describe()),
                format!("write {key}: true or {key}: false, without quotes"),
            );
        }
        value
    }

    /// A whole number from `min` to `u32::MAX`.
    pub(crate) fn number(&self, key: &str, min: u32, report: &mut ProblemSink<'_>) -> Option<Located<u32>> {
        let node = self.node(key)?;
        let help = format!("write {key}: N with N from {min} to {}, without quotes", u32::MAX);
        let scalar = node.as_scalar();
        let value = match scalar.map(Scalar::meaning) {
            Some(Meaning::Int(value)) => value,
            Some(Meaning::LeadingZero) => {
                let message = format!(
                    "{key} is {}, which is octal to envoyproxy/ratelimit and decimal to others",
                    node.describe()
                );
                let help = "write the number without leading zeros";
                // `089` is not octal either. It is no number to anybody, so this is an error, however lenient.
                let Some(value) = scalar.and_then(Scalar::octal) else {
                    report.error(node.at, message, help);
                    return None;
                };
                report.tolerable(node.at, message, help);
                value
            }
            _ => {
                report.error(node.at, format!("{key} is {}, not a whole number", node.describe()), help);
                return None;
            }
        };
        match u32::try_from(value) {
            Ok(value) if value >= min => Some(Located { value, at: node.at }),
            _ => {
                report.error(node.at, format!("{key} is {value}, which is out of range"), help);
                None
            }
        }
    }

    /// A share between 0 and 1, in thousandths.
    pub(crate) fn permille(&self, key: &str, report: &mut ProblemSink<'_>) -> Option<u16> {
        let node = self.node(key)?;
        let value = node.as_scalar().and_then(|scalar| match scalar.meaning() {
            Meaning::Float(value) => Some(value),
            Meaning::Int(value) => Some(value as f64),
            _ => None,
        });
        match value {
            Some(value) if (0.0..=1.0).contains(&value) => Some((value * 1000.0).round() as u16),
            _ => {
                report.error(
                    node.at,
                    format!("{key} is {}, not a share of the limit", node.describe()),
                    format!("write {key}: N with N from 0 to 1, such as 0.1"),
                );
                None
            }
        }
    }

    /// One of a closed set of words.
    pub(crate) fn word<T: Word + Display>(&self, key: &str, report: &mut ProblemSink<'_>) -> Option<Located<T>> {
        let words: Vec<&str> = T::ALL.iter().map(|value| value.word()).collect();
        let help = format!("write {}", list(&words, "or"));
        let text = self.choice(key, &help, report)?;
        match T::from_word(&text.value) {
            Some(value) => Some(Located { value, at: text.at }),
            None => {
                report.error(text.at, format!("{key} '{}' is unknown", excerpt(&text.value)), help);
                None
            }
        }
    }

    /// The elements of a list; absent and null are empty.
    pub(crate) fn list(&self, key: &str, report: &mut ProblemSink<'_>) -> &[Rc<YamlNode>] {
        let Some(node) = self.node(key) else { return &[] };
        let NodeKind::List(items) = &node.kind else {
            report.error(
                node.at,
                format!("{key} is {}, not a list", node.describe()),
                format!("start each element of {key} with '- '"),
            );
            return &[];
        };
        items
    }
}

fn string_key<'n>(key: &'n YamlNode, report: &mut ProblemSink<'_>) -> Option<&'n str> {
    match key.as_scalar() {
        Some(scalar) if matches!(scalar.meaning(), Meaning::Text) => Some(&scalar.text),
        _ => {
            report.error(
                key.at,
                format!("config error, key is not of type string: {}", key.describe()),
                "keys are words such as domain, descriptors or rate_limit",
            );
            None
        }
    }
}

/// The longest key that is compared with the known ones. A longer key resembles none of them, and comparing takes time
/// and memory by its length.
const LIKENESS_BYTES_MAX: usize = 64;

/// Reports a key that belongs nowhere. Returns what it was probably meant to be.
fn report_unknown(key: &str, at: Position, shape: MapShape, report: &mut ProblemSink<'_>) -> Option<&'static str> {
    let unspaced = key.split_once(':').and_then(|(start, rest)| Some((known(shape, start)?, rest)));
    let (shown, meant, help) = match unspaced {
        // The value may be sensitive, so it is not shown.
        Some(("value", _)) => {
            ("value:…".to_owned(), Some("value"), "write a space after the colon: value: …".to_owned())
        }
        Some((known, rest)) => {
            (excerpt(key), Some(known), format!("write a space after the colon: {known}: {}", excerpt(rest)))
        }
        None if report.problems.is_full() => (excerpt(key), None, String::new()),
        None => match nearest(key, shape) {
            Some(known) => (excerpt(key), Some(known), format!("did you mean '{known}'?")),
            None => (excerpt(key), None, format!("{} has the keys {}", shape.name, list(shape.keys, "and"))),
        },
    };
    report.error(at, format!("config error, unknown key '{shown}'"), help);
    // The map holds no more keys than errors are kept.
    if !report.problems.is_full() {
        report.unknown.insert((at, shape.name), meant);
    }
    meant
}

/// The known key that this one resembles most, if any is near enough.
fn nearest(key: &str, shape: MapShape) -> Option<&'static str> {
    if key.len() > LIKENESS_BYTES_MAX {
        return None;
    }
    let distances = shape.keys.iter().map(|known| (strsim::damerau_levenshtein(known, key), *known));
    distances.min().filter(|(distance, known)| *distance <= 1 + known.len() / 4).map(|(_, known)| known)
}

fn known(shape: MapShape, key: &str) -> Option<&'static str> {
    shape.keys.iter().copied().find(|known| *known == key)
}

/// `a, b and c`, or with another last word.
fn list(words: &[&str], last_word: &str) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [start @ .., last] => format!("{} {last_word} {last}", start.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_unknown_key_is_not_compared_with_those_that_are_known() {
        assert_eq!((nearest("sensitve", DESCRIPTOR), nearest("colour", DESCRIPTOR)), (Some("sensitive"), None));
        let long = "x".repeat(1 << 20);
        // A comparison would allocate for each letter.
        let compared = allocation_counter::measure(|| assert_eq!(nearest(&long, DESCRIPTOR), None));
        assert_eq!(compared.bytes_total, 0);
    }
}
