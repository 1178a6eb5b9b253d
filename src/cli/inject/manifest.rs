//! Files of manifests: many documents in one, whose comments and order stay as they are.
//!
//! What is added is put in by a YAML editor. What comes out has to mean what was meant: if it does not, or if the editor
//! can't (a list written in a form that it does not know), the document is written anew, without its comments, and that
//! is said.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use yamlpatch::{Op, Patch};
use yamlpath::{Component, Route};

use crate::cli::generate::text::indented;
use crate::cli::inject::workload::{Addition, Step};

/// A document of a file, as text and as what it says.
#[derive(Debug)]
pub struct Manifest {
    /// The line that separates it from the one before, if there is one.
    pub separator: String,
    pub text: String,
    pub value: Value,
}

/// A file that can't be read.
#[derive(Debug, Error)]
#[error("document {number}, which begins in line {line}, is not YAML: {error}")]
pub struct ManifestError {
    number: usize,
    line: usize,
    error: serde_yaml::Error,
}

/// Whether the comments are still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    InPlace,
    Anew,
}

/// Splits a file into its documents. A line that begins with three dashes is never part of one.
pub fn read(file: &str) -> Result<Vec<Manifest>, ManifestError> {
    let mut parts: Vec<(usize, String, String)> = vec![(1, String::new(), String::new())];
    for (number, line) in file.split_inclusive('\n').enumerate() {
        let is_separator =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\n', '\r', '\t']));
        match parts.last_mut() {
            Some((_, _, text)) if !is_separator => text.push_str(line),
            _ => parts.push((number + 2, line.to_owned(), String::new())),
        }
    }
    let manifest =
        |(index, (line, separator, text)): (usize, (usize, String, String))| {
            let value = Value::deserialize(serde_yaml::Deserializer::from_str(&text))
                .map_err(|error| ManifestError { number: index + 1, line, error })?;
            Ok(Manifest { separator, text, value })
        };
    // What is before the first separator is a document only if there is something in it.
    parts.into_iter().enumerate().map(manifest).collect()
}

impl Manifest {
    /// Makes the additions.
    pub fn add(&mut self, additions: &[Addition]) -> Written {
        let meant = patched(&self.value, additions);
        match edited(&self.text, &self.value, additions).filter(|text| says(text, &meant)) {
            Some(text) => {
                self.text = text;
                self.value = meant;
                Written::InPlace
            }
            None => {
                self.text = serde_yaml::to_string(&meant).unwrap_or_default();
                self.value = meant;
                Written::Anew
            }
        }
    }
}

fn says(text: &str, meant: &Value) -> bool {
    Value::deserialize(serde_yaml::Deserializer::from_str(text)).is_ok_and(|value| value == *meant)
}

/// The document with the additions, as data.
fn patched(value: &Value, additions: &[Addition]) -> Value {
    let mut value = value.clone();
    for addition in additions {
        let (Addition::Field { at, .. } | Addition::Element { at, .. }) = addition;
        let place = at.iter().try_fold(&mut value, |value, step| match step {
            Step::Key(key) => value.get_mut(key),
            Step::Index(index) => value.get_mut(index),
        });
        match (place, addition) {
            (Some(Value::Object(fields)), Addition::Field { key, value, .. }) => {
                fields.insert((*key).to_owned(), value.clone());
            }
            (Some(Value::Array(list)), Addition::Element { value, .. }) => list.push(value.clone()),
            _ => {}
        }
    }
    value
}

/// What the editor puts in, and what is then put in its place: as a block where it has a line to itself, so that it looks
/// like the rest, and on the line otherwise.
const PLACE: &str = "tidegate-goes-here";

/// The document with the additions, as text; `None` if the editor can't.
fn edited(text: &str, value: &Value, additions: &[Addition]) -> Option<String> {
    let (mut text, mut value) = (text.to_owned(), value.clone());
    for addition in additions {
        let document = yamlpath::Document::new(text).ok()?;
        let next = patched(&value, std::slice::from_ref(addition));
        let (Addition::Field { value: added, .. } | Addition::Element { value: added, .. }) = addition;
        text = match (yamlpatch::apply_yaml_patches(&document, &[patch(&value, addition)]), addition) {
            (Ok(placed), _) => filled(placed.source(), added)?,
            // A list between brackets, to which the editor adds nothing.
            (Err(_), Addition::Element { at, .. }) => {
                let replace = Patch { route: route(at), operation: Op::Replace(PLACE.into()) };
                let placed = yamlpatch::apply_yaml_patches(&document, &[replace]).ok()?;
                filled(placed.source(), next.pointer(&at.iter().map(pointer).collect::<String>())?)?
            }
            (Err(_), Addition::Field { .. }) => return None,
        };
        value = next;
    }
    Some(text)
}

fn patch<'a>(document: &Value, addition: &'a Addition) -> Patch<'a> {
    let place = serde_yaml::Value::from(PLACE);
    let (route, operation) = match addition {
        Addition::Field { at, key, .. } => {
            let steps = at.iter().map(pointer).collect::<String>();
            match document.pointer(&format!("{steps}/{key}")) {
                // An empty list, or nothing after the colon.
                Some(_) => (route(at).with_key(*key), Op::Replace(place)),
                None => (route(at), Op::Add { key: (*key).to_owned(), value: place }),
            }
        }
        Addition::Element { at, .. } => (route(at), Op::Append { value: place }),
    };
    Patch { route, operation }
}

fn filled(text: &str, value: &Value) -> Option<String> {
    let (before, after) = text.split_once(PLACE)?;
    let line = before.rsplit('\n').next()?;
    let indent = line.len() - line.trim_start().len();
    let is_alone = after.lines().next().is_none_or(|rest| rest.trim().is_empty());
    let block = serde_yaml::to_string(value).ok()?;
    let is_element = line.trim() == "-";
    let is_field = line.trim_end().ends_with(':') && !line.contains(['{', '[']) && line.trim().len() > 1;
    let filling = match (is_element, is_field) {
        (true, _) if is_alone => indented(indent + 2, &block).trim().to_owned(),
        (_, true) if is_alone => {
            // Behind the dash of an element, the field is further to the right.
            let dashes = line.trim_start().len() - line.trim_start().trim_start_matches(['-', ' ']).len();
            format!("\n{}", indented(indent + dashes, &block).trim_end())
        }
        _ => value.to_string(),
    };
    let before = if filling.starts_with('\n') { before.trim_end_matches(' ') } else { before };
    Some(format!("{before}{filling}{after}"))
}

fn pointer(step: &Step) -> String {
    match step {
        Step::Key(key) => format!("/{key}"),
        Step::Index(index) => format!("/{index}"),
    }
}

fn route(at: &[Step]) -> Route<'static> {
    let component = |step: &Step| match step {
        Step::Key(key) => Component::from(*key),
        Step::Index(index) => Component::from(*index),
    };
    Route::from(at.iter().map(component).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FILE: &str = "\
# The shop.
kind: Service
---
kind: Deployment # with comments
spec:
  template:
    spec:
      # The containers:
      containers:
      - name: shop   # pinned
        ports: [{containerPort: 8080}]
      volumes:   # none yet
      hostAliases: []
";

    fn field(at: &[Step], key: &'static str, value: Value) -> Addition {
        Addition::Field { at: at.to_vec(), key, value }
    }

    const SPEC: [Step; 3] = [Step::Key("spec"), Step::Key("template"), Step::Key("spec")];

    #[test]
    fn comments_and_order_stay_and_the_rest_looks_like_it() {
        let mut documents = read(FILE).unwrap();
        assert_eq!(documents.iter().map(|it| it.separator.as_str().len()).collect::<Vec<_>>(), [0, 4]);
        let container = [&SPEC[..], &[Step::Key("containers"), Step::Index(0)]].concat();
        let additions = [
            field(&SPEC, "initContainers", json!([{"name": "tidegate", "args": ["--mode", "666"]}])),
            field(&SPEC, "volumes", json!([{"name": "v", "emptyDir": {}}])),
            field(&container, "volumeMounts", json!([{"name": "v"}])),
            Addition::Element {
                at: [&container[..], &[Step::Key("ports")]].concat(),
                value: json!({"containerPort": 1, "name": "1"}),
            },
        ];
        assert_eq!(documents[1].add(&additions), Written::InPlace);
        let text: String = documents.iter().map(|it| format!("{}{}", it.separator, it.text)).collect();
        let ports = "        ports:
        - containerPort: 8080
        - containerPort: 1
          name: '1'
        volumeMounts:
        - name: v
";
        let at_the_end = "      initContainers:
      - args:
        - --mode
        - '666'
        name: tidegate
";
        let expected = FILE
            .replace("volumes:   #", "volumes: [{\"emptyDir\":{},\"name\":\"v\"}]   #")
            .replace("        ports: [{containerPort: 8080}]\n", ports);
        let expected = expected + at_the_end;
        assert_eq!(text, expected);
    }

    #[test]
    fn what_the_editor_can_not_change_is_written_anew() {
        let mut documents =
            read("{\n  kind: Pod, # comment\n  spec: {containers: &c [\n   {name: a}]}, other: *c}\n").unwrap();
        let at = [Step::Key("spec"), Step::Key("containers")];
        let before = documents[0].value.clone();
        documents[0].add(&[Addition::Element { at: at.to_vec(), value: json!({"name": "b"}) }]);
        assert_eq!(documents[0].value["spec"]["containers"], json!([{"name": "a"}, {"name": "b"}]));
        assert_eq!(
            documents[0].value["other"], before["other"],
            "what has the same anchor is not changed along with it"
        );
        assert!(says(&documents[0].text, &documents[0].value), "{}", documents[0].text);
    }

    #[test]
    fn what_is_no_yaml_is_named_by_its_line() {
        let error = read("kind: Pod\n--- # second\n{").unwrap_err().to_string();
        assert!(error.starts_with("document 2, which begins in line 3, is not YAML"), "{error}");
        let documents = read("---\nkind: Pod\n...\n---\n\n").unwrap();
        assert_eq!(documents.iter().map(|it| it.value.is_null()).collect::<Vec<_>>(), [true, false, true]);
    }
}
