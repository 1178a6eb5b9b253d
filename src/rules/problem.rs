//! What is wrong with a rule file: where, what, and what to write instead.
//!
//! Problems are collected, not thrown: a load reports everything that it finds in every file. The severity of a problem
//! says whether it stops the load; `Strictness` decides that for what envoyproxy/ratelimit lets pass silently.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// A position in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// Counted from 1, through all documents of the text.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
}

/// A position and the file it is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FilePosition {
    /// The name of the [`RuleText`](crate::rules::RuleText): a path, or `xds:` and a resource.
    pub file: Arc<str>,
    /// Line and column, which JSON has beside `file`.
    #[serde(flatten)]
    pub position: Position,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names of files and of a management server's resources may hold any character, line breaks too.
        write!(f, "{}:{}:{}", escaped(&self.file), self.position.line, self.position.column)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The files are not loaded.
    Error,
    /// The files are loaded, and probably do not do what they seem to.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        })
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Problem {
    /// Where the faulty value stands, or the map that lacks one.
    #[serde(flatten)]
    pub place: FilePosition,
    /// Whether it stops the load.
    pub severity: Severity,
    /// What is wrong. `Problems` escapes its control characters and cuts it after `TEXT_BYTES_MAX`.
    pub message: String,
    /// What to write instead, or what to do; escaped and cut like `message`.
    pub help: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}\n    help: {}", self.place, self.severity, self.message, self.help)
    }
}

/// What becomes of a file that envoyproxy/ratelimit would load without doing what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// It is an error.
    #[default]
    Strict,
    /// It loads as it does there, with a warning.
    Lenient,
}

/// How many problems of one severity are kept. A load with more comes from a broken generator, or from someone who
/// means harm.
pub(crate) const LISTED_MAX: usize = 1000;
/// The longest message, and the longest help. They quote names from the files.
const TEXT_BYTES_MAX: usize = 2000;

/// Collects the problems of a load.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    strictness: Strictness,
    errors: UniqueProblems,
    warnings: UniqueProblems,
    /// How often something was reported, repeats included.
    count: usize,
}

/// The problems of one severity, each kept once: several aliases of one anchor repeat its problems.
#[derive(Debug, Default)]
struct UniqueProblems {
    found: BTreeSet<Problem>,
    left_out: usize,
    /// The place of the first one that was left out.
    left_out_at: Option<FilePosition>,
}

impl UniqueProblems {
    fn add(&mut self, problem: Problem) {
        if self.found.len() < LISTED_MAX {
            self.found.insert(problem);
        } else if !self.found.contains(&problem) {
            self.left_out += 1;
            self.left_out_at.get_or_insert(problem.place);
        }
    }

    /// One problem that stands for all that were left out; `None` if none was.
    fn rest(&self, severity: Severity) -> Option<Problem> {
        Some(Problem {
            place: self.left_out_at.clone()?,
            severity,
            message: format!("{severity}s that are not listed: {}, the first of them here", self.left_out),
            help: format!("mend the {LISTED_MAX} that are listed, and check again"),
        })
    }
}

impl Problems {
    pub(crate) fn new(strictness: Strictness) -> Problems {
        Problems { strictness, ..Problems::default() }
    }

    pub(crate) fn error(
        &mut self,
        file: &Arc<str>,
        position: Position,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(file, position, Severity::Error, message.into(), help.into());
    }

    pub(crate) fn warning(
        &mut self,
        file: &Arc<str>,
        position: Position,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(file, position, Severity::Warning, message.into(), help.into());
    }

    /// Reports something that envoyproxy/ratelimit accepts: as an error, or as a warning if lenient.
    pub(crate) fn tolerable(
        &mut self,
        file: &Arc<str>,
        position: Position,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let severity = match self.strictness {
            Strictness::Strict => Severity::Error,
            Strictness::Lenient => Severity::Warning,
        };
        self.add(file, position, severity, message.into(), help.into());
    }

    fn add(&mut self, file: &Arc<str>, position: Position, severity: Severity, message: String, help: String) {
        let place = FilePosition { file: file.clone(), position };
        let [message, help] = [message, help].map(presentable);
        self.count += 1;
        let problem = Problem { place, severity, message, help };
        match severity {
            Severity::Error => self.errors.add(problem),
            Severity::Warning => self.warnings.add(problem),
        }
    }

    /// How often something was reported, repeats included.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.found.is_empty()
    }

    /// Whether further errors are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.found.len() >= LISTED_MAX
    }

    /// Returns each problem once, in the order of files and lines, and at the end how many were left out.
    pub(crate) fn into_sorted(self) -> Vec<Problem> {
        let rest = [self.errors.rest(Severity::Error), self.warnings.rest(Severity::Warning)];
        let mut all: Vec<Problem> = self.errors.found.into_iter().chain(self.warnings.found).collect();
        all.sort();
        all.extend(rest.into_iter().flatten());
        all
    }
}

/// Names from the files are quoted in messages; they must not be able to forge lines or colours, nor to flood the log.
fn presentable(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    escaped(&text).into_owned()
}

/// Writes control characters as escapes.
fn escaped(text: &str) -> Cow<'_, str> {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    match text.contains(char::is_control) {
        true => text.chars().map(escape).collect::<String>().into(),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(lines: impl IntoIterator<Item = usize>) -> Problems {
        let mut problems = Problems::default();
        let file: Arc<str> = "f.yaml".into();
        for line in lines {
            problems.error(&file, Position { line, column: 1 }, "wrong", "mend it");
        }
        problems
    }

    #[test]
    fn what_is_said_a_million_times_is_kept_once() {
        let found = problems((0..1_000_000).map(|number| number % 3));
        assert_eq!((found.count(), found.errors.found.len()), (1_000_000, 3));
        assert_eq!(found.into_sorted().len(), 3);
    }

    #[test]
    fn a_list_that_is_full_says_how_many_are_missing() {
        let mut found = problems(1..=LISTED_MAX + 7);
        found.warning(&"f.yaml".into(), Position { line: 1, column: 2 }, "doubtful", "look");
        assert!(found.has_errors() && found.is_full());
        let sorted = found.into_sorted();
        assert_eq!(sorted.len(), LISTED_MAX + 2, "errors do not push warnings out");
        let last = sorted.last().unwrap();
        assert_eq!((last.severity, last.place.position.line), (Severity::Error, LISTED_MAX + 1));
        assert!(last.message.contains("not listed: 7,"), "{last}");
        assert_eq!(problems(1..=LISTED_MAX).into_sorted().len(), LISTED_MAX, "nothing was left out");
    }

    #[test]
    fn a_name_does_not_make_a_message_long() {
        let mut found = Problems::default();
        found.error(&"f.yaml".into(), Position::default(), "x".repeat(1 << 20), "ü".repeat(1 << 20));
        let [problem] = &found.into_sorted()[..] else { panic!("one") };
        assert!(problem.message.len() < 2100 && problem.help.len() < 2100);
    }

    #[test]
    fn the_name_of_a_file_can_not_forge_lines() {
        let place =
            FilePosition { file: "xds:a\nERROR forged\u{1b}[31m".into(), position: Position { line: 1, column: 2 } };
        assert_eq!(place.to_string(), "xds:a\\nERROR forged\\u{1b}[31m:1:2");
    }
}
