//! Parse the flags, run the command, map the outcome to an exit code.

use std::process::ExitCode;

use clap::Parser;
use tidegate::cli::{Cli, Exit};

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(Exit::Success) => ExitCode::SUCCESS,
        Ok(Exit::Failure) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
