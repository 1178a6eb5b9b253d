//! A real MariaDB: a server of its own for each test, what its tables hold, and the ways in which it can fail.
//!
//! Tests look at tables with MariaDB's own client, over a socket that no fault of the network touches. They use nothing that
//! MySQL 8 does not have: with scripts named `mariadbd` and `mariadb-install-db` first in the path, which start `mysqld` and
//! `mysqld --initialize-insecure`, they run against MySQL.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::certificates::{Authority, Files, SERVER};
use crate::support::harness::{PATIENCE, Process, Ran, free_port, run, until};

pub const USER: &str = "tidegate";
pub const PASSWORD: &str = "open sesame";
pub const DATABASE: &str = "tide";

/// A server with a database, and a user that may do everything in it.
pub struct MariaDbServer {
    process: Option<Process>,
    port: u16,
    args: Vec<String>,
    directory: TempDir,
}

impl MariaDbServer {
    pub fn start() -> MariaDbServer {
        MariaDbServer::with(&[])
    }

    /// Starts a server with more flags, such as `--read-only`.
    pub fn with(args: &[&str]) -> MariaDbServer {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        MariaDbServer::launch(tempfile::tempdir().unwrap(), args)
    }

    /// Starts a server with a certificate of the authority. Clients choose whether to use TLS.
    pub fn with_tls(authority: &Authority) -> MariaDbServer {
        let directory = tempfile::tempdir().unwrap();
        Files::in_directory(directory.path(), &authority.issue(&[SERVER, "localhost"]), authority);
        let flag = |name: &str, file: &str| format!("--{name}={}", directory.path().join(file).display());
        let args = vec![flag("ssl-cert", "tls.crt"), flag("ssl-key", "tls.key"), flag("ssl-ca", "ca.crt")];
        MariaDbServer::launch(directory, args)
    }

    fn launch(directory: TempDir, args: Vec<String>) -> MariaDbServer {
        copy(template(), &directory.path().join("data"));
        let mut server = MariaDbServer { process: None, port: free_port(), args, directory };
        server.run();
        server.root(&format!(
            "CREATE DATABASE {DATABASE}; CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'; \
             GRANT ALL ON {DATABASE}.* TO {USER}"
        ));
        server
    }

    fn run(&mut self) {
        let mut command = Command::new("mariadbd");
        command.args(BASICS).args([
            format!("--datadir={}", self.directory.path().join("data").display()),
            // A server that starts deletes all temporary tables in this directory, so each has its own.
            format!("--tmpdir={}", self.directory.path().display()),
            format!("--socket={}", self.socket().display()),
            format!("--pid-file={}", self.directory.path().join("pid").display()),
            format!("--port={}", self.port),
        ]);
        command.args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=100"]).args(&self.args);
        self.process = Some(Process::start(command));
        until(PATIENCE, "MariaDB answers", || {
            let ran = self.client("SELECT 1", "mysql");
            if ran.code != Some(0) && self.process.as_mut()?.ends_within(Duration::ZERO).is_some() {
                panic!("MariaDB ended: {:?}", self.process().said);
            }
            (ran.code == Some(0)).then_some(())
        });
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it has been started")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    /// The path of one of its files, such as those of TLS.
    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// The value of `MYSQL_URL` that leads here.
    pub fn url(&self) -> String {
        let password = PASSWORD.replace(' ', "%20");
        format!("mysql://{USER}:{password}@127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// Runs statements in the database. Returns a line for each row, columns separated by tabs.
    pub fn sql(&self, statements: &str) -> Vec<String> {
        self.say(statements, DATABASE)
    }

    /// Runs statements outside of the database, about users and connections.
    pub fn root(&self, statements: &str) -> Vec<String> {
        self.say(statements, "mysql")
    }

    fn say(&self, statements: &str, database: &str) -> Vec<String> {
        let ran = self.client(statements, database);
        assert_eq!(ran.code, Some(0), "{statements}: {}", ran.stderr);
        ran.stdout.lines().map(str::to_owned).collect()
    }

    fn client(&self, statements: &str, database: &str) -> Ran {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--user=root", "--batch", "--skip-column-names", "--protocol=socket"]);
        command.arg(format!("--socket={}", self.socket().display()));
        run(command.args(["--execute", statements, database]))
    }

    /// The number that a query returns.
    pub fn number(&self, query: &str) -> u64 {
        let lines = self.sql(query);
        lines.first().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{query}: {lines:?}"))
    }

    /// Stops the process, with all connections open.
    pub fn stop(&self) {
        self.process().signal("STOP");
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", self.process().pid())).unwrap();
        until(PATIENCE, "MariaDB stands still", || state().contains(") T ").then_some(()));
    }

    pub fn cont(&self) {
        self.process().signal("CONT");
    }

    /// Kills the process. What it had committed is on disk.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it has been started");
        process.signal("KILL");
        process.ends_within(PATIENCE).expect("it dies");
    }

    /// Starts again on the same port, with the data that it had.
    pub fn restart(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
        self.run();
    }
}

/// Settings that make the server small, and quick rather than safe from power failures.
const BASICS: [&str; 11] = [
    "--no-defaults",
    "--user=root",
    "--innodb-log-file-size=16M",
    "--innodb-buffer-pool-size=256M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-use-native-aio=0",
    "--skip-log-bin",
    "--performance-schema=OFF",
    "--character-set-server=utf8mb4",
    "--sql-mode=",
];

/// A data directory with only the system's tables. It takes seconds to make, so it is made once and kept for the next run.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let version = run(Command::new("mariadbd").arg("--version")).stdout;
        let version: String = version.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').collect();
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(version);
        if !made.exists() {
            // It is renamed when it is complete. If two processes make it at once, the first one wins.
            let making = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let data = making.path().join("data");
            let mut command = Command::new("mariadb-install-db");
            command.args(BASICS).args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
            command.arg(format!("--tmpdir={}", making.path().display()));
            let ran = run(command.arg(format!("--datadir={}", data.display())));
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let renamed = std::fs::rename(&data, &made);
            assert!(renamed.is_ok() || made.exists(), "{renamed:?}");
        }
        made
    })
}

fn copy(from: &Path, to: &Path) {
    let ran = run(Command::new("cp").arg("-r").arg(from).arg(to));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// A table with one column, `numbers.n`: 10 to the power of `digits` numbers, from `first` on.
pub fn numbers(first: u64, digits: u32) -> String {
    let digit = "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                 SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let tables: Vec<String> = (0..digits).rev().map(|place| format!("{digit} AS d{place}")).collect();
    let sum: Vec<String> = (0..digits).map(|place| format!("d{place}.n * {}", 10_u64.pow(place))).collect();
    format!("(SELECT {first} + {} AS n FROM {}) AS numbers", sum.join(" + "), tables.join(", "))
}

#[test]
fn a_server_stands_still_goes_on_and_keeps_what_it_has() {
    let mut server = MariaDbServer::start();
    server.sql("CREATE TABLE t (n INT); INSERT INTO t VALUES (7)");
    assert_eq!(server.number("SELECT n FROM t"), 7);
    server.stop();
    server.cont();
    assert_eq!(server.sql("SELECT n, 'a' FROM t"), ["7\ta"]);
    let port = server.port();
    // Commits are flushed once a second.
    server.sql("FLUSH TABLES t FOR EXPORT");
    server.restart();
    assert_eq!((server.port(), server.number("SELECT COUNT(*) FROM t")), (port, 1));
}
