//! Log lines: text for people, JSON for collectors.

use std::io::{IsTerminal, Write};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;

use crate::settings::{LogFormat, LogLevel};

/// Says a line on standard error, if anybody still reads it.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

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
    // Nobody reads standard error any more: that must not stop the service.
    let builder = builder.log_internal_errors(false);
    // Fails only if logging was started before, as a test may have done.
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}
