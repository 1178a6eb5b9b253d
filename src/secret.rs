//! Text that nobody may read in a log: passwords, and the secret that sensitive values are hashed with.
//!
//! [`Secret`] shows itself as `<redacted>` wherever it is formatted, so that no later log line or error can give it away.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use thiserror::Error;

/// Somebody could guess a shorter secret by trying all of them.
const SECRET_BYTES_MIN: usize = 16;

/// Text that only [`Secret::expose`] gives away.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// A secret that nobody else knows: 128 random bits in hex.
    pub fn random() -> Secret {
        Secret(format!("{:032x}", rand::random::<u128>()))
    }

    /// The text itself. Never show anything that is made of it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Secret, Infallible> {
        Ok(Secret::new(text))
    }
}

#[derive(Args, Clone, Debug)]
pub struct SecretFlags {
    /// File with the secret that sensitive values are hashed with (at least 16 bytes, the same for all processes)
    #[arg(long, env = "TIDEGATE_SECRET_FILE", value_name = "FILE", help_heading = "Rules")]
    pub secret_file: Option<PathBuf>,
}

/// Why the secret can't be read. `bytes` is its length without the whitespace around it.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SecretError {
    #[error(
        "--secret-file (TIDEGATE_SECRET_FILE) is '{file}', which can't be read: {fault}: \
         name a file of text that this user may read"
    )]
    Unreadable { file: PathBuf, fault: String },
    #[error(
        "--secret-file (TIDEGATE_SECRET_FILE) is '{file}', which has {bytes} bytes: \
         write at least {SECRET_BYTES_MIN} into it, as `openssl rand -hex 32` prints them"
    )]
    TooShort { file: PathBuf, bytes: usize },
}

/// Reads the secret, if a file is set. Drops whitespace around it, such as the newline of an editor.
pub fn read(flags: &SecretFlags) -> Result<Option<Secret>, SecretError> {
    let set = flags.secret_file.as_deref().filter(|file| !file.as_os_str().is_empty());
    set.map(secret).transpose()
}

fn secret(file: &Path) -> Result<Secret, SecretError> {
    let text = std::fs::read_to_string(file)
        .map_err(|fault| SecretError::Unreadable { file: file.to_owned(), fault: fault.to_string() })?;
    match text.trim() {
        text if text.len() < SECRET_BYTES_MIN => {
            Err(SecretError::TooShort { file: file.to_owned(), bytes: text.len() })
        }
        text => Ok(Secret::new(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(content: &str) -> Result<Secret, SecretError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, content).unwrap();
        read(&SecretFlags { secret_file: Some(file) }).map(Option::unwrap)
    }

    #[test]
    fn a_secret_is_long_enough_and_trimmed() {
        assert_eq!(read_from(" 0123456789abcdef\n").unwrap().expose(), "0123456789abcdef");
        let said = read_from("0123456789abcde\n\n").unwrap_err().to_string();
        assert!(said.contains("TIDEGATE_SECRET_FILE") && said.contains("has 15 bytes"), "{said}");
        assert_eq!(read(&SecretFlags { secret_file: None }), Ok(None));
        let missing = SecretFlags { secret_file: Some("/nowhere/secret".into()) };
        let said = read(&missing).unwrap_err().to_string();
        assert!(said.contains("--secret-file (TIDEGATE_SECRET_FILE) is '/nowhere/secret'"), "{said}");
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret: Secret = "0123456789abcdef".parse().unwrap();
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "<redacted> Some(<redacted>)");
    }
}
