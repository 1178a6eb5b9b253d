//! When do files change? One answer for rules and for certificates.
//!
//! Events of the file system only wake this up. What counts is a comparison of [`PathSnapshot`]s, which is right whatever the
//! events were: lost, too many, or of a kind that nobody thought of. Without any events, as on some network file
//! systems, the comparison is made once a second.
//!
//! Whoever writes files often writes several, or one in pieces. So a change is reported when the files have been quiet
//! for a while, and at last after [`BUSY_MAX`] even if they never are. What was read while they were busy may have been
//! half a file, so then there is a second report when they are quiet.
//!
//! All of it happens on a thread of its own: a file system that hangs then delays a reload and nothing else.

use std::path::PathBuf;
use std::sync::mpsc as events;
use std::time::{Duration, Instant};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc as reports;

use crate::sources::path_snapshot::PathSnapshot;

/// How long the files have to stay as they are before a change is reported.
const QUIET: Duration = Duration::from_millis(100);
/// A change is reported after this long, however busy the files are.
const BUSY_MAX: Duration = Duration::from_millis(500);
/// How often the files are looked at without an event.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Events within this time are one wake-up, so that a busy directory costs little.
const GATHER: Duration = Duration::from_millis(20);

/// Tells when any of some files has changed. Stops looking when it is dropped.
#[derive(Debug)]
pub(crate) struct Changes(reports::Receiver<()>);

impl Changes {
    /// Watches the paths that the function returns, which is called anew for each look. They need not exist.
    ///
    /// The first look is taken before this returns, so that a change to anything that is read afterwards is reported.
    pub(crate) fn of(paths: impl Fn() -> Vec<PathBuf> + Send + 'static) -> Changes {
        // One report that nobody has fetched yet says it all.
        let (sender, receiver) = reports::channel(1);
        let looker = Looker { seen: look(&paths), paths, reports: sender };
        let started = std::thread::Builder::new().name("changes".into()).spawn(move || looker.run());
        if let Err(error) = started {
            tracing::error!(%error, "can't watch files, changes take effect on SIGHUP only");
        }
        Changes(receiver)
    }

    /// Waits for the next change. May be dropped and called again without missing one.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // Nobody watches, so there is nothing to tell.
            std::future::pending().await
        }
    }
}

fn look(paths: &impl Fn() -> Vec<PathBuf>) -> Vec<PathSnapshot> {
    paths().iter().map(|path| PathSnapshot::of(path)).collect()
}

struct Looker<P> {
    paths: P,
    seen: Vec<PathSnapshot>,
    reports: reports::Sender<()>,
}

impl<P: Fn() -> Vec<PathBuf>> Looker<P> {
    fn run(mut self) {
        while !self.reports.is_closed() {
            // Set before the comparison, so that no change falls in between. Set anew after each change, because a
            // watch stays with a directory that was moved away.
            let alarm = Alarm::at(&self.seen);
            while look(&self.paths) == self.seen {
                alarm.wait();
                if self.reports.is_closed() {
                    return;
                }
            }
            let mut is_quiet = self.settle();
            self.report();
            while !is_quiet && !self.reports.is_closed() {
                is_quiet = self.settle();
                self.report();
            }
        }
    }

    /// Waits until the files are quiet, or have been busy for too long. Returns whether they are quiet.
    fn settle(&mut self) -> bool {
        let began = Instant::now();
        self.seen = look(&self.paths);
        loop {
            std::thread::sleep(QUIET);
            let now = look(&self.paths);
            if now == self.seen {
                return true;
            }
            self.seen = now;
            if began.elapsed() + QUIET > BUSY_MAX {
                return false;
            }
        }
    }

    fn report(&self) {
        // Full means that a report is waiting to be fetched, closed that nobody will fetch any. Both are fine.
        let _ = self.reports.try_send(());
    }
}

/// Goes off when something happens in the directories that the trails depend on, and every [`POLL_INTERVAL`].
struct Alarm {
    /// Held because events end with it.
    _watcher: Option<RecommendedWatcher>,
    events: events::Receiver<()>,
}

impl Alarm {
    fn at(trails: &[PathSnapshot]) -> Alarm {
        let (sender, events) = events::sync_channel(1);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading, our own too, changes nothing.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                let _ = sender.try_send(());
            }
        });
        let mut watcher = match watcher {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::debug!(%error, "no events of the file system, files are looked at once a second");
                return Alarm { _watcher: None, events };
            }
        };
        let mut directories: Vec<_> = trails.iter().flat_map(PathSnapshot::directories).collect();
        directories.sort_unstable();
        directories.dedup();
        for directory in directories {
            // A directory that can't be watched is still looked at once a second.
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                tracing::debug!(%error, "no events of a directory, its files are looked at once a second");
            }
        }
        Alarm { _watcher: Some(watcher), events }
    }

    fn wait(&self) {
        match self.events.recv_timeout(POLL_INTERVAL) {
            Ok(()) => {
                std::thread::sleep(GATHER);
                let _ = self.events.try_recv();
            }
            Err(events::RecvTimeoutError::Timeout) => {}
            // Without a watcher there is nobody to wake this up.
            Err(events::RecvTimeoutError::Disconnected) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::time::timeout;

    /// How long a report may take: only one that never comes may fail a test.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Long enough for a report that should not come.
    const NEVER: Duration = Duration::from_millis(1300);

    fn changes_of<const N: usize>(paths: [&Path; N]) -> Changes {
        let paths = paths.map(Path::to_owned).to_vec();
        Changes::of(move || paths.clone())
    }

    async fn is_reported(changes: &mut Changes) -> bool {
        timeout(PATIENCE, changes.next()).await.is_ok()
    }

    async fn is_silent(changes: &mut Changes) -> bool {
        timeout(NEVER, changes.next()).await.is_err()
    }

    /// Writes in one step: one that is cut in two by a busy machine would be two changes.
    fn overwrite(file: &Path, text: &str) {
        let mut file = fs::File::options().write(true).open(file).unwrap();
        assert_eq!(file.write(text.as_bytes()).unwrap(), text.len());
    }

    fn rename_into(file: &Path, text: &str) {
        let new = file.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    #[tokio::test]
    async fn each_way_of_changing_a_file_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let mut changes = changes_of([&file]);
        let ways: [(&str, &dyn Fn()); 7] = [
            ("appears", &|| rename_into(&file, "a")),
            ("written in place", &|| overwrite(&file, "b")),
            ("renamed into place", &|| rename_into(&file, "c")),
            ("removed", &|| fs::remove_file(&file).unwrap()),
            ("appears again", &|| rename_into(&file, "d")),
            ("becomes a link", &|| {
                fs::write(directory.path().join("target"), "d").unwrap();
                symlink("target", directory.path().join("link")).unwrap();
                fs::rename(directory.path().join("link"), &file).unwrap();
            }),
            ("written behind the link", &|| overwrite(&file, "e")),
        ];
        for (way, change) in ways {
            change();
            assert!(is_reported(&mut changes).await, "{way}");
        }
        assert!(is_silent(&mut changes).await, "no more reports than changes");
    }

    #[tokio::test]
    async fn a_swap_of_kubernetes_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let version = |name: &str, text: &str| {
            fs::create_dir(root.join(name)).unwrap();
            fs::write(root.join(name).join("tls.crt"), text).unwrap();
            symlink(name, root.join("..data_tmp")).unwrap();
            fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        };
        version("..1", "a");
        symlink("..data/tls.crt", root.join("tls.crt")).unwrap();
        let mut changes = changes_of([&root.join("tls.crt")]);
        for name in ["..2", "..3"] {
            version(name, "b");
            assert!(is_reported(&mut changes).await, "{name}");
        }
        fs::remove_dir_all(root.join("..1")).unwrap();
        assert!(is_silent(&mut changes).await, "the old version is of no interest");
    }

    #[tokio::test]
    async fn directories_above_may_be_swapped_replaced_and_missing() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for name in ["one", "two"] {
            fs::create_dir_all(root.join(name).join("deep")).unwrap();
            fs::write(root.join(name).join("deep/file"), "same").unwrap();
        }
        symlink("one", root.join("current")).unwrap();
        let mut changes = changes_of([&root.join("current/deep/file")]);

        symlink("two", root.join("next")).unwrap();
        fs::rename(root.join("next"), root.join("current")).unwrap();
        assert!(is_reported(&mut changes).await, "a link above the directory");
        fs::rename(root.join("two"), root.join("gone")).unwrap();
        assert!(is_reported(&mut changes).await, "the directory above is gone");
        fs::rename(root.join("one"), root.join("two")).unwrap();
        assert!(is_reported(&mut changes).await, "another in its place");
        fs::write(root.join("two/deep/file"), "new").unwrap();
        assert!(is_reported(&mut changes).await, "and its file is followed");
        fs::remove_dir_all(root.join("two")).unwrap();
        assert!(is_reported(&mut changes).await, "all is gone");
        fs::create_dir_all(root.join("two/deep")).unwrap();
        fs::write(root.join("two/deep/file"), "back").unwrap();
        assert!(is_reported(&mut changes).await, "and back");
    }

    #[tokio::test]
    async fn entries_of_a_directory_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        let mut changes = Changes::of(move || {
            let entries = fs::read_dir(&root).into_iter().flatten().flatten().map(|entry| entry.path());
            entries.chain([root.clone()]).collect()
        });
        fs::write(directory.path().join("a"), "1").unwrap();
        assert!(is_reported(&mut changes).await, "a new file");
        fs::write(directory.path().join("a"), "2").unwrap();
        assert!(is_reported(&mut changes).await, "which is written to");
        fs::remove_file(directory.path().join("a")).unwrap();
        assert!(is_reported(&mut changes).await, "and removed");
    }

    #[tokio::test]
    async fn a_change_is_reported_when_it_is_over_and_neighbours_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let [file, neighbour] = ["file", "neighbour"].map(|name| directory.path().join(name));
        fs::write(&file, "a").unwrap();
        let mut changes = changes_of([&file]);
        fs::write(&neighbour, "a").unwrap();
        fs::read(&file).unwrap();
        assert!(is_silent(&mut changes).await);
        for text in ["b", "c", "d"] {
            let began = Instant::now();
            overwrite(&file, text);
            assert!(is_reported(&mut changes).await);
            assert!(began.elapsed() >= QUIET, "{:?}", began.elapsed());
        }
    }

    #[tokio::test]
    async fn files_that_are_never_quiet_are_reported_all_the_same_and_once_more_when_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let mut changes = changes_of([&file]);
        let is_over = Arc::new(AtomicBool::new(false));
        let (seen, path) = (is_over.clone(), file.clone());
        let began = Instant::now();
        let writer = std::thread::spawn(move || {
            let (mut text, mut written, mut pause) = (String::new(), Instant::now(), Duration::ZERO);
            while !seen.load(Ordering::Relaxed) {
                text.push('x');
                fs::write(&path, &text).unwrap();
                pause = pause.max(written.elapsed());
                written = Instant::now();
                // The pace of the writer, well above that of the looks.
                std::thread::sleep(Duration::from_millis(5));
            }
            pause
        });
        assert!(is_reported(&mut changes).await);
        let elapsed = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let pause = writer.join().unwrap();
        // On a machine with other things to do, the writer may have been quiet for long enough.
        assert!(elapsed >= BUSY_MAX - QUIET || pause >= QUIET / 2, "after {elapsed:?}, at most {pause:?} quiet");
        assert!(is_reported(&mut changes).await, "the last words are not missed");
        // One report may have waited to be fetched, and one been due, when the last words were written.
        let mut surplus = 0;
        while !is_silent(&mut changes).await {
            surplus += 1;
        }
        assert!(surplus <= 2, "{surplus} more reports");
    }

    #[tokio::test]
    async fn a_change_that_nobody_waited_for_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let mut changes = changes_of([&file]);
        // The result does not matter: the wait is given up.
        let _ = timeout(Duration::from_millis(1), changes.next()).await;
        fs::write(&file, "a").unwrap();
        // The time that a caller spends on other things.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(is_reported(&mut changes).await);
    }
}
