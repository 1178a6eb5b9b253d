//! The places that the figures of a bench go to: the screen, a file for programs and one with a chart.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::machine::{cores, cpu_model};
use crate::plot::{Chart, draw};

#[derive(Debug, Args)]
pub struct Results {
    /// Where all figures go [default: NAME.json in target/bench]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where the chart goes [default: NAME.svg in target/bench]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// What is printed
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

impl Results {
    /// Adds the version of the program, the time and the machine.
    pub fn save_figures(&self, bench: &str, results: Value) -> anyhow::Result<()> {
        let document = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "date": humantime::format_rfc3339_seconds(tidegate::clock::wall_time()).to_string(),
            "machine": { "cpu": cpu_model(), "cores": cores() },
            "command": std::env::args().skip(1).collect::<Vec<_>>(),
            "results": results,
        });
        if self.output == Output::Json {
            println!("{document:#}");
        }
        save(self.json.clone(), &format!("{bench}.json"), &format!("{document:#}\n"))
    }

    pub fn save_chart(&self, bench: &str, chart: &Chart) -> anyhow::Result<()> {
        save(self.svg.clone(), &format!("{bench}.svg"), &draw(chart))
    }
}

fn save(file: Option<PathBuf>, name: &str, text: &str) -> anyhow::Result<()> {
    let file = file.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench").join(name));
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(&file, text).with_context(|| format!("can't write {}", file.display()))?;
    eprintln!("wrote {}", file.display());
    Ok(())
}
