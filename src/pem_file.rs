//! PEM files that settings name. They are read once, at the start, so that a wrong path is refused there.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

/// A file that does not hold what its setting asks for.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("--{flag} is '{file}', which {fault}: name a PEM file with a line {line}")]
pub struct PemFileError {
    flag: &'static str,
    file: PathBuf,
    fault: String,
    /// The line that the file should have: it begins what the setting asks for.
    line: &'static str,
}

/// Reads a PEM file that has at least one certificate in it.
pub(crate) fn certificates(file: &Path, flag: &'static str) -> Result<Vec<u8>, PemFileError> {
    let error = |fault| PemFileError { flag, file: file.to_owned(), fault, line: "-----BEGIN CERTIFICATE-----" };
    let pem = std::fs::read(file).map_err(|fault| error(format!("can't be read: {fault}")))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(pem),
        Ok(_) => Err(error("has no certificate in it".into())),
        Err(fault) => Err(error(format!("is broken: {fault}"))),
    }
}

/// Reads a PEM file that has a private key in it.
pub(crate) fn key(file: &Path, flag: &'static str) -> Result<Vec<u8>, PemFileError> {
    let error = |fault| PemFileError { flag, file: file.to_owned(), fault, line: "-----BEGIN PRIVATE KEY-----" };
    let pem = std::fs::read(file).map_err(|fault| error(format!("can't be read: {fault}")))?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(_) => Ok(pem),
        Err(_) => Err(error("has no private key in it".into())),
    }
}
