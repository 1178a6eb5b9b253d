//! The MySQL that regions share, as flags and as checked settings: what `migrate` and `cleanup` need, and `serve` too.
//!
//! Mistakes that show before a connection is made are refused here, in the files too. The URL is kept as it was
//! written, because it may hold a password and the client library would show it. It is read anew for every connection,
//! together with the password file, because passwords rotate.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use thiserror::Error;

use crate::flag_value::duration;
use crate::pem_file::{PemFileError, certificates, key};
use crate::secret::Secret;

const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub struct MysqlFlags {
    /// The MySQL or MariaDB that all regions share: mysql://user:password@host:3306/database, with ssl-mode, ssl-ca,
    /// ssl-cert, ssl-key and socket as parameters
    #[arg(long, env = "MYSQL_URL", value_name = "URL", hide_env_values = true, help_heading = "MySQL")]
    pub mysql_url: Option<Secret>,

    /// File with the password in place of one in the URL; read again at every connect
    #[arg(long, env = "TIDEGATE_MYSQL_PASSWORD_FILE", value_name = "FILE", help_heading = "MySQL")]
    pub mysql_password_file: Option<PathBuf>,

    /// How long connecting and each statement may take; no request waits for it
    #[arg(long, env = "TIDEGATE_MYSQL_TIMEOUT", value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = duration, help_heading = "MySQL")]
    pub mysql_timeout: Duration,
}

impl MysqlFlags {
    /// The URL, unless it is empty.
    pub fn url(&self) -> Option<&Secret> {
        self.mysql_url.as_ref().filter(|url| !url.expose().trim().is_empty())
    }

    /// A warning about settings that do no harm, but are hardly what was meant.
    pub fn warning(&self) -> Option<String> {
        let Some(url) = self.url() else {
            return self.mysql_password_file.as_ref().map(|_| {
                "TIDEGATE_MYSQL_PASSWORD_FILE without --mysql-url (MYSQL_URL): nothing is shared with other regions"
                    .to_owned()
            });
        };
        let address = MysqlUrl::parse(url.expose()).ok()?;
        let is_verified = matches!(address.ssl_mode, MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
        (address.ssl_ca.is_some() && !is_verified).then(|| {
            "ssl-ca in --mysql-url (MYSQL_URL) has no effect: nobody verifies the server unless ssl-mode is VERIFY_CA or \
             VERIFY_IDENTITY"
                .to_owned()
        })
    }
}

/// How to reach MySQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MysqlSettings {
    /// It has been parsed once, so it is known to be good.
    url: Secret,
    password_file: Option<PathBuf>,
    /// How long connecting may take, and then each statement.
    pub timeout: Duration,
    /// Host, port and database, or the socket: what may be shown.
    pub place: String,
}

/// A setting about MySQL that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MysqlSettingError {
    #[error(
        "--mysql-url (MYSQL_URL) is not set: write mysql://user:password@host:3306/database, the server that all regions \
         share"
    )]
    NoUrl,
    #[error("--mysql-url (MYSQL_URL) {0}: write mysql://user:password@host:3306/database")]
    Url(&'static str),
    #[error(
        "--mysql-url (MYSQL_URL) has the parameter '{0}', which is not known: there are ssl-mode, ssl-ca, ssl-cert, \
         ssl-key and socket"
    )]
    Parameter(String),
    #[error(
        "--mysql-url (MYSQL_URL) has ssl-mode={0}, which is not known: write DISABLED, PREFERRED, REQUIRED, VERIFY_CA or \
         VERIFY_IDENTITY"
    )]
    SslMode(String),
    #[error(
        "--mysql-url (MYSQL_URL) has {set}, but no {missing}: write both, the PEM files of our certificate and of its \
         private key, or neither"
    )]
    HalfCertificate { set: &'static str, missing: &'static str },
    #[error(transparent)]
    TlsFile(#[from] PemFileError),
    #[error(
        "--mysql-password-file (TIDEGATE_MYSQL_PASSWORD_FILE) is '{file}', which {fault}: name a file with one line, the \
         password"
    )]
    PasswordFile { file: PathBuf, fault: String },
    #[error(
        "--mysql-url (MYSQL_URL) and --mysql-password-file (TIDEGATE_MYSQL_PASSWORD_FILE) both have a password: leave one \
         of them out"
    )]
    TwoPasswords,
    #[error(
        "--mysql-timeout (TIDEGATE_MYSQL_TIMEOUT) is {}: write a duration from 10ms to 1m",
        humantime::format_duration(*.0)
    )]
    Timeout(Duration),
}

impl MysqlSettings {
    /// Checks the flags, for commands that can do nothing without MySQL.
    pub fn required(flags: &MysqlFlags) -> Result<MysqlSettings, MysqlSettingError> {
        MysqlSettings::new(flags)?.ok_or(MysqlSettingError::NoUrl)
    }

    /// Checks the flags; `None` without a URL. Reads the files once, to refuse what can't be read.
    pub fn new(flags: &MysqlFlags) -> Result<Option<MysqlSettings>, MysqlSettingError> {
        let timeout = flags.mysql_timeout;
        if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
            return Err(MysqlSettingError::Timeout(timeout));
        }
        let Some(url) = flags.url() else { return Ok(None) };
        let address = MysqlUrl::parse(url.expose())?;
        address.check_files()?;
        let password_file = flags.mysql_password_file.clone().filter(|file| !file.as_os_str().is_empty());
        if let Some(file) = &password_file {
            if address.has_password {
                return Err(MysqlSettingError::TwoPasswords);
            }
            read_password(file)?;
        }
        Ok(Some(MysqlSettings { url: url.clone(), password_file, timeout, place: address.place }))
    }

    /// The options for a connection now. Reads the password file.
    pub fn connect_options(&self) -> Result<MySqlConnectOptions, MysqlSettingError> {
        let options = MysqlUrl::parse(self.url.expose())?.options;
        match &self.password_file {
            Some(file) => Ok(options.password(read_password(file)?.expose())),
            None => Ok(options),
        }
    }
}

fn read_password(file: &Path) -> Result<Secret, MysqlSettingError> {
    let error = |fault| MysqlSettingError::PasswordFile { file: file.to_owned(), fault };
    let text = std::fs::read_to_string(file).map_err(|fault| error(format!("can't be read: {fault}")))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(error("is empty".into())),
        password => Ok(Secret::new(password)),
    }
}

/// What the URL says. The client library overlooks parameters that it does not know, so that a typing error would turn
/// verification off without a word. So they are read here first.
struct MysqlUrl {
    options: MySqlConnectOptions,
    has_password: bool,
    place: String,
    ssl_mode: MySqlSslMode,
    ssl_ca: Option<PathBuf>,
    ssl_cert: Option<PathBuf>,
    ssl_key: Option<PathBuf>,
}

impl MysqlUrl {
    fn parse(url: &str) -> Result<MysqlUrl, MysqlSettingError> {
        let url = url.trim();
        let rest = url.strip_prefix("mysql://").or_else(|| url.strip_prefix("mariadb://"));
        let rest = rest.ok_or(MysqlSettingError::Url("does not begin with mysql://"))?;
        let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (login, server) = authority.rsplit_once('@').ok_or(MysqlSettingError::Url("names no user"))?;
        if server.is_empty() || server.starts_with(['/', ':']) {
            return Err(MysqlSettingError::Url("names no host"));
        }
        // The client library ends the login at the first of these, and would take the rest of a password for a name.
        if login.contains('/') || query.contains('@') {
            return Err(MysqlSettingError::Url(
                "has a '/', '?' or '@' in it that is none: write %2F, %3F and %40 instead",
            ));
        }
        let (mut ssl_mode, mut ssl_ca, mut ssl_cert, mut ssl_key) = (None, None, None, None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let file = || Some(PathBuf::from(&*value));
            match &*name {
                "ssl-mode" | "sslmode" => ssl_mode = Some(value.into_owned()),
                "ssl-ca" | "sslca" => ssl_ca = file(),
                "ssl-cert" | "sslcert" => ssl_cert = file(),
                "ssl-key" | "sslkey" => ssl_key = file(),
                "socket" => {}
                _ => return Err(MysqlSettingError::Parameter(name.into_owned())),
            }
        }
        if let Some(mode) = ssl_mode.filter(|mode| mode.parse::<MySqlSslMode>().is_err()) {
            return Err(MysqlSettingError::SslMode(mode));
        }
        // The library's own words may repeat the URL, password and all.
        let options: MySqlConnectOptions = url.parse().map_err(|_| MysqlSettingError::Url("is not a URL"))?;
        let database = options.get_database().ok_or(MysqlSettingError::Url("names no database"))?.to_owned();
        let host = options.get_host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let place = match options.get_socket() {
            Some(socket) => format!("{}, database {database}", socket.display()),
            None => format!("{}:{}, database {database}", options.get_host(), options.get_port()),
        };
        Ok(MysqlUrl {
            has_password: login.split_once(':').is_some_and(|(_, password)| !password.is_empty()),
            place,
            ssl_mode: options.get_ssl_mode(),
            // Statements are not logged: they hold the identifiers of clients.
            options: options.host(&host).disable_statement_logging(),
            ssl_ca,
            ssl_cert,
            ssl_key,
        })
    }

    fn check_files(&self) -> Result<(), MysqlSettingError> {
        if let Some(ca) = &self.ssl_ca {
            certificates(ca, "mysql-url (MYSQL_URL): its ssl-ca")?;
        }
        match (&self.ssl_cert, &self.ssl_key) {
            (Some(certificate), Some(private)) => {
                certificates(certificate, "mysql-url (MYSQL_URL): its ssl-cert")?;
                key(private, "mysql-url (MYSQL_URL): its ssl-key")?;
                Ok(())
            }
            (None, None) => Ok(()),
            (Some(_), None) => Err(MysqlSettingError::HalfCertificate { set: "ssl-cert", missing: "ssl-key" }),
            (None, Some(_)) => Err(MysqlSettingError::HalfCertificate { set: "ssl-key", missing: "ssl-cert" }),
        }
    }
}

#[cfg(test)]
mod tests;
