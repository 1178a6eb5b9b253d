//! Files of manifests: many documents in one, whose comments and order stay as they are.
//!
//! An editor puts additions into the text. If the text then does not say what was meant, or if the editor can't do it
//! (values that an alias stands for, fields merged from elsewhere), the document is written anew, without its comments,
//! and the report says so.

use serde_json::Value;
use thiserror::Error;

use crate::cli::inject::editor;
use crate::cli::inject::workload::Addition;
use crate::cli::yaml::{read as read_document, yaml};

/// A document of a file, as text and as what it says.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// What stands before it, such as a line with `---`; may be empty for the first document.
    pub separator: String,
    /// As written, with comments, without the separator.
    pub text: String,
    /// What the text says; null if it says nothing.
    pub value: Value,
    /// Fields are merged from elsewhere (`<<`), which the editor can't do.
    is_merged: bool,
}

/// A file that can't be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {error}")]
pub(crate) struct ManifestError {
    line: usize,
    error: String,
}

/// How a document was changed: with its comments, or without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    InPlace,
    Anew,
}

/// Splits a file into its documents. A line that begins with three dashes is never part of one, but a document may begin on
/// it.
pub(crate) fn read(file: &str) -> Result<Vec<Manifest>, ManifestError> {
    let (mark, file) = match file.strip_prefix('\u{feff}') {
        Some(rest) => ("\u{feff}", rest),
        None => ("", file),
    };
    let mut parts: Vec<(usize, String, String)> = vec![(0, mark.to_owned(), String::new())];
    for (number, line) in file.split_inclusive('\n').enumerate() {
        let behind =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\n', '\r', '\t']));
        match (behind, parts.last_mut()) {
            (None, Some((_, _, text))) => text.push_str(line),
            (Some(rest), _) if !rest.trim().is_empty() && !rest.trim().starts_with('#') => {
                parts.push((number, "--- ".to_owned(), rest.trim_start().to_owned()));
            }
            _ => parts.push((number + 1, line.to_owned(), String::new())),
        }
    }
    let manifest = |(before, separator, text): (usize, String, String)| {
        // Directives belong to the document behind them, and say nothing themselves.
        let is_directive = |line: &str| line.trim().is_empty() || line.starts_with(['%', '#']);
        let content = if text.lines().all(is_directive) { "" } else { &*text };
        let read = read_document(content).map_err(|(line, error)| ManifestError { line: before + line, error })?;
        Ok(Manifest { separator, value: read.value, is_merged: read.is_merged, text })
    };
    parts.into_iter().map(manifest).collect()
}

impl Manifest {
    /// Makes the additions.
    pub(crate) fn add(&mut self, additions: &[Addition]) -> Rewrite {
        let edited = if self.is_merged { None } else { edited(&self.text, &self.value, additions) };
        let mut meant = self.value.clone();
        additions.iter().for_each(|addition| addition.apply(&mut meant));
        let (text, written) = match edited.filter(|text| says(text, &meant)) {
            Some(text) => (text, Rewrite::InPlace),
            None => (yaml(&meant), Rewrite::Anew),
        };
        (self.text, self.value, self.is_merged) = (text, meant, false);
        written
    }
}

fn says(text: &str, meant: &Value) -> bool {
    read_document(text).is_ok_and(|read| read.value == *meant)
}

/// The document with the additions, as text; `None` if the editor can't.
fn edited(text: &str, value: &Value, additions: &[Addition]) -> Option<String> {
    let (mut text, mut value) = (text.to_owned(), value.clone());
    for addition in additions {
        addition.apply(&mut value);
        text = editor::added(&text, addition, &value)?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::inject::workload::PathPart;

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

    fn field(at: &[PathPart], key: &'static str, value: Value) -> Addition {
        Addition::Field { at: at.to_vec(), key, value }
    }

    const SPEC: [PathPart; 3] = [PathPart::Key("spec"), PathPart::Key("template"), PathPart::Key("spec")];

    #[test]
    fn comments_and_order_stay_and_the_rest_looks_like_it() {
        let mut documents = read(FILE).unwrap();
        assert_eq!(documents.iter().map(|it| it.separator.as_str().len()).collect::<Vec<_>>(), [0, 4]);
        let container = [&SPEC[..], &[PathPart::Key("containers"), PathPart::Index(0)]].concat();
        let additions = [
            field(&SPEC, "initContainers", json!([{"name": "tidegate", "args": ["--mode", "666"]}])),
            field(&SPEC, "volumes", json!([{"name": "v", "emptyDir": {}}])),
            field(&container, "volumeMounts", json!([{"name": "v"}])),
            Addition::Element {
                at: [&container[..], &[PathPart::Key("ports")]].concat(),
                value: json!({"containerPort": 1, "name": "1"}),
                is_first: false,
            },
        ];
        assert_eq!(documents[1].add(&additions), Rewrite::InPlace);
        let text: String = documents.iter().map(|it| format!("{}{}", it.separator, it.text)).collect();
        let ports = "        ports:
        - containerPort: 8080
        - name: \"1\"
          containerPort: 1
        volumeMounts:
        - name: v
";
        let at_the_end = "      initContainers:
      - name: tidegate
        args:
        - --mode
        - \"666\"
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
        let at = [PathPart::Key("spec"), PathPart::Key("containers")];
        let before = documents[0].value.clone();
        documents[0].add(&[Addition::Element { at: at.to_vec(), value: json!({"name": "b"}), is_first: false }]);
        assert_eq!(documents[0].value["spec"]["containers"], json!([{"name": "a"}, {"name": "b"}]));
        assert_eq!(
            documents[0].value["other"], before["other"],
            "what has the same anchor is not changed along with it"
        );
        assert!(says(&documents[0].text, &documents[0].value), "{}", documents[0].text);
    }

    #[test]
    fn an_element_goes_first_and_the_comments_stay() {
        let file =
            "spec:\n  # These come first.\n  initContainers:\n  # Migrates.\n  - name: migrate # yes\n    image: m\n";
        let mut documents = read(file).unwrap();
        let at = vec![PathPart::Key("spec"), PathPart::Key("initContainers")];
        let first = Addition::Element { at, value: json!({"name": "t", "args": ["a"]}), is_first: true };
        assert_eq!(documents[0].add(&[first]), Rewrite::InPlace);
        assert_eq!(documents[0].text, file.replace("  - name: m", "  - name: t\n    args:\n    - a\n  - name: m"));
    }

    #[test]
    fn what_is_merged_from_elsewhere_is_not_lost() {
        let file = "spec:\n  <<: &v\n    volumes:\n    - {name: keep, emptyDir: {}}\n  containers: []\n";
        let mut documents = read(file).unwrap();
        let at = vec![PathPart::Key("spec"), PathPart::Key("volumes")];
        let more = Addition::Element { at, value: json!({"name": "more"}), is_first: false };
        assert_eq!(documents[0].add(&[more]), Rewrite::Anew);
        let volumes = json!([{"name": "keep", "emptyDir": {}}, {"name": "more"}]);
        assert_eq!(documents[0].value["spec"]["volumes"], volumes);
        assert!(says(&documents[0].text, &documents[0].value) && !documents[0].text.contains("<<"));
    }

    #[test]
    fn what_is_no_yaml_is_named_by_its_line() {
        let error = read("kind: Pod\n--- # second\na: {\nb").unwrap_err();
        assert_eq!(error.line, 4, "{error}");
        let documents = read("---\nkind: Pod\n...\n---\n\n").unwrap();
        assert_eq!(documents.iter().map(|it| it.value.is_null()).collect::<Vec<_>>(), [true, false, true]);
        let documents = read("\u{feff}%YAML 1.2\n--- {kind: Pod}\n").unwrap();
        assert_eq!(documents[1].value, json!({"kind": "Pod"}));
        assert_eq!((documents[0].separator.as_str(), documents[1].separator.as_str()), ("\u{feff}", "--- "));
    }
}
