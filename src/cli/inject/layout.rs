//! Where the values of a YAML document stand in its text.
//!
//! The parser says where a value begins, but not always where it ends: for it, a quoted text ends behind the comment
//! that follows, and a block only where something else begins. Here every value ends with its own last character, so
//! that more can be put right behind it.

use std::ops::Range;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use crate::cli::inject::workload::PathPart;
use crate::rules::yaml::without_tabs_after_colons;

/// A value, and the bytes of the text that it is written in.
#[derive(Debug)]
pub(super) struct InsertionPoint {
    /// In bytes. Empty at the place where a value would be, if nothing is written.
    pub span: Range<usize>,
    /// How it is written, and what it consists of.
    pub kind: EditKind,
}

#[derive(Debug)]
pub(super) enum EditKind {
    Scalar(String),
    /// Its value is written elsewhere.
    Alias,
    Map(Style, Vec<(InsertionPoint, InsertionPoint)>),
    List(Style, Vec<InsertionPoint>),
}

/// How a map or a list is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    /// Line by line; the first key or dash is at this byte.
    Block(usize),
    /// Between brackets.
    Flow,
}

impl InsertionPoint {
    /// The places of a document that has been read before: its depth is not checked again.
    pub(super) fn of(text: &str) -> Option<InsertionPoint> {
        match Reader::new(text).document() {
            Err(Some(line)) => {
                // This moves no bytes.
                let mended = without_tabs_after_colons(text, line)?;
                Reader::new(&mended).document().ok()
            }
            read => read.ok(),
        }
    }

    pub(super) fn at(&self, path: &[PathPart]) -> Option<&InsertionPoint> {
        path.iter().try_fold(self, |place, step| match (&place.kind, step) {
            (_, PathPart::Key(name)) => place.field(name).map(|(_, value)| value),
            (EditKind::List(_, elements), PathPart::Index(index)) => elements.get(*index),
            _ => None,
        })
    }

    /// The key and the value of a field; of fields with the same key, the last one counts.
    pub(super) fn field(&self, name: &str) -> Option<(&InsertionPoint, &InsertionPoint)> {
        let EditKind::Map(_, fields) = &self.kind else { return None };
        let is_named = |key: &InsertionPoint| matches!(&key.kind, EditKind::Scalar(text) if text == name);
        fields.iter().rev().find(|(key, _)| is_named(key)).map(|(key, value)| (key, value))
    }
}

/// Turns events into places.
struct Reader<'a> {
    text: &'a str,
    /// The byte offset of each character, because the parser counts characters.
    bytes: Vec<usize>,
    parser: Parser<'a, StrInput<'a>>,
}

/// The line that the parser stopped at, if that is what happened.
type Stopped = Option<usize>;

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Reader<'a> {
        let bytes = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
        Reader { text, bytes, parser: Parser::new_from_str(text) }
    }

    fn document(&mut self) -> Result<InsertionPoint, Stopped> {
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentStart(_), _) => {}
                (event, span) => return self.place(event, span),
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Stopped> {
        let event = self.parser.next_event().ok_or(None)?;
        event.map_err(|error| Some(error.marker().line()))
    }

    fn byte(&self, marker: Marker) -> usize {
        self.bytes.get(marker.index()).copied().unwrap_or(self.text.len())
    }

    fn place(&mut self, event: Event<'a>, span: Span) -> Result<InsertionPoint, Stopped> {
        let (start, end) = (self.byte(span.start), self.byte(span.end));
        match event {
            Event::Alias(_) => Ok(InsertionPoint { span: start..end, kind: EditKind::Alias }),
            Event::Scalar(text, style, anchor, tag) => {
                let is_unwritten = text.is_empty() && style == ScalarStyle::Plain && anchor == 0 && tag.is_none();
                let span = match style {
                    _ if is_unwritten => self.unwritten(start),
                    ScalarStyle::Plain => start..end,
                    ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => start..self.behind_quote(start),
                    ScalarStyle::Literal | ScalarStyle::Folded => self.block(start..end, &text),
                };
                Ok(InsertionPoint { span, kind: EditKind::Scalar(text.into_owned()) })
            }
            Event::SequenceStart(..) => self.list(start, end),
            Event::MappingStart(..) => self.map(start, end),
            _ => Err(None),
        }
    }

    fn list(&mut self, start: usize, found: usize) -> Result<InsertionPoint, Stopped> {
        let mut elements: Vec<InsertionPoint> = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, closed) => {
                    let last = elements.last().map_or(found, |last| last.span.end);
                    let (style, end) = self.style(self.dash(found), last, closed);
                    return Ok(InsertionPoint { span: start..end, kind: EditKind::List(style, elements) });
                }
                (event, span) => elements.push(self.place(event, span)?),
            }
        }
    }

    fn map(&mut self, start: usize, found: usize) -> Result<InsertionPoint, Stopped> {
        let mut fields: Vec<(InsertionPoint, InsertionPoint)> = Vec::new();
        loop {
            match self.next()? {
                (Event::MappingEnd, closed) => {
                    let last = fields.last().map_or(found, |(_, value)| value.span.end);
                    let (style, end) = self.style(found, last, closed);
                    return Ok(InsertionPoint { span: start..end, kind: EditKind::Map(style, fields) });
                }
                (event, span) => {
                    let key = self.place(event, span)?;
                    let (event, span) = self.next()?;
                    fields.push((key, self.place(event, span)?));
                }
            }
        }
    }

    /// How a map or a list is written, and where it ends. Only an end that is a bracket has characters of its own.
    fn style(&self, first: usize, last: usize, closed: Span) -> (Style, usize) {
        match closed.is_empty() {
            true => (Style::Block(first), last),
            false => (Style::Flow, self.behind_bracket(self.byte(closed.start))),
        }
    }

    /// Where the bracket ends. The parser may take the comma behind the last field for it.
    fn behind_bracket(&self, found: usize) -> usize {
        let mut rest = &self.text[found..];
        loop {
            rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
            match rest.strip_prefix('#') {
                Some(comment) => rest = comment.split_once('\n').map_or("", |(_, below)| below),
                None => return self.text.len() - rest.len() + rest.chars().next().map_or(0, char::len_utf8),
            }
        }
    }

    /// Where the first dash is. For a list that is not indented, the parser names the place behind it; the dash then
    /// begins the line.
    fn dash(&self, found: usize) -> usize {
        let line = self.text[..found].rfind('\n').map_or(0, |end| end + 1);
        let spaces = self.text[line..].len() - self.text[line..].trim_start_matches(' ').len();
        line + spaces
    }

    /// Where a value would be if one were written: behind the colon, or behind what came before.
    fn unwritten(&self, found: usize) -> Range<usize> {
        let at = match self.text[found..].starts_with(':') {
            true => found + 1,
            false => self.text[..found].trim_end().len(),
        };
        at..at
    }

    fn behind_quote(&self, start: usize) -> usize {
        let mut chars = self.text[start..].char_indices().skip_while(|(_, c)| !matches!(c, '"' | '\'')).peekable();
        let Some((_, quote)) = chars.next() else { return start };
        while let Some((at, c)) = chars.next() {
            let is_escape = match quote {
                '"' => c == '\\',
                _ => c == quote && chars.peek().is_some_and(|(_, next)| *next == quote),
            };
            match c == quote {
                _ if is_escape => drop(chars.next()),
                true => return start + at + 1,
                false => {}
            }
        }
        self.text.len()
    }

    /// Where a block of text stands. The parser also counts the empty lines below, but they belong to the text only if
    /// it keeps them.
    fn block(&self, found: Range<usize>, text: &str) -> Range<usize> {
        let written = &self.text[..found.end];
        let end = match text.ends_with("\n\n") {
            true => written.rfind('\n').map_or(found.end, |end| end + 1),
            false => written.trim_end().len(),
        };
        found.start.min(end)..end
    }
}
