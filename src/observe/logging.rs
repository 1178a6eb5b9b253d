//! Log lines: text for people, JSON for collectors.

use std::io::IsTerminal;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;

use crate::settings::{LogFormat, LogLevel};

/// Starts logging to standard error.
pub fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    };
    let colours = std::io::stderr().is_terminal();
    let builder = fmt().with_max_level(level).with_writer(std::io::stderr).with_ansi(colours).with_target(false);
    // Fails only if logging was started before, as a test may have done.
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
