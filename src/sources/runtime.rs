//! The directory layout of envoyproxy/ratelimit: rule files somewhere below `ROOT/SUBDIRECTORY/APPDIRECTORY`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Deeper directories are refused.
const DEPTH_MAX: usize = 16;
/// More files are refused too, as soon as one is found that is too many.
const FILES_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDirectory {
    /// `ROOT/SUBDIRECTORY`.
    pub base: PathBuf,
    /// `APPDIRECTORY`.
    pub application: String,
    /// Files beside the application's directory count too if their name begins with its name and a dot.
    pub takes_neighbours: bool,
    /// Whether files and directories are left out whose name begins with a dot. Those with two dots always are.
    pub ignores_dot_files: bool,
}

impl RuntimeDirectory {
    /// The application's own directory, where all files but the neighbours are.
    pub fn directory(&self) -> PathBuf {
        self.base.join(self.application.trim_start_matches('/'))
    }

    /// Every file that may hold rules. One that can't be looked at is among them: it fails when it is read.
    pub fn files(&self) -> io::Result<Vec<PathBuf>> {
        self.files_up_to(FILES_MAX)
    }

    fn files_up_to(&self, files_max: usize) -> io::Result<Vec<PathBuf>> {
        let mut search = FileSearch { layout: self, files_max, files: Vec::new(), seen: HashSet::new() };
        if self.takes_neighbours {
            search.neighbours()?;
        }
        match search.below(&self.directory(), 0) {
            // There may be neighbours only.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !search.files.is_empty() => Ok(search.files),
            searched => searched.map(|()| search.files),
        }
    }

    /// Names with two dots are Kubernetes' own: they lead to the same files again, by another way.
    fn ignores(&self, name: &OsStr) -> bool {
        let name = name.as_encoded_bytes();
        name.starts_with(b"..") || (self.ignores_dot_files && name.starts_with(b"."))
    }
}

/// Goes through the directories, and ends with an error where there are too many or too much in them.
struct FileSearch<'d> {
    layout: &'d RuntimeDirectory,
    files_max: usize,
    /// What is found so far.
    files: Vec<PathBuf>,
    /// The directories that were searched: links may lead to one again.
    seen: HashSet<PathBuf>,
}

impl FileSearch<'_> {
    /// Takes the files beside the application's directory.
    fn neighbours(&mut self) -> io::Result<()> {
        let prefix = format!("{}.", self.layout.application);
        for entry in fs::read_dir(&self.layout.base)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name.starts_with(prefix.as_bytes()) && path.is_file() {
                self.take(path).map_err(|error| at(&self.layout.base, &error))?;
            }
        }
        Ok(())
    }

    /// Takes the files of a directory and of those below it. A directory that can't be searched may hold rules. It is an
    /// error of the whole load, so that they do not vanish without a word.
    fn below(&mut self, directory: &Path, depth: usize) -> io::Result<()> {
        let located = |error: io::Error| at(directory, &error);
        if !self.seen.insert(fs::canonicalize(directory).map_err(located)?) {
            return Ok(());
        }
        if depth > DEPTH_MAX {
            return Err(located(self.out_of_bounds()));
        }
        // One entry after the other: a directory with too many is not held in memory first.
        for entry in fs::read_dir(directory).map_err(located)? {
            let path = entry.map_err(located)?.path();
            if path.file_name().is_some_and(|name| self.layout.ignores(name)) {
                continue;
            }
            // Follows links: a Kubernetes ConfigMap is made of them.
            if path.is_dir() {
                self.below(&path, depth + 1)?;
            } else {
                self.take(path).map_err(located)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, file: PathBuf) -> io::Result<()> {
        if self.files.len() == self.files_max {
            return Err(self.out_of_bounds());
        }
        self.files.push(file);
        Ok(())
    }

    fn out_of_bounds(&self) -> io::Error {
        io::Error::other(format!("more than {DEPTH_MAX} levels of directories or {} files", self.files_max))
    }
}

/// Says in which directory an error occurred.
fn at(directory: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn layout(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "domain: d\n").unwrap();
        }
        root
    }

    fn found(root: &Path, change: impl Fn(&mut RuntimeDirectory)) -> Vec<String> {
        let mut directory = RuntimeDirectory {
            base: root.join("ratelimit"),
            application: "config".into(),
            takes_neighbours: true,
            ignores_dot_files: true,
        };
        change(&mut directory);
        let name = |file: &PathBuf| file.strip_prefix(root).unwrap().display().to_string();
        let mut names: Vec<String> = directory.files().unwrap().iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_found_in_the_directory_below_it_and_beside_it() {
        let root = layout(&[
            "ratelimit/config/a.yaml",
            "ratelimit/config/sub/b.yaml",
            "ratelimit/config/.hidden.yaml",
            "ratelimit/config.yaml",
            "ratelimit/configuration.yaml",
            "ratelimit/other/c.yaml",
        ]);
        let inside = ["ratelimit/config/a.yaml", "ratelimit/config/sub/b.yaml"];
        let beside = ["ratelimit/config.yaml", inside[0], inside[1]];
        assert_eq!(found(root.path(), |_| {}), beside);
        assert_eq!(found(root.path(), |it| it.takes_neighbours = false), inside);
        let hidden = found(root.path(), |it| (it.ignores_dot_files, it.takes_neighbours) = (false, false));
        assert_eq!(hidden, ["ratelimit/config/.hidden.yaml", inside[0], inside[1]]);
    }

    #[test]
    fn a_config_map_is_read_once_and_a_circle_ends() {
        let root = layout(&["ratelimit/config/..2026_11/a.yaml"]);
        let config = root.path().join("ratelimit/config");
        symlink("..2026_11", config.join("..data")).unwrap();
        symlink("..data/a.yaml", config.join("a.yaml")).unwrap();
        assert_eq!(found(root.path(), |it| it.ignores_dot_files = false), ["ratelimit/config/a.yaml"]);
        symlink(".", config.join("circle")).unwrap();
        assert_eq!(found(root.path(), |_| {}), ["ratelimit/config/a.yaml"]);
    }

    #[test]
    fn more_files_than_the_bound_are_refused_wherever_they_are() {
        for files in [
            ["ratelimit/config/a.yaml", "ratelimit/config/b.yaml", "ratelimit/config/c.yaml"],
            ["ratelimit/config/a.yaml", "ratelimit/config/one/b.yaml", "ratelimit/config/two/c.yaml"],
            ["ratelimit/config.a.yaml", "ratelimit/config.b.yaml", "ratelimit/config.c.yaml"],
        ] {
            let root = layout(&files);
            let directory = RuntimeDirectory {
                base: root.path().join("ratelimit"),
                application: "config".into(),
                takes_neighbours: true,
                ignores_dot_files: true,
            };
            assert_eq!(directory.files_up_to(3).unwrap().len(), 3, "{files:?}");
            let error = directory.files_up_to(2).unwrap_err().to_string();
            assert!(error.contains("ratelimit") && error.contains("or 2 files"), "{files:?}: {error}");
        }
    }

    #[test]
    fn what_can_not_be_searched_is_an_error_even_beside_good_files() {
        let root = layout(&["ratelimit/config.yaml", "ratelimit/config/a.yaml"]);
        let mut deep = root.path().join("ratelimit/config");
        for _ in 0..=DEPTH_MAX {
            deep = deep.join("deeper");
        }
        fs::create_dir_all(&deep).unwrap();
        let directory = RuntimeDirectory {
            base: root.path().join("ratelimit"),
            application: "config".into(),
            takes_neighbours: true,
            ignores_dot_files: true,
        };
        assert!(directory.files().unwrap_err().to_string().contains("more than 16 levels"));
        fs::remove_dir_all(root.path().join("ratelimit/config")).unwrap();
        assert_eq!(directory.files().unwrap().len(), 1, "neighbours only");
        fs::write(root.path().join("ratelimit/config"), "").unwrap();
        assert!(directory.files().is_err(), "not a directory");
    }
}
