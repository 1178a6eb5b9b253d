//! `tidegate cleanup`: delete what has expired from the table that regions share.
//!
//! Deletes in batches, with a pause after each: a lock is held for milliseconds, and replicas keep up. It can be
//! stopped after any of them; the next run goes on from there.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::cli::{Exit, Output, mysql};
use crate::flag_value::duration;
use crate::global::mysql::MySql;
use crate::global::mysql::error::{MysqlError, Remedy};
use crate::global::mysql::settings::{MysqlFlags, MysqlSettings};
use crate::observe::logging::say;

pub(crate) const EXAMPLES: &str = "Examples:
  MYSQL_URL=mysql://tidegate:secret@db:3306/tidegate tidegate cleanup
  tidegate cleanup --dry-run --output json
  17 * * * *  tidegate cleanup      # in a crontab, in one region

Exits with 0 when nothing is left to delete or it was told to stop, with 1 if MySQL refused, and with 2 if it does not
answer.";

/// The pause after each batch, in which publishers get their turn.
const PAUSE: Duration = Duration::from_millis(50);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// How often a batch is tried. One that keeps losing to others costs them more than it is worth.
const ATTEMPTS_MAX: u32 = 5;

#[derive(Args, Debug)]
pub struct CleanupFlags {
    #[command(flatten)]
    pub mysql: MysqlFlags,

    /// Only count what would be deleted
    #[arg(long)]
    pub dry_run: bool,

    /// Rows deleted by one statement
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batch: u64,

    /// Leave what has expired for less long than this, by the server's clock
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub older_than: Duration,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// What has been done so far.
#[derive(Default)]
struct Done {
    deleted: u64,
    batches: u64,
    /// Whether nothing was left to delete.
    is_finished: bool,
}

impl Done {
    fn json(&self) -> Value {
        json!({"dry_run": false, "deleted": self.deleted, "batches": self.batches, "finished": self.is_finished})
    }
}

pub(crate) fn run(flags: &CleanupFlags) -> anyhow::Result<Exit> {
    let settings = MysqlSettings::required(&flags.mysql)?;
    mysql::runtime()?.block_on(async {
        let store = MySql::new(&settings);
        let exit = if flags.dry_run { count(&store, flags).await } else { delete(&store, flags).await };
        store.close().await;
        exit
    })
}

/// The moment before which a row must have expired to be deleted, by the server's clock.
async fn before_ms(store: &MySql, flags: &CleanupFlags) -> Result<u64, MysqlError> {
    let older_than_ms = u64::try_from(flags.older_than.as_millis()).unwrap_or(u64::MAX);
    Ok(store.server_now_ms().await?.saturating_sub(older_than_ms))
}

async fn count(store: &MySql, flags: &CleanupFlags) -> anyhow::Result<Exit> {
    let counting = async { store.count_expired(before_ms(store, flags).await?).await };
    let expired = match counting.await {
        Ok(expired) => expired,
        Err(error) => return mysql::failed(&error, flags.output, json!({"dry_run": true})),
    };
    let mut out = std::io::stdout().lock();
    match flags.output {
        Output::Json => writeln!(out, "{:#}", json!({"dry_run": true, "expired": expired}))?,
        Output::Text => writeln!(out, "{} would be deleted", rows(expired))?,
    }
    Ok(Exit::Success)
}

async fn delete(store: &MySql, flags: &CleanupFlags) -> anyhow::Result<Exit> {
    let mut stop = Stop::new()?;
    let mut done = Done::default();
    if let Err(error) = delete_all(store, flags, &mut stop, &mut done).await {
        if flags.output == Output::Text && done.deleted > 0 {
            say(&format!("deleted {} before it failed", rows(done.deleted)));
        }
        return mysql::failed(&error, flags.output, done.json());
    }
    let mut out = std::io::stdout().lock();
    match flags.output {
        Output::Json => writeln!(out, "{:#}", done.json())?,
        Output::Text => {
            let end = if done.is_finished { "" } else { "; stopped, there may be more" };
            writeln!(out, "deleted {}{end}", rows(done.deleted))?;
        }
    }
    Ok(Exit::Success)
}

async fn delete_all(store: &MySql, flags: &CleanupFlags, stop: &mut Stop, done: &mut Done) -> Result<(), MysqlError> {
    let before_ms = before_ms(store, flags).await?;
    let mut said_at: Option<Instant> = None;
    loop {
        let deleted = delete_batch(store, before_ms, flags.batch).await?;
        done.deleted += deleted;
        done.batches += 1;
        if deleted < flags.batch {
            done.is_finished = true;
            return Ok(());
        }
        if said_at.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            say(&format!("deleted {} so far", rows(done.deleted)));
            said_at = Some(Instant::now());
        }
        tokio::select! {
            () = stop.asked() => return Ok(()),
            () = sleep(PAUSE) => {}
        }
    }
}

async fn delete_batch(store: &MySql, before_ms: u64, at_most: u64) -> Result<u64, MysqlError> {
    let mut attempt = 1;
    loop {
        match store.delete_expired(before_ms, at_most).await {
            Err(error) if error.remedy() == Remedy::Retry && attempt < ATTEMPTS_MAX => {
                attempt += 1;
                sleep(PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

/// SIGINT and SIGTERM. One that comes during a batch is heard after it.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> std::io::Result<Stop> {
        Ok(Stop { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn rows(count: u64) -> String {
    if count == 1 { "1 expired row".into() } else { format!("{count} expired rows") }
}
