//! The file of a unix socket: how it appears, whose it is, and when it is removed.
//!
//! A client that sees the path can connect, if the mode lets it, and gets an answer. So the socket is made under another
//! name in the same directory, gets its mode, listens, and is only then renamed to its path. That also replaces the file
//! of a process that was killed, without a moment in which there is none.
//!
//! Nothing else is ever replaced: neither a socket that somebody serves, nor a file that is not a socket. And nothing else
//! is ever removed: at the end the path may lead to a successor's socket, which has another inode. (Our inode can't be
//! given to another file as long as the socket is open.)

use std::fs::{self, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;

use crate::server::socket_settings::{SocketSettings, TEMPORARY_NAME_BYTES};

const BACKLOG: i32 = 4096;

/// Removes the socket's file when it is dropped, if the file is still the socket's.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode, which tell our file from a successor's.
    inode: (u64, u64),
}

/// Why the socket can't be opened.
#[derive(Debug, Error)]
#[error("can't open the unix socket {path}: {fault}, or choose another path with --grpc-uds (GRPC_UDS)")]
pub(crate) struct SocketError {
    /// The path that the operator has set, whichever file the fault is about.
    pub path: PathBuf,
    /// What went wrong, and what to do about it if the path is to stay.
    pub fault: SocketFault,
}

/// What is wrong with the path of a socket.
#[derive(Debug, Error)]
pub(crate) enum SocketFault {
    #[error("the directory {0} does not exist: create it")]
    NoDirectory(PathBuf),
    #[error("another process serves it: stop that one")]
    InUse,
    #[error("there is a file that is not a socket, which is left alone: remove it")]
    NotASocket,
    #[error("there is a socket, and it can't be told whether somebody serves it ({0}): remove it")]
    Unclear(io::Error),
    #[error("{0}: check the directory and its permissions")]
    Io(#[from] io::Error),
}

impl SocketFile {
    /// Makes the socket, listening and not blocking, and its file.
    pub(crate) fn create(settings: &SocketSettings) -> Result<(SocketFile, UnixListener), SocketError> {
        SocketFile::try_create(settings).map_err(|fault| SocketError { path: settings.path.clone(), fault })
    }

    fn try_create(settings: &SocketSettings) -> Result<(SocketFile, UnixListener), SocketFault> {
        if !settings.directory().is_dir() {
            return Err(SocketFault::NoDirectory(settings.directory().to_owned()));
        }
        ensure_free(&settings.path)?;
        let (socket, temporary) = bind(settings.directory())?;
        let opened = open(&socket, &temporary, settings);
        if opened.is_err() {
            // The operator has to hear of the first error, not of this one.
            let _ = fs::remove_file(&temporary);
        }
        Ok((SocketFile { path: settings.path.clone(), inode: opened? }, socket.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| inode(&found) == self.inode);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "can't remove the unix socket");
        }
    }
}

fn inode(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A path is free if there is nothing, or a socket that nobody serves. Two processes that start at the same moment may
/// both find it free; then the last one has the path, and the other's socket has no name.
fn ensure_free(path: &Path) -> Result<(), SocketFault> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !found.file_type().is_socket() {
        return Err(SocketFault::NotASocket);
    }
    match try_connect(path) {
        Ok(()) => Err(SocketFault::InUse),
        // Its queue is full, so there is somebody.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SocketFault::InUse),
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        Err(error) => Err(SocketFault::Unclear(error)),
    }
}

fn try_connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process that has stopped accepting must not hold up the start.
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

/// Binds a socket to a random name in the directory, which nobody knows.
fn bind(directory: &Path) -> io::Result<(Socket, PathBuf)> {
    let mut tries_left = 10;
    loop {
        let random = RandomState::new().hash_one(0u8) as u32;
        let name = format!(".{random:08x}");
        debug_assert_eq!(name.len(), TEMPORARY_NAME_BYTES);
        let temporary = directory.join(name);
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        tries_left -= 1;
        match socket.bind(&SockAddr::unix(&temporary)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries_left > 0 => {}
            bound => return bound.map(|()| (socket, temporary)),
        }
    }
}

/// Gives the socket its mode, makes it listen and renames it. Nobody can connect before the mode is in force, because the
/// socket does not listen before. Returns device and inode.
fn open(socket: &Socket, temporary: &Path, settings: &SocketSettings) -> io::Result<(u64, u64)> {
    fs::set_permissions(temporary, Permissions::from_mode(settings.mode))?;
    let inode = inode(&fs::symlink_metadata(temporary)?);
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    fs::rename(temporary, &settings.path)?;
    Ok(inode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn settings(path: PathBuf) -> SocketSettings {
        SocketSettings { path, mode: 0o620 }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn the_socket_has_its_mode_and_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path().join("s"));
        let (file, _listener) = SocketFile::create(&settings).unwrap();
        assert_eq!(fs::metadata(&settings.path).unwrap().mode() & 0o777, 0o620);
        assert_eq!(names(directory.path()), ["s"]);
        UnixStream::connect(file.path()).unwrap();
        drop(file);
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn what_was_left_behind_is_replaced_and_what_is_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path().join("s"));
        drop(UnixListener::bind(&settings.path).unwrap());
        let (_file, _listener) = SocketFile::create(&settings).unwrap();
        let again = SocketFile::create(&settings).unwrap_err();
        assert!(matches!(again.fault, SocketFault::InUse), "{again}");
        UnixStream::connect(&settings.path).unwrap();
    }

    #[test]
    fn what_is_not_a_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path().join("s"));
        fs::write(&settings.path, "precious").unwrap();
        assert!(matches!(SocketFile::create(&settings).unwrap_err().fault, SocketFault::NotASocket));
        assert_eq!(fs::read_to_string(&settings.path).unwrap(), "precious");
        fs::rename(&settings.path, directory.path().join("file")).unwrap();
        std::os::unix::fs::symlink("file", &settings.path).unwrap();
        assert!(matches!(SocketFile::create(&settings).unwrap_err().fault, SocketFault::NotASocket));
        assert_eq!(fs::read_to_string(&settings.path).unwrap(), "precious");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = SocketFile::create(&settings(directory.path().join("no/s"))).unwrap_err().to_string();
        assert!(missing.contains("/no does not exist"), "{missing}");
    }

    #[test]
    fn a_successor_keeps_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path().join("s"));
        let (first, first_listener) = SocketFile::create(&settings).unwrap();
        fs::remove_file(&settings.path).unwrap();
        let (_second, _second_listener) = SocketFile::create(&settings).unwrap();
        drop((first, first_listener));
        UnixStream::connect(&settings.path).unwrap();
    }
}
