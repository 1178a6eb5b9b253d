//! What `migrate` and `cleanup` share: a runtime to talk to MySQL with, and how they say that it failed.

use std::io::Write;

use anyhow::Context;
use serde_json::{Value, json};

use crate::cli::{Exit, Output};
use crate::global::mysql::error::MysqlError;
use crate::observe::logging::say;

/// One statement after the other needs no more than one thread.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start")
}

/// Prints why it failed; `so_far` is what had been done by then, as JSON.
pub(crate) fn failed(error: &MysqlError, output: Output, mut so_far: Value) -> anyhow::Result<Exit> {
    let exit = match error {
        MysqlError::Unreachable(_) | MysqlError::Timeout { .. } => Exit::NoAnswer,
        _ => Exit::Failure,
    };
    exit.after(match output {
        Output::Json => {
            so_far["error"] = json!({"message": error.to_string(), "reason": error.reason()});
            writeln!(std::io::stdout(), "{so_far:#}")
        }
        Output::Text => {
            say(&format!("tidegate: {error}"));
            Ok(())
        }
    })
}
