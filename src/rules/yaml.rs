//! YAML as a tree in which every value knows its line and column.
//!
//! Built on the parser's events rather than on serde, for three reasons: a file's errors are collected instead of
//! ending at the first, scalars keep the text as written (`value: 0123` is the string `0123`), and the cost of a file
//! is bounded: its nesting, and its values and bytes after aliases are followed, which stops an alias bomb before it
//! unfolds.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::rules::problem::{Position, Problems};
use crate::rules::scalar::{Meaning, Scalar, excerpt};

/// How deep maps and lists may nest. Rules nest two deep per level, and requests have few levels.
const DEPTH_MAX: usize = 128;
/// The most values in a document after aliases are followed. A rule has about ten.
const VALUES_MAX: usize = 4_000_000;
/// The most text in a document after aliases are followed.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// A value and where it starts.
#[derive(Debug)]
pub(crate) struct YamlNode {
    /// Its first character, counted through the whole file. What an alias stands for has the place of its anchor.
    pub at: Position,
    /// The value itself, with aliases followed.
    pub kind: NodeKind,
    size: Size,
}

/// The size of a subtree after aliases are followed.
#[derive(Clone, Copy, Debug)]
struct Size {
    values: usize,
    bytes: usize,
    depth: usize,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
    Scalar(Scalar),
    List(Vec<Rc<YamlNode>>),
    Map(Vec<(Rc<YamlNode>, Rc<YamlNode>)>),
}

impl YamlNode {
    /// Says in a few words, for messages, what kind of value stands here.
    pub(crate) fn describe(&self) -> String {
        match &self.kind {
            NodeKind::Map(_) => "a map".into(),
            NodeKind::List(_) => "a list".into(),
            NodeKind::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => "nothing".into(),
                Meaning::Text => format!("'{}'", excerpt(&scalar.text)),
                _ => excerpt(&scalar.text),
            },
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar(scalar) if scalar.meaning() == Meaning::Null)
    }

    pub(crate) fn as_scalar(&self) -> Option<&Scalar> {
        match &self.kind {
            NodeKind::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }
}

/// The documents of a file. A document with a syntax error is reported and left out; the others are still read.
pub(crate) fn documents(file: &Arc<str>, text: &str, problems: &mut Problems) -> Vec<Rc<YamlNode>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    for (line_offset, chunk) in chunks(text) {
        let mut read = parse(chunk, line_offset);
        if let Err(trouble) = &read
            && let Some(mended) = without_tabs_after_colons(chunk, trouble.at.line - line_offset)
        {
            read = parse(&mended, line_offset).or(read);
        }
        match read {
            Ok(mut read) => documents.append(&mut read),
            Err(trouble) => problems.error(file, trouble.at, trouble.message, trouble.help),
        }
    }
    documents
}

fn parse(chunk: &str, line_offset: usize) -> Result<Vec<Rc<YamlNode>>, YamlError> {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(chunk);
    loop {
        match parser.next_event() {
            None | Some(Ok((Event::StreamEnd, _))) => return Ok(builder.documents),
            Some(Ok((event, span))) => builder.push(event, &span, line_offset)?,
            Some(Err(error)) => {
                let marker = error.marker();
                let stopped = Position { line: marker.line() + line_offset, column: marker.col() + 1 };
                let opener = builder.open.last().map(|open| open.at).filter(|opener| opener.line < stopped.line);
                let at = match tab_indentation(chunk, marker.line()) {
                    Some((line, column)) => Position { line: line + line_offset, column },
                    // The parser notices a bracket that is not closed only lines below, where something else begins.
                    None if error.info().contains("while parsing a flow") || marker.line() > chunk.lines().count() => {
                        opener.unwrap_or(stopped)
                    }
                    None => stopped,
                };
                return Err(YamlError {
                    at,
                    message: format!("error loading config file: yaml: {}", error.info()),
                    help: syntax_help(chunk, marker.line(), error.info()),
                });
            }
        }
    }
}

/// Turns tabs between a colon and a plain value into as many spaces, so that positions stay: YAML allows such tabs, but
/// the parser refuses them. Begins at the line that the parser stopped at. `None` if that is not what stopped it.
pub(crate) fn without_tabs_after_colons(chunk: &str, line: usize) -> Option<String> {
    let is_culprit = chunk.lines().nth(line.checked_sub(1)?)?.contains(":\t");
    let mend = |(index, text): (usize, &str)| match text.find([':', '"', '\'', '#']) {
        Some(at) if index + 1 >= line && text[at..].starts_with(":\t") => {
            let value = text[at + 1..].trim_start_matches('\t');
            let tabs = text.len() - at - 1 - value.len();
            format!("{}:{}{value}", &text[..at], " ".repeat(tabs))
        }
        _ => text.to_owned(),
    };
    is_culprit.then(|| chunk.split_inclusive('\n').enumerate().map(mend).collect())
}

/// Finds a line that is indented with a tab, near the one that the parser stopped at.
fn tab_indentation(chunk: &str, line: usize) -> Option<(usize, usize)> {
    let first = line.saturating_sub(1).max(1);
    let nearby = chunk.lines().enumerate().skip(first - 1).take(3);
    nearby
        .map(|(index, text)| (index + 1, text.len() - text.trim_start_matches(' ').len(), text))
        .find(|(_, spaces, text)| text[*spaces..].starts_with('\t') && !text.trim().is_empty())
        .map(|(line, spaces, _)| (line, spaces + 1))
}

fn syntax_help(chunk: &str, line: usize, info: &str) -> &'static str {
    // The parser may stop a line before or after the culprit.
    let nearby = || chunk.lines().skip(line.saturating_sub(2)).take(3);
    if info.contains("anchor") {
        "define the anchor with &NAME before this line; a value that starts with * needs quotes: value: \"*\""
    } else if tab_indentation(chunk, line).is_some() {
        "YAML does not allow tabs for indentation: use spaces"
    } else if nearby().any(|text| text.contains(": *") || text.trim_start().starts_with("- *")) {
        "a value that starts with * is an alias in YAML: put it in quotes, as in value: \"*\""
    } else if nearby()
        .any(|text| text.starts_with("<<<<<<<") || text.starts_with("=======") || text.starts_with(">>>>>>>"))
    {
        "the file has merge conflict markers: resolve the conflict"
    } else if info.contains("quoted") {
        "a quote is opened on this line or above and not closed"
    } else {
        "check indentation, colons, quotes and brackets on this line and above: something may not be closed"
    }
}

/// Splits a file at its `---` lines, which YAML allows nowhere but between documents, so that a syntax error ends only
/// its own document. Directives stay with the document that they precede. Each chunk comes with the number of lines
/// before it.
fn chunks(text: &str) -> Vec<(usize, &str)> {
    let mut chunks = Vec::new();
    let mut start = 0;
    let mut start_line = 0;
    let mut only_preamble = true;
    let mut offset = 0;
    for (line_number, line) in text.split_inclusive('\n').enumerate() {
        let is_marker =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if is_marker && !only_preamble {
            chunks.push((start_line, &text[start..offset]));
            (start, start_line) = (offset, line_number);
        }
        only_preamble &=
            !is_marker && (line.trim().is_empty() || line.trim_start().starts_with('#') || line.starts_with('%'));
        offset += line.len();
        // `...` ends a document; what follows, up to the next `---`, may be directives.
        if line.trim_end() == "..." {
            chunks.push((start_line, &text[start..offset]));
            (start, start_line, only_preamble) = (offset, line_number + 1, true);
        }
    }
    chunks.push((start_line, &text[start..]));
    chunks
}

/// Something that ends a document early.
struct YamlError {
    at: Position,
    message: String,
    help: &'static str,
}

/// Turns events into nodes.
#[derive(Default)]
struct Builder {
    documents: Vec<Rc<YamlNode>>,
    open: Vec<OpenCollection>,
    /// By the parser's number.
    anchors: HashMap<usize, Rc<YamlNode>>,
}

struct OpenCollection {
    at: Position,
    /// The parser's number of its anchor; 0 if it has none.
    anchor: usize,
    /// Of a map, keys and values in turn.
    children: Vec<Rc<YamlNode>>,
    is_map: bool,
    size: Size,
}

impl Builder {
    fn push(&mut self, event: Event<'_>, span: &Span, line_offset: usize) -> Result<(), YamlError> {
        let at = Position { line: span.start.line() + line_offset, column: span.start.col() + 1 };
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_tagged_string = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
                let plain = style == ScalarStyle::Plain && !is_tagged_string;
                let size = Size { values: 1, bytes: text.len(), depth: 0 };
                let kind = NodeKind::Scalar(Scalar { text: text.into_owned(), plain });
                self.add(Rc::new(YamlNode { at, kind, size }), at, anchor)
            }
            Event::SequenceStart(anchor, _) => self.enter(at, anchor, false),
            Event::MappingStart(anchor, _) => self.enter(at, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let kind = if open.is_map {
                    let mut pairs = Vec::with_capacity(open.children.len() / 2);
                    let mut children = open.children.into_iter();
                    while let (Some(key), Some(value)) = (children.next(), children.next()) {
                        pairs.push((key, value));
                    }
                    NodeKind::Map(pairs)
                } else {
                    NodeKind::List(open.children)
                };
                self.add(Rc::new(YamlNode { at: open.at, kind, size: open.size }), open.at, open.anchor)
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => self.add(node.clone(), at, 0),
                None => Err(YamlError {
                    at,
                    message: "error loading config file: yaml: an anchor contains itself".into(),
                    help: "write the values out instead of using this alias",
                }),
            },
            Event::DocumentEnd => {
                self.anchors.clear();
                Ok(())
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => Ok(()),
        }
    }

    fn enter(&mut self, at: Position, anchor: usize, is_map: bool) -> Result<(), YamlError> {
        // Also refused here, so that the stack of open collections stays bounded.
        if self.open.len() >= DEPTH_MAX {
            return Err(too_deep(at));
        }
        let size = Size { values: 1, bytes: 0, depth: 1 };
        self.open.push(OpenCollection { at, anchor, children: Vec::new(), is_map, size });
        Ok(())
    }

    fn add(&mut self, node: Rc<YamlNode>, at: Position, anchor: usize) -> Result<(), YamlError> {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        // An alias may bring along more levels than are written here.
        if self.open.len() + node.size.depth > DEPTH_MAX {
            return Err(too_deep(at));
        }
        let Some(parent) = self.open.last_mut() else {
            self.documents.push(node);
            return Ok(());
        };
        parent.size.values = parent.size.values.saturating_add(node.size.values);
        parent.size.bytes = parent.size.bytes.saturating_add(node.size.bytes);
        parent.size.depth = parent.size.depth.max(node.size.depth + 1);
        if parent.size.values > VALUES_MAX || parent.size.bytes > BYTES_MAX {
            return Err(YamlError {
                at: parent.at,
                message: format!("more than {VALUES_MAX} values or {BYTES_MAX} bytes once aliases are followed"),
                help: "split the file, and do not build aliases out of aliases",
            });
        }
        parent.children.push(node);
        Ok(())
    }
}

fn too_deep(at: Position) -> YamlError {
    YamlError {
        at,
        message: format!("maps and lists are nested more than {DEPTH_MAX} deep"),
        help: "requests have few entries: rules this deep can't match",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::problem::Strictness;

    fn read(text: &str) -> (Vec<Rc<YamlNode>>, Vec<String>) {
        let mut problems = Problems::new(Strictness::Strict);
        let documents = documents(&"f.yaml".into(), text, &mut problems);
        (documents, problems.into_sorted().iter().map(|p| format!("{}: {}", p.place, p.message)).collect())
    }

    #[test]
    fn positions_count_from_one() {
        let (documents, errors) = read("domain: edge\ndescriptors:\n  - {é: y, key: x}\n");
        assert!(errors.is_empty(), "{errors:?}");
        let NodeKind::Map(pairs) = &documents[0].kind else { panic!() };
        assert_eq!(pairs[0].1.at, Position { line: 1, column: 9 });
        let NodeKind::List(items) = &pairs[1].1.kind else { panic!() };
        assert_eq!(items[0].at, Position { line: 3, column: 5 });
        let NodeKind::Map(pairs) = &items[0].kind else { panic!() };
        assert_eq!(pairs[1].0.at, Position { line: 3, column: 12 }, "columns count characters, not bytes");
    }

    #[test]
    fn a_syntax_error_ends_only_its_own_document() {
        let (documents, errors) = read("a: 1\n---\nb: [1,\n---\nc: 3\n---\nd: \"x\n");
        assert_eq!(documents.len(), 2);
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[1].starts_with("f.yaml:7:") || errors[1].starts_with("f.yaml:8:"), "{errors:?}");
    }

    #[test]
    fn directives_and_comments_stay_with_their_document() {
        let (documents, errors) = read("# hello\n%YAML 1.2\n---\na: 1\n");
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(documents.len(), 1);
    }

    #[test]
    fn a_document_end_is_followed_by_directives() {
        let (documents, errors) = read("a: 1\n...\n%YAML 1.2\n---\nb: 2\n  # indented\n---\nc: 3\n");
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(documents.len(), 3);
    }

    #[test]
    fn tabs_after_colons_are_allowed() {
        let (documents, errors) = read("a: 1\nb:\tminute\nc:\t\t5\nd: 'x:\ty'\n");
        assert!(errors.is_empty(), "{errors:?}");
        let NodeKind::Map(pairs) = &documents[0].kind else { panic!() };
        assert_eq!(pairs[2].1.at, Position { line: 3, column: 5 });
        assert_eq!(pairs[3].1.as_scalar().unwrap().text, "x:\ty");
        assert_eq!(read("a: 1\n\tb: 2\n").1.len(), 1);
    }

    #[test]
    fn a_chain_of_aliases_is_as_deep_as_it_unfolds() {
        let mut text = String::from("- &a0 {k: v}\n");
        (1..200).for_each(|n| text.push_str(&format!("- &a{n} {{k: [*a{}]}}\n", n - 1)));
        let (documents, errors) = read(&text);
        assert!(documents.is_empty());
        assert!(errors[0].contains("nested more than 128 deep"), "{errors:?}");
    }

    #[test]
    fn an_alias_bomb_is_stopped_before_it_unfolds() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let previous = level - 1;
            let aliases = vec![format!("*a{previous}"); 10].join(",");
            text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        let (documents, errors) = read(&text);
        assert!(documents.is_empty());
        assert!(errors[0].contains("once aliases are followed"), "{errors:?}");
    }

    #[test]
    fn deep_nesting_is_refused() {
        let (_, errors) = read(&"[".repeat(200));
        assert!(errors[0].contains("nested more than 128 deep"), "{errors:?}");
        let (_, errors) = read(&"[".repeat(1_000_000));
        assert_eq!(errors.len(), 1, "{errors:?}");
        let (_, errors) = read("a: &a [*a]\n");
        assert_eq!(errors.len(), 1, "{errors:?}");
    }
}
