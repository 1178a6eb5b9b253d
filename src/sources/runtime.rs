//! The directory layout of envoyproxy/ratelimit: rule files somewhere below `ROOT/SUBDIRECTORY/APPDIRECTORY`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::sources::files::entries;

/// Deeper directories are refused.
const DEPTH_MAX: usize = 16;
/// More files are refused too, but they are counted only when a directory is entered.
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
        let mut files = Vec::new();
        if self.takes_neighbours {
            let prefix = format!("{}.", self.application);
            let is_neighbour = |file: &Path| {
                file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
                    && file.is_file()
            };
            files.extend(entries(&self.base)?.into_iter().filter(|file| is_neighbour(file)));
        }
        match self.walk(&self.directory(), 0, &mut HashSet::new(), &mut files) {
            // There may be neighbours only.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !files.is_empty() => Ok(files),
            walked => walked.map(|()| files),
        }
    }

    /// `seen` has the directories that were searched: links may lead to one again.
    fn walk(
        &self,
        directory: &Path,
        depth: usize,
        seen: &mut HashSet<PathBuf>,
        files: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        // A directory that can't be searched may hold rules. It is an error of the whole load, so that they do not
        // vanish without a word.
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
        if !seen.insert(fs::canonicalize(directory).map_err(at)?) {
            return Ok(());
        }
        if depth > DEPTH_MAX || files.len() > FILES_MAX {
            let bounds = format!("more than {DEPTH_MAX} levels of directories or {FILES_MAX} files");
            return Err(at(io::Error::other(bounds)));
        }
        for path in entries(directory).map_err(at)? {
            if path.file_name().is_some_and(|name| self.ignores(name)) {
                continue;
            }
            // Follows links: a Kubernetes ConfigMap is made of them.
            if path.is_dir() {
                self.walk(&path, depth + 1, seen, files)?;
            } else {
                files.push(path);
            }
        }
        Ok(())
    }

    /// Names with two dots are Kubernetes' own: they lead to the same files again, by another way.
    fn ignores(&self, name: &OsStr) -> bool {
        let name = name.as_encoded_bytes();
        name.starts_with(b"..") || (self.ignores_dot_files && name.starts_with(b"."))
    }
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
