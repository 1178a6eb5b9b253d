//! Rule files on disk: which files of a directory count, and their text.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::rules::problem::{Place, Position, Problem, Severity};
use crate::rules::{Loaded, Options, Ruleset, Source};

/// Larger files are refused unread. 100,000 rules are about 10 MiB.
const FILE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Loads a rule file, or the rule files of a directory.
pub fn load(path: &Path, options: &Options) -> Loaded {
    let mut unreadable = Vec::new();
    let mut sources = Vec::new();
    match rule_files(path) {
        Ok(files) if files.is_empty() => unreadable.push(problem(
            path,
            "no rule file found: the directory has no *.yaml or *.yml",
            "put a rule file there, or point --rules (TIDEGATE_RULES) at the right directory",
        )),
        Ok(files) => {
            for file in files {
                match read(&file) {
                    Ok(text) => sources.push(Source { name: name(&file), text }),
                    Err(problem) => unreadable.push(problem),
                }
            }
        }
        Err(error) => unreadable.push(problem(
            path,
            &format!("can't be read: {error}"),
            "point --rules (TIDEGATE_RULES) at a rule file or a directory of rule files",
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
        place: Place { file: name(file), position },
        severity: Severity::Error,
        message: message.to_owned(),
        help: help.to_owned(),
    }
}

/// The rule files under a path, in name order. A file that is named outright is read whatever its name.
fn rule_files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        // Follows links: a Kubernetes ConfigMap is made of them.
        if is_rule_file_name(&file) && fs::metadata(&file).is_ok_and(|metadata| metadata.is_file()) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// `*.yaml` and `*.yml`, but no dot files and nothing that an editor left behind.
fn is_rule_file_name(file: &Path) -> bool {
    let is_hidden = file
        .file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b".") || name.as_encoded_bytes().starts_with(b"#"));
    let extension = file.extension().and_then(|extension| extension.to_str());
    !is_hidden && matches!(extension, Some("yaml" | "yml"))
}

fn read(file: &Path) -> Result<String, Problem> {
    let unreadable =
        |error: std::io::Error| problem(file, &format!("can't be read: {error}"), "check the file and its permissions");
    let handle = fs::File::open(file).map_err(unreadable)?;
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

    #[test]
    fn only_rule_files_of_the_directory_are_read_in_name_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in ["b.yaml", "a.yml", ".hidden.yaml", "#a.yaml", "a.yaml~", "README.txt", "c.yaml.swp"] {
            fs::write(path.join(name), "domain: x\n").unwrap();
        }
        fs::create_dir(path.join("sub.yaml")).unwrap();
        let names: Vec<_> = rule_files(path).unwrap().iter().map(|file| file.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["a.yml", "b.yaml"]);
    }

    #[test]
    fn what_can_not_be_read_is_named_with_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::write(path.join("a.yaml"), b"domain: a\n# \xff\n").unwrap();
        fs::write(path.join("b.yaml"), "domain: ''\n").unwrap();
        let loaded = load(path, &Options::default());
        assert!(loaded.ruleset.is_none());
        let messages: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
        assert!(messages[0].contains("a.yaml:2:3: error: the file is not UTF-8"), "{messages:?}");
        assert!(messages[1].contains("b.yaml:1:9: error: config file cannot have empty domain"), "{messages:?}");
        assert!(load(&path.join("nothing"), &Options::default()).problems[0].message.contains("can't be read"));
        let empty = tempfile::tempdir().unwrap();
        assert!(load(empty.path(), &Options::default()).problems[0].message.contains("no rule file found"));
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_unread() {
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        file.as_file().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(load(file.path(), &Options::default()).problems[0].message.contains("larger than 32 MiB"));
    }
}
