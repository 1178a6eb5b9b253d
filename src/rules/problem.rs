//! What is wrong with a rule file: where, what, and what to write instead.
//!
//! Problems are collected, not thrown: a load reports everything that it finds in every file. Whether a problem stops
//! the load is its severity; `Strictness` decides it for what envoyproxy/ratelimit lets pass silently.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// A position in a file, both counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// A position and the file it is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    pub file: Arc<str>,
    #[serde(flatten)]
    pub position: Position,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.position.line, self.position.column)
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
    #[serde(flatten)]
    pub place: Place,
    pub severity: Severity,
    pub message: String,
    /// What to write instead, or what to do.
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

/// Collects the problems of a load.
#[derive(Debug, Default)]
pub struct Problems {
    strictness: Strictness,
    found: Vec<Problem>,
}

impl Problems {
    pub fn new(strictness: Strictness) -> Problems {
        Problems { strictness, found: Vec::new() }
    }

    pub fn error(&mut self, file: &Arc<str>, position: Position, message: impl Into<String>, help: impl Into<String>) {
        self.add(file, position, Severity::Error, message.into(), help.into());
    }

    pub fn warning(
        &mut self,
        file: &Arc<str>,
        position: Position,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(file, position, Severity::Warning, message.into(), help.into());
    }

    /// Something that envoyproxy/ratelimit accepts: an error, or a warning when lenient.
    pub fn tolerable(
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
        let place = Place { file: file.clone(), position };
        // Names from the files are quoted in messages; they must not be able to forge lines or colours.
        let [message, help] = [message, help].map(|text| match text.contains(char::is_control) {
            true => {
                text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() }).collect()
            }
            false => text,
        });
        self.found.push(Problem { place, severity, message, help });
    }

    pub fn count(&self) -> usize {
        self.found.len()
    }

    pub fn has_errors(&self) -> bool {
        self.found.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// In the order of files and lines. What several aliases of one anchor repeat is said once.
    pub fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort();
        self.found.dedup();
        self.found
    }
}
