//! What a path leads to at this moment, so that two moments can be compared.
//!
//! Comparing the file alone is not enough: Kubernetes replaces a link in the middle of the path, a deployment replaces
//! a whole directory. So the path is resolved here step by step, the way the system does it, and every step is kept:
//! each link with its target, each directory with its identity, and the end with its size and times. Whatever a reader
//! of the path would notice makes the trail a different one; what happens beside the path does not.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// How many links are followed: as many as Linux follows before it says that they lead in a circle.
const LINKS_MAX: usize = 40;

/// The steps that a path takes, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathSnapshot(Vec<LinkStep>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LinkStep {
    /// Where this step is, free of links.
    path: PathBuf,
    found: StepTarget,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum StepTarget {
    Link {
        target: PathBuf,
    },
    /// On the way. Its times are left out, because neighbours of the next step change them.
    Directory {
        device: u64,
        inode: u64,
    },
    /// The end. A directory at the end has other times as soon as an entry comes or goes.
    End {
        device: u64,
        inode: u64,
        size: u64,
        /// Seconds and nanoseconds since the epoch, like `changed`.
        modified: (i64, i64),
        changed: (i64, i64),
        is_directory: bool,
    },
    /// Nothing that can be followed. The kind tells a missing file from one that may not be seen.
    Nothing(io::ErrorKind),
}

impl StepTarget {
    fn on_the_way(metadata: &Metadata) -> StepTarget {
        StepTarget::Directory { device: metadata.dev(), inode: metadata.ino() }
    }

    fn end(metadata: &Metadata) -> StepTarget {
        StepTarget::End {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            is_directory: metadata.is_dir(),
        }
    }
}

impl PathSnapshot {
    pub(crate) fn of(path: &Path) -> PathSnapshot {
        let mut steps = Vec::new();
        // Where the walk stands, free of links; then the names still to go.
        let mut here = match path.is_absolute() {
            true => PathBuf::from("/"),
            false => std::env::current_dir().unwrap_or_default(),
        };
        let mut ahead: VecDeque<OsString> = names(path).collect();
        let mut links_left = LINKS_MAX;
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(name);
            let found = match look(&next, ahead.is_empty()) {
                StepTarget::Link { .. } if links_left == 0 => StepTarget::Nothing(io::ErrorKind::Other),
                found => found,
            };
            match &found {
                StepTarget::Link { target } => {
                    links_left -= 1;
                    for name in names(target).collect::<Vec<_>>().into_iter().rev() {
                        ahead.push_front(name);
                    }
                    if target.is_absolute() {
                        here = PathBuf::from("/");
                    }
                }
                StepTarget::Directory { .. } | StepTarget::End { .. } => here.clone_from(&next),
                StepTarget::Nothing(_) => ahead.clear(),
            }
            steps.push(LinkStep { path: next, found });
        }
        // `.`, `/` and paths that end with `..` have no last name to look at.
        if !matches!(steps.last(), Some(LinkStep { found: StepTarget::End { .. } | StepTarget::Nothing(_), .. })) {
            steps.push(LinkStep { found: look(&here, true), path: here });
        }
        PathSnapshot(steps)
    }

    /// The directories to watch: those that hold a link, and the one where the trail ends. For the trail to change,
    /// something has to happen in one of them, unless a directory on the way goes away itself.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().flat_map(|step| {
            let parent = match step.found {
                StepTarget::Directory { .. } => None,
                StepTarget::Link { .. } | StepTarget::End { .. } | StepTarget::Nothing(_) => step.path.parent(),
            };
            let itself = match step.found {
                StepTarget::End { is_directory: true, .. } => Some(step.path.as_path()),
                _ => None,
            };
            parent.into_iter().chain(itself)
        })
    }
}

/// The names of a path, with `..` among them.
fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn look(path: &Path, is_last: bool) -> StepTarget {
    let found = fs::symlink_metadata(path).and_then(|metadata| {
        if metadata.is_symlink() {
            return Ok(StepTarget::Link { target: fs::read_link(path)? });
        }
        if is_last {
            return Ok(StepTarget::end(&metadata));
        }
        if metadata.is_dir() {
            return Ok(StepTarget::on_the_way(&metadata));
        }
        Err(io::ErrorKind::NotADirectory.into())
    });
    found.unwrap_or_else(|error| StepTarget::Nothing(error.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn directories(path: &Path) -> Vec<PathBuf> {
        PathSnapshot::of(path).directories().map(Path::to_owned).collect()
    }

    #[test]
    fn a_trail_is_the_same_until_something_changes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "1").unwrap();
        let before = PathSnapshot::of(&file);
        fs::write(directory.path().join("neighbour"), "").unwrap();
        assert_eq!(PathSnapshot::of(&file), before, "a neighbour is not on the trail");
        fs::write(&file, "12").unwrap();
        assert_ne!(PathSnapshot::of(&file), before);
    }

    #[test]
    fn links_are_followed_whatever_they_look_like() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "").unwrap();
        symlink("../a/./b", root.join("a/up")).unwrap();
        symlink(root.join("a"), root.join("absolute")).unwrap();
        symlink("absolute/up/../up", root.join("both")).unwrap();
        let end = |path: &Path| PathSnapshot::of(path).0.pop().unwrap();
        let file = end(&root.join("a/b/file"));
        assert!(matches!(file.found, StepTarget::End { .. }));
        // `up/..` leads to where the link points, and up from there, as the system has it.
        fs::create_dir(root.join("a/b/up")).unwrap();
        assert_eq!(end(&root.join("absolute/up/file")), file);
        assert_eq!(end(&root.join("./a/../absolute/b/file")), file);
        assert!(matches!(end(&root.join("both/file")).found, StepTarget::End { .. }));
        assert_eq!(directories(&root.join("absolute/up/file")), [root.clone(), root.join("a"), root.join("a/b")]);
    }

    #[test]
    fn a_circle_and_a_missing_file_are_ends_too() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        symlink("there", root.join("here")).unwrap();
        symlink("here", root.join("there")).unwrap();
        assert!(matches!(PathSnapshot::of(&root.join("here/file")).0.last().unwrap().found, StepTarget::Nothing(_)));
        assert_eq!(directories(&root.join("no/such/file")), [root.as_path()], "where the first name would appear");
        assert!(directories(&root.join("..")).contains(&root.parent().unwrap().to_owned()));
        assert!(directories(Path::new(".")).contains(&std::env::current_dir().unwrap()));
        fs::write(root.join("plain"), "").unwrap();
        let through_a_file = PathSnapshot::of(&root.join("plain/file")).0.pop().unwrap();
        assert_eq!(through_a_file.found, StepTarget::Nothing(io::ErrorKind::NotADirectory));
    }
}
