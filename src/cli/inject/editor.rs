//! Puts an addition into the text of a document, so that its comments and its order stay.
//!
//! An addition looks like what is around it: lines among lines, JSON between brackets and where a comment follows on
//! the line. The caller checks whether the text then says what was meant: there are ways to write YAML that nobody has
//! thought of.

use std::ops::Range;

use serde_json::{Value, json};

use crate::cli::inject::layout::{EditKind, InsertionPoint, Style};
use crate::cli::inject::workload::{Addition, PathPart, value_at};
use crate::cli::yaml::{element, indented, yaml};

/// The text with the addition, or `None` if there is no place for it. `meant` is the whole document after the addition.
pub(super) fn added(text: &str, addition: &Addition, meant: &Value) -> Option<String> {
    let document = InsertionPoint::of(text)?;
    let editor = Editor { text };
    match addition {
        Addition::Field { at, key, value } => editor.with_field(document.at(at)?, key, value),
        Addition::Element { at, value, is_first } => {
            let (PathPart::Key(name), above) = at.split_last()? else { return None };
            editor.with_element(document.at(above)?, name, value, *is_first, value_at(meant, at)?)
        }
    }
}

struct Editor<'a> {
    text: &'a str,
}

impl Editor<'_> {
    fn with_field(&self, map: &InsertionPoint, key: &str, value: &Value) -> Option<String> {
        let EditKind::Map(style, fields) = &map.kind else { return None };
        match (map.field(key), style) {
            // An empty list, or nothing after the colon.
            (Some((key, old)), style) => self.with_value(*style, key, old, value),
            (None, Style::Block(first)) => {
                let lines = indented(self.column(*first), &yaml(&json!({key: value})));
                Some(self.with_lines_below(map.span.end, &lines))
            }
            (None, Style::Flow) => Some(self.with_pair(map, fields.last(), key, value)),
        }
    }

    /// Adds an element to the list that is a field of a map. `meant` is the whole list after that.
    fn with_element(
        &self,
        map: &InsertionPoint,
        name: &str,
        value: &Value,
        is_first: bool,
        meant: &Value,
    ) -> Option<String> {
        let EditKind::Map(outer, _) = &map.kind else { return None };
        let (key, list) = map.field(name)?;
        let EditKind::List(style, elements) = &list.kind else { return None };
        let (first, last) = (&elements.first()?.span, &elements.last()?.span);
        match (style, outer) {
            (Style::Block(dash), _) => {
                let lines = indented(self.column(*dash), &element(&yaml(value)));
                Some(match is_first {
                    true => self.with_lines(self.line_start(*dash), &lines),
                    false => self.with_lines_below(list.span.end, &lines),
                })
            }
            (Style::Flow, Style::Block(_)) if self.can_be_unfolded(key, list) => {
                self.with_value(*outer, key, list, meant)
            }
            (Style::Flow, _) if is_first => Some(self.with_item_before(first, value)),
            (Style::Flow, _) => Some(self.with_item_behind(last, &self.json(last.start, value))),
        }
    }

    /// Replaces a part of the text. Lines end as they do in the rest of the text.
    fn with(&self, part: Range<usize>, new: &str) -> String {
        let new = if self.text.contains("\r\n") { new.replace('\n', "\r\n") } else { new.to_owned() };
        format!("{}{new}{}", &self.text[..part.start], &self.text[part.end..])
    }

    fn with_lines(&self, at: usize, lines: &str) -> String {
        self.with(at..at, lines)
    }

    /// Adds lines below the line that something ends on. A comment stays on that line.
    fn with_lines_below(&self, end: usize, lines: &str) -> String {
        // A block of text that keeps the empty lines below it ends with a whole line.
        let is_line_end = self.text[..end].ends_with('\n');
        match self.text[end..].find('\n') {
            _ if is_line_end => self.with_lines(end, lines),
            Some(length) => self.with_lines(end + length + 1, lines),
            None => self.with_lines(self.text.len(), &format!("\n{lines}")),
        }
    }

    /// Replaces the value of a field: below the key if the rest of the line is free, on the line otherwise.
    fn with_value(&self, style: Style, key: &InsertionPoint, old: &InsertionPoint, value: &Value) -> Option<String> {
        let behind_key = key.span.end;
        let behind_colon = behind_key + self.text.get(behind_key..old.span.end)?.find(':')? + 1;
        Some(match style {
            // There is a comment between the two.
            _ if !self.is_blank(behind_colon..old.span.start) => self.with(old.span.clone(), &value.to_string()),
            Style::Block(_) if self.rest_of_line(old.span.end).trim().is_empty() => {
                // Written like any field, but without the key, which is there already.
                let field = yaml(&json!({"key": value}));
                let below = field.split_once('\n').map_or("", |(_, below)| below);
                let below = indented(self.column(key.span.start), below);
                self.with(behind_colon..old.span.end, &format!("\n{}", below.trim_end()))
            }
            Style::Block(_) => self.with(behind_colon..old.span.end, &format!(" {value}")),
            Style::Flow => {
                let value = self.json(key.span.start, value);
                self.with(behind_colon..old.span.end, &format!(" {value}"))
            }
        })
    }

    /// Whether a list between brackets has its lines to itself and no comments within, so that nothing is lost if it is
    /// written line by line.
    fn can_be_unfolded(&self, key: &InsertionPoint, list: &InsertionPoint) -> bool {
        let written = &self.text[list.span.clone()];
        let has_comment = [" #", "\t#", "\n#"].iter().any(|comment| written.contains(comment));
        let before = self.text[key.span.end..list.span.start].trim_start();
        let is_alone = before.trim_end() == ":" && self.rest_of_line(list.span.end).trim().is_empty();
        is_alone && !has_comment && written.starts_with('[')
    }

    /// Adds a field between brackets.
    fn with_pair(
        &self,
        map: &InsertionPoint,
        last: Option<&(InsertionPoint, InsertionPoint)>,
        key: &str,
        value: &Value,
    ) -> String {
        let Some((last_key, last_value)) = last else {
            let bracket = map.span.end - 1;
            return self.with(bracket..bracket, &format!("{key}: {value}"));
        };
        // JSON stays JSON.
        let quote = if self.text[last_key.span.clone()].starts_with('"') { "\"" } else { "" };
        let pair = format!("{quote}{key}{quote}: {}", self.json(last_key.span.start, value));
        self.with_item_behind(&(last_key.span.start..last_value.span.end), &pair)
    }

    /// Adds an item behind the last one between brackets, on a line of its own if that one has one.
    fn with_item_behind(&self, last: &Range<usize>, item: &str) -> String {
        let Some(indent) = self.indent(last.start) else {
            return self.with(last.end..last.end, &format!(", {item}"));
        };
        let rest = self.rest_of_line(last.end).trim_end();
        let comma = rest.trim_start().strip_prefix(',');
        let remark = comma.unwrap_or(rest).trim_start();
        if !remark.is_empty() && !remark.starts_with('#') {
            return self.with(last.end..last.end, &format!(",\n{indent}{item}"));
        }
        // The comment stays behind the item that it is about.
        let (before, after) = if comma.is_some() { ("", ",") } else { (",", "") };
        self.with(last.end..last.end + rest.len(), &format!("{before}{rest}\n{indent}{item}{after}"))
    }

    fn with_item_before(&self, first: &Range<usize>, value: &Value) -> String {
        let item = self.json(first.start, value);
        let space = self.indent(first.start).map_or(" ".to_owned(), |indent| format!("\n{indent}"));
        self.with(first.start..first.start, &format!("{item},{space}"))
    }

    /// A value between brackets: over several lines if it stands beside something that begins its line.
    fn json(&self, beside: usize, value: &Value) -> String {
        match self.indent(beside) {
            Some(indent) => format!("{value:#}").replace('\n', &format!("\n{indent}")),
            None => value.to_string(),
        }
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |end| end + 1)
    }

    fn rest_of_line(&self, at: usize) -> &str {
        self.text[at..].split('\n').next().unwrap_or_default()
    }

    /// How many characters stand before something on its line.
    fn column(&self, at: usize) -> usize {
        self.text[self.line_start(at)..at].chars().count()
    }

    /// The indentation of something that begins its line; `None` if it does not.
    fn indent(&self, at: usize) -> Option<&str> {
        let start = self.line_start(at);
        self.is_blank(start..at).then(|| &self.text[start..at])
    }

    fn is_blank(&self, part: Range<usize>) -> bool {
        self.text.get(part).is_some_and(|part| part.trim().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::yaml::read;

    fn assert_appended(before: &str, after: &str) {
        assert_added(before, &element_of_l(false), after);
    }

    fn assert_put_first(before: &str, after: &str) {
        assert_added(before, &element_of_l(true), after);
    }

    fn element_of_l(is_first: bool) -> Addition {
        let at = vec![PathPart::Key("s"), PathPart::Key("l")];
        Addition::Element { at, value: json!({"k": "b", "a": [1]}), is_first }
    }

    /// Adds `f`, or fills it where it is empty.
    fn assert_field(before: &str, after: &str) {
        let at = vec![PathPart::Key("s")];
        assert_added(before, &Addition::Field { at, key: "f", value: json!([{"k": "b"}]) }, after);
    }

    fn assert_added(before: &str, addition: &Addition, after: &str) {
        let mut meant = read(before).unwrap().value;
        addition.apply(&mut meant);
        let text = added(before, addition, &meant).unwrap();
        assert_eq!(text, after);
        assert_eq!(read(&text).unwrap().value, meant, "{text}");
    }

    #[test]
    fn comments_stay_where_they_are_around_what_is_added() {
        assert_appended(
            "s:\n  l:\n    # First.\n    - k: a # yes\n\n    # Not of the list.\n  # Next.\n  z: 1\n",
            "s:\n  l:\n    # First.\n    - k: a # yes\n    - a:\n      - 1\n      k: b\n\n    # Not of the list.\n  # Next.\n  z: 1\n",
        );
        assert_put_first(
            "s:\n  l: # all\n  # First.\n  -\n    k: a\n",
            "s:\n  l: # all\n  # First.\n  - a:\n    - 1\n    k: b\n  -\n    k: a\n",
        );
        assert_field(
            "s:\n    a: 1\n    # Of a.\n# The end.\n",
            "s:\n    a: 1\n    f:\n    - k: b\n    # Of a.\n# The end.\n",
        );
        assert_field("s:\n  f: # none\n  a: 1\n", "s:\n  f: [{\"k\":\"b\"}] # none\n  a: 1\n");
        assert_field("s:\n  f: # none\n    []\n", "s:\n  f: # none\n    [{\"k\":\"b\"}]\n");
        assert_field("s:\n  \"f\":   ~\n  a: 1\n", "s:\n  \"f\":\n  - k: b\n  a: 1\n");
    }

    #[test]
    fn a_field_goes_behind_all_of_the_last_one() {
        let added = "  f:\n  - k: b\n";
        for last in [
            "  a: |\n    x\n    # not a comment\n",
            "  a: |+\n    x\n\n\n",
            "  a: x\n    y\n",
            "  a: \"x\n    y # not a comment\" # it's one\n",
            "  a: 'it''s' # it's\n",
            "  a: {x: [1,\n    2]\n    } # größer\n",
            "  a:\n",
            "  a:\tx\n",
            "  a: &a ä\n  b: *a\n",
            "  ? a\n  : b\n",
            "  a:\n    - - x\n      -\n",
        ] {
            assert_field(&format!("s:\n{last}"), &format!("s:\n{last}{added}"));
            assert_field(&format!("s:\n{last}z: 1\n"), &format!("s:\n{last}{added}z: 1\n"));
        }
        assert_field("s:\n  a: |\n    x\n\nz: 1\n", "s:\n  a: |\n    x\n  f:\n  - k: b\n\nz: 1\n");
        assert_field("s:\n  a: 1", "s:\n  a: 1\n  f:\n  - k: b\n");
        assert_field("s:\r\n  a: 1 # x\r\nz: 1\r\n", "s:\r\n  a: 1 # x\r\n  f:\r\n  - k: b\r\nz: 1\r\n");
    }

    #[test]
    fn what_is_between_brackets_stays_as_it_is_written() {
        assert_field("s: { a: 'x' } # s\n", "s: { a: 'x', f: [{\"k\":\"b\"}] } # s\n");
        assert_field("s: {a: \"}\",}\n", "s: {a: \"}\", f: [{\"k\":\"b\"}],}\n");
        assert_field("s: {}\n", "s: {f: [{\"k\":\"b\"}]}\n");
        assert_field("{s: {f: , a: 1}}\n", "{s: {f: [{\"k\":\"b\"}] , a: 1}}\n");
        assert_appended("s:\n  l: [{k: a}] # l\n", "s:\n  l: [{k: a}, {\"a\":[1],\"k\":\"b\"}] # l\n");
        assert_put_first("s: {l: [ä, 'b']}\n", "s: {l: [{\"a\":[1],\"k\":\"b\"}, ä, 'b']}\n");
    }

    #[test]
    fn a_list_between_brackets_that_has_its_lines_to_itself_is_written_line_by_line() {
        assert_appended(
            "s:\n  l: [x,\n    'w']\n  z: 1\n",
            "s:\n  l:\n  - x\n  - w\n  - a:\n    - 1\n    k: b\n  z: 1\n",
        );
        assert_put_first("s:\n  l: [x]\n", "s:\n  l:\n  - a:\n    - 1\n    k: b\n  - x\n");
    }

    #[test]
    fn over_several_lines_an_item_gets_a_line_of_its_own() {
        assert_appended(
            "s:\n  l: [\n    {k: a}, # first\n    x # second\n  ]\n",
            "s:\n  l: [\n    {k: a}, # first\n    x, # second\n    {\n      \"a\": [\n        1\n      ],\n      \"k\": \"b\"\n    }\n  ]\n",
        );
        assert_put_first(
            "s: {\n  l: [\n    x] }\n",
            "s: {\n  l: [\n    {\n      \"a\": [\n        1\n      ],\n      \"k\": \"b\"\n    },\n    x] }\n",
        );
        assert_field(
            "s: {\n  a: 1, # one\n  z: 2, # two\n}\n",
            "s: {\n  a: 1, # one\n  z: 2, # two\n  f: [\n    {\n      \"k\": \"b\"\n    }\n  ],\n}\n",
        );
        assert_field("s: {\n  a: 1 }\n", "s: {\n  a: 1,\n  f: [\n    {\n      \"k\": \"b\"\n    }\n  ] }\n");
    }

    #[test]
    fn json_stays_json() {
        let json = json!({"s": {"a": 1, "e": []}});
        let at = vec![PathPart::Key("s")];
        for key in ["e", "f"] {
            let addition = Addition::Field { at: at.clone(), key, value: json!([{"k": "b"}]) };
            let mut meant = json.clone();
            addition.apply(&mut meant);
            let text = added(&format!("{json:#}\n"), &addition, &meant).unwrap();
            assert_eq!(text, format!("{meant:#}\n"));
        }
    }

    #[test]
    fn what_an_alias_stands_for_is_not_touched() {
        let addition = Addition::Field { at: vec![PathPart::Key("s")], key: "f", value: json!([1]) };
        assert_eq!(added("x: &x {a: 1}\ns: *x\n", &addition, &json!({})), None);
    }
}
