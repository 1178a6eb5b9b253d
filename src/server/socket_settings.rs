//! The unix socket of the gRPC port, as flags and as checked.
//!
//! Faults that show in the setting alone are refused here: a mode that is none, a path that no socket can have. Faults
//! that only the file system knows are found when the socket is made, in `server/socket_file.rs`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use thiserror::Error;

/// The most bytes in the path of a socket: 108 on Linux, of which the last is zero.
const PATH_BYTES_MAX: usize = 107;
/// The length of the name that the socket is made under, in the same directory, before it gets its own.
pub(crate) const TEMPORARY_NAME_BYTES: usize = 9;

#[derive(Args, Clone, Debug)]
pub struct SocketFlags {
    /// Serve gRPC on a unix socket at this path instead of the gRPC address and port
    #[arg(long, env = "GRPC_UDS", value_name = "PATH", help_heading = "Listeners")]
    pub grpc_uds: Option<PathBuf>,

    /// Who may connect to the unix socket, as the octal mode of its file
    #[arg(long, env = "TIDEGATE_UDS_MODE", value_name = "MODE", default_value = "660", help_heading = "Listeners")]
    pub uds_mode: String,
}

/// A unix socket that can be made, unless the file system objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketSettings {
    /// Without `unix:`, and short enough for a socket (107 bytes).
    pub path: PathBuf,
    /// Permission bits of the file, at most 0o777, with a w bit for somebody: connecting takes one.
    pub mode: u32,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum SocketSettingError {
    #[error("--uds-mode (TIDEGATE_UDS_MODE) is '{0}', which is not a file mode: write octal digits such as 660 or 666")]
    Mode(String),
    #[error(
        "--uds-mode (TIDEGATE_UDS_MODE) is {0}, so that nobody could connect: that takes a w bit, as in 660 or 666"
    )]
    ModeForNobody(String),
    #[error(
        "--grpc-uds (GRPC_UDS) is '{0}', which is an abstract socket: write a path such as /run/tidegate/grpc.sock"
    )]
    Abstract(PathBuf),
    #[error("--grpc-uds (GRPC_UDS) is '{0}', which has no file name: write a path such as /run/tidegate/grpc.sock")]
    NoName(PathBuf),
    #[error(
        "--grpc-uds (GRPC_UDS) is {bytes} bytes long, and a socket's path has at most {max}: \
         choose a path with a shorter {part}"
    )]
    TooLong { bytes: usize, max: usize, part: &'static str },
}

impl SocketSettings {
    pub(crate) fn new(flags: &SocketFlags) -> Result<Option<SocketSettings>, SocketSettingError> {
        let mode = mode(&flags.uds_mode)?;
        let Some(path) = &flags.grpc_uds else { return Ok(None) };
        Ok(Some(SocketSettings { path: checked(path)?, mode }))
    }

    /// The directory that the socket is made in.
    pub(crate) fn directory(&self) -> &Path {
        directory(&self.path)
    }
}

fn mode(text: &str) -> Result<u32, SocketSettingError> {
    let is_octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    let mode = mode.ok_or_else(|| SocketSettingError::Mode(text.to_owned()))?;
    if mode & 0o222 == 0 {
        return Err(SocketSettingError::ModeForNobody(text.to_owned()));
    }
    Ok(mode)
}

fn checked(path: &Path) -> Result<PathBuf, SocketSettingError> {
    // As gRPC clients write it.
    let path = path.to_str().and_then(|text| text.strip_prefix("unix:")).map_or(path, Path::new);
    if path.as_os_str().as_bytes().starts_with(b"@") {
        return Err(SocketSettingError::Abstract(path.to_owned()));
    }
    let bytes = path.as_os_str().as_bytes();
    if path.file_name().is_none() || bytes.ends_with(b"/") {
        return Err(SocketSettingError::NoName(path.to_owned()));
    }
    if bytes.len() > PATH_BYTES_MAX {
        return Err(SocketSettingError::TooLong { bytes: bytes.len(), max: PATH_BYTES_MAX, part: "directory or name" });
    }
    let directory_bytes_max = PATH_BYTES_MAX - TEMPORARY_NAME_BYTES - 1;
    if directory(path).as_os_str().len() > directory_bytes_max {
        let max = bytes.len() - (directory(path).as_os_str().len() - directory_bytes_max);
        return Err(SocketSettingError::TooLong { bytes: bytes.len(), max, part: "directory" });
    }
    Ok(path.to_owned())
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(path: &str, mode: &str) -> Result<SocketSettings, SocketSettingError> {
        let flags = SocketFlags { grpc_uds: Some(path.into()), uds_mode: mode.into() };
        SocketSettings::new(&flags).map(Option::unwrap)
    }

    #[test]
    fn modes_are_octal_and_let_somebody_in() {
        for (text, mode) in [("660", 0o660), ("0666", 0o666), ("777", 0o777), ("200", 0o200)] {
            assert_eq!(settings("/run/s", text).unwrap().mode, mode);
        }
        for text in ["", "8", "rw-rw----", "+660", "-1", "1777", "99999999999999999999", "0o660", " 660"] {
            assert_eq!(settings("/run/s", text), Err(SocketSettingError::Mode(text.into())));
        }
        assert_eq!(settings("/run/s", "440"), Err(SocketSettingError::ModeForNobody("440".into())));
    }

    #[test]
    fn a_bad_mode_is_refused_even_where_it_is_not_used() {
        let flags = SocketFlags { grpc_uds: None, uds_mode: "9".into() };
        assert!(SocketSettings::new(&flags).is_err());
    }

    #[test]
    fn paths_that_no_socket_can_have_are_refused() {
        assert_eq!(settings("relative.sock", "660").unwrap().directory(), Path::new("."));
        assert_eq!(settings("/s", "660").unwrap().directory(), Path::new("/"));
        assert!(matches!(settings("@name", "660"), Err(SocketSettingError::Abstract(_))));
        assert_eq!(settings("unix:/run/x", "660").unwrap().path, Path::new("/run/x"));
        for path in ["/", "/run/", "..", "/run/.."] {
            assert!(matches!(settings(path, "660"), Err(SocketSettingError::NoName(_))), "{path}");
        }
        let of_length = |bytes: usize| format!("/run/{}", "x".repeat(bytes - 5));
        assert!(settings(&of_length(107), "660").is_ok());
        let error = settings(&of_length(108), "660").unwrap_err().to_string();
        assert!(error.contains("is 108 bytes long") && error.contains("at most 107"), "{error}");
        let deep = |directory_bytes: usize| format!("{}/s", &of_length(directory_bytes));
        assert!(settings(&deep(97), "660").is_ok());
        let error = settings(&deep(98), "660").unwrap_err().to_string();
        assert!(error.contains("is 100 bytes long") && error.contains("at most 99"), "{error}");
    }
}
