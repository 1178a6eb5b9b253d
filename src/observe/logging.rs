//! Log lines: text for people, JSON for collectors.

use std::fmt;
use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{DefaultFields, FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::wall_time;

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// What is worth a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    #[value(alias = "warning")]
    Warn,
    #[value(alias = "fatal", alias = "panic")]
    Error,
}

/// Writes a line to standard error, if anybody still reads that.
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
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    // A standard error that nobody reads any more must not stop the service.
    let builder = builder.log_internal_errors(false);
    // Fails only if logging was started before, as a test may have done.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(colours).with_target(false).fmt_fields(OneLine).try_init(),
        LogFormat::Json => builder.event_format(JsonLines).try_init(),
    };
}

/// Writes text fields without line breaks: names that others have chosen must not be able to forge lines of the log.
struct OneLine;

impl<'w> FormatFields<'w> for OneLine {
    fn format_fields<R: RecordFields>(&self, mut out: Writer<'w>, fields: R) -> fmt::Result {
        let mut text = String::new();
        DefaultFields::new().format_fields(Writer::new(&mut text), fields)?;
        out.write_str(&text.replace('\n', "\\n").replace('\r', "\\r"))
    }
}

/// Writes one JSON object a line, with the names that envoyproxy/ratelimit uses: `@timestamp`, `@message` and `level`.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = EventFields(Map::new());
        let at = humantime::format_rfc3339_millis(wall_time()).to_string();
        fields.0.insert("@timestamp".into(), at.into());
        fields.0.insert("level".into(), event.metadata().level().as_str().to_lowercase().into());
        event.record(&mut fields);
        writeln!(out, "{}", Value::Object(fields.0))
    }
}

/// The fields of an event. The message is one of them.
struct EventFields(Map<String, Value>);

impl EventFields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        let name = if field.name() == "message" { "@message" } else { field.name() };
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_name_with_a_line_break_does_not_forge_a_line_of_the_log() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_target(false)
            .fmt_fields(OneLine)
            .with_writer(move || writer.clone())
            .finish();
        let name = "yes\r\n2026-11-18T00:00:00Z ERROR forged";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("the annotation is {name}");
            tracing::warn!(name, shown = %name, "a field");
        });
        let said = String::from_utf8(log.0.lock().clone()).unwrap();
        assert_eq!(said.lines().count(), 2, "{said}");
        assert!(said.contains("the annotation is yes\\r\\n2026") && !said.contains('\r'), "{said}");
    }
}
