//! An empty Redis and an empty MariaDB of our own, on sockets in a directory that is removed with them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::process::Process;
use crate::redis_server::RedisServer;

const DATABASE: &str = "tidegate";

/// Settings that are quick rather than safe from power failures, because the disk is not what is measured.
const MARIADB: [&str; 8] = [
    "--no-defaults",
    "--user=root",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-use-native-aio=0",
    "--skip-log-bin",
    "--character-set-server=utf8mb4",
    "--sql-mode=",
];

pub struct Stores {
    redis: RedisServer,
    mariadb: Process,
    directory: TempDir,
}

impl Stores {
    pub fn start() -> anyhow::Result<Stores> {
        let directory = tempfile::tempdir()?;
        let redis = RedisServer::start(directory.path().join("redis.sock"))?;
        let mariadb = start_mariadb(directory.path())?;
        let stores = Stores { redis, mariadb, directory };
        let mut migrate = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        complete(migrate.arg("migrate").env_clear().envs(stores.settings()))?;
        Ok(stores)
    }

    pub fn pids(&self) -> [u32; 2] {
        [self.redis.pid(), self.mariadb.pid()]
    }

    /// The settings with which Tidegate shares its counts through both, as one of two regions.
    pub fn settings(&self) -> [(&'static str, String); 4] {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        [
            ("REDIS_URL", self.redis.url()),
            ("MYSQL_URL", format!("mysql://root@localhost/{DATABASE}?socket={}", path("mariadb.sock"))),
            ("REGION", "here".into()),
            ("TIDEGATE_REGIONS", "here,there".into()),
        ]
    }
}

fn start_mariadb(directory: &Path) -> anyhow::Result<Process> {
    let flag = |name: &str, file: &str| format!("--{name}={}", directory.join(file).display());
    let mut install = Command::new("mariadb-install-db");
    install.args(MARIADB).args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    // A server that starts deletes all temporary tables in this directory, so each has its own.
    let temporary = format!("--tmpdir={}", directory.display());
    complete(install.arg(flag("datadir", "data")).arg(&temporary))?;

    let mut command = Command::new(mariadbd());
    command.args(MARIADB).args(["--skip-networking", "--skip-name-resolve"]).args([
        flag("datadir", "data"),
        temporary,
        flag("socket", "mariadb.sock"),
        flag("pid-file", "mariadb.pid"),
        flag("log-error", "mariadb.log"),
    ]);
    let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let create = || {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--user=root", "--protocol=socket", &flag("socket", "mariadb.sock")]);
        complete(client.args(["--execute", &format!("CREATE DATABASE {DATABASE}")])).is_ok()
    };
    process.wait_until("MariaDB answers", create)?;
    Ok(process)
}

/// Debian has it in a directory that is not in everybody's path.
fn mariadbd() -> PathBuf {
    let debian = PathBuf::from("/usr/sbin/mariadbd");
    if debian.exists() { debian } else { "mariadbd".into() }
}

fn complete(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().display().to_string();
    let ran = command.output().with_context(|| format!("can't start {name}"))?;
    ensure!(ran.status.success(), "{name} failed: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(())
}
