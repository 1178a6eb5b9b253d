//! `tidegate migrate`: make the table that regions share what this version needs.

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::cli::{Exit, Output, mysql};
use crate::global::mysql::MySql;
use crate::global::mysql::error::MysqlError;
use crate::global::mysql::schema::AppliedMigration;
use crate::global::mysql::settings::{MysqlFlags, MysqlSettings};

pub(crate) const EXAMPLES: &str = "Examples:
  MYSQL_URL=mysql://admin:secret@db:3306/tidegate tidegate migrate
  tidegate migrate --mysql-url mysql://admin@db/tidegate --mysql-password-file /run/secrets/mysql

Safe to run again, and from several places at once. Exits with 0 if the table is as it has to be, with 1 if not, and with
2 if MySQL does not answer.";

#[derive(Args, Debug)]
pub struct MigrateFlags {
    #[command(flatten)]
    pub mysql: MysqlFlags,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

pub(crate) fn run(flags: &MigrateFlags) -> anyhow::Result<Exit> {
    let settings = MysqlSettings::required(&flags.mysql)?;
    let applied = match mysql::runtime()?.block_on(migrate(&settings)) {
        Ok(applied) => applied,
        Err(error) => return mysql::failed(&error, flags.output, json!({"ok": false})),
    };
    let mut out = std::io::stdout().lock();
    if flags.output == Output::Json {
        let applied: Vec<_> = applied
            .iter()
            .map(|AppliedMigration { version, name }| json!({"version": version, "name": name}))
            .collect();
        writeln!(out, "{:#}", json!({"ok": true, "applied": applied}))?;
        return Ok(Exit::Success);
    }
    for AppliedMigration { version, name } in &applied {
        writeln!(out, "applied: {version:04} {name}")?;
    }
    let done = if applied.is_empty() { "nothing to apply" } else { "done" };
    writeln!(out, "{done}: {} has the table as it has to be", settings.place)?;
    Ok(Exit::Success)
}

/// Checks the table afterwards, because a migration that creates it leaves one that was made by hand as it is.
async fn migrate(settings: &MysqlSettings) -> Result<Vec<AppliedMigration>, MysqlError> {
    let store = MySql::new(settings);
    let applied = store.migrate().await?;
    let checked = store.check_schema().await;
    store.close().await;
    checked.map(|()| applied)
}
