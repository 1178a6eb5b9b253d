//! Rule files on disk: which files of a directory count, and their text.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::rules::problem::{FilePosition, Position, Problem, Severity};
use crate::rules::{LoadResult, Options, RuleText, Ruleset};
use crate::sources::runtime::RuntimeDirectory;

/// Larger files are refused; no more than one byte beyond this is read of them. 100,000 rules are about 10 MiB.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Where rule files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file, or a directory. Of a directory its own rule files count, not those in directories below it.
    Path(PathBuf),
    /// The layout of envoyproxy/ratelimit.
    Runtime(RuntimeDirectory),
}

impl Location {
    /// The rule files, in name order.
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let (mut files, ignores_dot_files) = match self {
            Location::Path(path) if !fs::metadata(path)?.is_dir() => return Ok(vec![path.clone()]),
            Location::Path(path) => (files_of(path)?, true),
            Location::Runtime(directory) => (directory.files()?, directory.ignores_dot_files),
        };
        files.retain(|file| is_rule_file_name(file, ignores_dot_files));
        files.sort();
        Ok(files)
    }

    /// What to look at to notice a change: the files, or where they would be.
    pub fn watched(&self) -> Vec<PathBuf> {
        match self.files() {
            Ok(files) if !files.is_empty() => files,
            _ => vec![self.directory()],
        }
    }

    fn directory(&self) -> PathBuf {
        match self {
            Location::Path(path) => path.clone(),
            Location::Runtime(directory) => directory.directory(),
        }
    }

    fn settings(&self) -> &'static str {
        match self {
            Location::Path(_) => "--rules (TIDEGATE_RULES)",
            Location::Runtime(_) => "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY",
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory().display().fmt(f)
    }
}

/// Loads the rule files of a location, as a whole.
pub fn load(location: &Location, options: &Options) -> LoadResult {
    let mut unreadable = Vec::new();
    let mut sources = Vec::new();
    match location.files() {
        Ok(files) if files.is_empty() => unreadable.push(problem(
            &location.directory(),
            "no rule file found: the directory has no *.yaml or *.yml",
            &format!("put a rule file there, or point {} at the right directory", location.settings()),
        )),
        Ok(files) => {
            for file in files {
                match read(&file) {
                    Ok(text) => sources.push(RuleText { name: name(&file), text }),
                    Err(problem) => unreadable.push(problem),
                }
            }
        }
        Err(error) => unreadable.push(problem(
            &location.directory(),
            &format!("can't be read: {error}"),
            &format!("point {} at a rule file or a directory of rule files", location.settings()),
        )),
    }
    let mut loaded = Ruleset::load(&sources, options);
    if !unreadable.is_empty() {
        loaded.ruleset = None;
        loaded.problems.extend(unreadable);
        loaded.problems.sort();
    }
    loaded
}

fn name(file: &Path) -> Arc<str> {
    file.display().to_string().into()
}

fn problem(file: &Path, message: &str, help: &str) -> Problem {
    problem_at(file, Position { line: 1, column: 1 }, message, help)
}

fn problem_at(file: &Path, position: Position, message: &str, help: &str) -> Problem {
    Problem {
        place: FilePosition { file: name(file), position },
        severity: Severity::Error,
        message: message.to_owned(),
        help: help.to_owned(),
    }
}

/// Every entry of a directory that may be a file. One that can't be looked at is among them, such as a link that leads
/// nowhere: it fails when it is read, so that its rules do not vanish without a word.
fn files_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = entries(directory)?;
    paths.retain(|path| !path.is_dir());
    Ok(paths)
}

/// Everything in a directory.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// Opens a regular file. Anything else, such as a pipe, is an error, because it could keep us waiting.
pub fn open_regular(file: &Path) -> io::Result<fs::File> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::File::open(file)
}

/// `*.yaml` and `*.yml`, but nothing that an editor left behind.
fn is_rule_file_name(file: &Path, ignores_dot_files: bool) -> bool {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    let is_leftover = name.starts_with(b"#") || name.starts_with(b".#") || name.starts_with(b"..");
    let is_hidden = ignores_dot_files && name.starts_with(b".");
    let extension = file.extension().and_then(|extension| extension.to_str());
    !is_hidden && !is_leftover && matches!(extension, Some("yaml" | "yml"))
}

fn read(file: &Path) -> Result<String, Problem> {
    let unreadable =
        |error: std::io::Error| problem(file, &format!("can't be read: {error}"), "check the file and its permissions");
    let handle = open_regular(file).map_err(unreadable)?;
    let mut bytes = Vec::new();
    handle.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let message = format!("the file is larger than {} MiB", FILE_BYTES_MAX / 1024 / 1024);
        return Err(problem(file, &message, "split it into several files or domains"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line_start = valid.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        let position = Position {
            line: valid.iter().filter(|byte| **byte == b'\n').count() + 1,
            column: String::from_utf8_lossy(&valid[line_start..]).chars().count() + 1,
        };
        problem_at(file, position, "the file is not UTF-8 text", "save it as UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_path(path: &Path) -> LoadResult {
        load(&Location::Path(path.to_owned()), &Options::default())
    }

    #[test]
    fn only_rule_files_of_the_directory_are_read_in_name_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in ["b.yaml", "a.yml", ".hidden.yaml", "#a.yaml", "a.yaml~", "README.txt", "c.yaml.swp"] {
            fs::write(path.join(name), "domain: x\n").unwrap();
        }
        fs::create_dir(path.join("sub.yaml")).unwrap();
        let names: Vec<_> = Location::Path(path.to_owned())
            .files()
            .unwrap()
            .iter()
            .map(|file| file.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["a.yml", "b.yaml"]);
    }

    #[test]
    fn what_can_not_be_read_is_named_with_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::write(path.join("a.yaml"), b"domain: a\n# \xff\n").unwrap();
        fs::write(path.join("b.yaml"), "domain: ''\n").unwrap();
        let loaded = load_path(path);
        assert!(loaded.ruleset.is_none());
        let messages: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
        assert!(messages[0].contains("a.yaml:2:3: error: the file is not UTF-8"), "{messages:?}");
        assert!(messages[1].contains("b.yaml:1:9: error: config file cannot have empty domain"), "{messages:?}");
        assert!(load_path(&path.join("nothing")).problems[0].message.contains("can't be read"));
        let empty = tempfile::tempdir().unwrap();
        assert!(load_path(empty.path()).problems[0].message.contains("no rule file found"));
    }

    #[test]
    fn a_rule_file_that_can_not_be_read_is_an_error_and_not_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::write(path.join("a.yaml"), "domain: a\n").unwrap();
        assert!(load_path(path).ruleset.is_some());
        std::os::unix::fs::symlink("nowhere", path.join("b.yaml")).unwrap();
        let loaded = load_path(path);
        assert!(loaded.ruleset.is_none());
        assert!(loaded.problems[0].to_string().contains("b.yaml:1:1: error: can't be read: No such file"));
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("rules.yaml");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for location in [pipe.as_path(), directory.path()] {
            let problem = load_path(location).problems.remove(0).to_string();
            assert!(problem.contains("it is not a regular file"), "{problem}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_unread() {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        file.as_file().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(load_path(file.path()).problems[0].message.contains("larger than 32 MiB"));
    }
}
