//! `tidegate call`: what does a server answer to this request?
//!
//! One request, sent as often as asked for, one after the other. It works against any server of
//! `envoy.service.ratelimit.v3`.

mod answer;
mod summary;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::proto::google::protobuf::UInt64Value;
use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http::HeaderValue;
use prost::Message;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tonic::Code;

use crate::cli::call::answer::{CallAnswer, code};
use crate::cli::call::summary::Summary;
use crate::cli::client::connect::{ConnectError, Sender, Target};
use crate::cli::client::exchange::{self, ExchangeError};
use crate::cli::client::{ServerFlags, advice};
use crate::cli::{Exit, Output};
use crate::flag_value::duration;
use crate::observe::logging::say;
use crate::request::typed::TypedDescriptor;
use crate::request::{LimitOverride, Unit};
use crate::server::rls::unit_number;

pub(crate) const EXAMPLES: &str = "Examples:
  tidegate call --domain edge remote_address=203.0.113.7
  tidegate call --domain edge --repeat 20 --rate 5 tier=free path=/api/items,method=POST
  tidegate call --addr https://ratelimit:8081 --ca ca.pem --domain api --own-hits 0 api_key=alice
  tidegate call --addr unix:/run/ratelimit.sock --domain edge --limit 5/minute new=x

A comma inside a value is written as \\, and a backslash as \\\\.
Exits with 0 if every call was answered, OK or OVER_LIMIT, and with 1 otherwise.";

/// The longest grpc-timeout that eight digits of milliseconds can say.
const TIMEOUT_MS_MAX: u128 = 99_999_999;
/// How many calls are shown line by line. More would only scroll by.
const LINES_MAX: u64 = 40;
/// How often a call is tried if the server closes the connection or refuses the request. Each further try is on a new
/// connection.
const ATTEMPTS_MAX: u32 = 3;

#[derive(Args, Debug)]
pub struct CallFlags {
    #[command(flatten)]
    pub server: ServerFlags,

    /// The domain that Envoy's filter names
    #[arg(long, help_heading = "Request")]
    pub domain: String,

    /// Descriptors, each as key=value,key2=value2 in Envoy's order
    #[arg(required = true, value_name = "DESCRIPTOR", value_parser = TypedDescriptor::read)]
    pub descriptors: Vec<TypedDescriptor>,

    /// What the request costs (hits_addend); servers take 0, the default, for 1
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true, help_heading = "Request")]
    pub hits: u32,

    /// What each descriptor costs by itself, in place of --hits; 0 asks without counting
    #[arg(long, value_name = "COUNT", help_heading = "Request")]
    pub own_hits: Option<u64>,

    /// Give the hits back (is_negative_hits)
    #[arg(long, help_heading = "Request")]
    pub refund: bool,

    /// Bring a limit along, such as 5/minute, in place of the rule's
    #[arg(long, value_name = "COUNT/UNIT", value_parser = limit, help_heading = "Request")]
    pub limit: Option<LimitOverride>,

    /// Wait at most this long for an answer; sent along as grpc-timeout
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = call_timeout, help_heading = "Request")]
    pub timeout: Duration,

    /// Call this many times, one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Repeating")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub repeat: u64,

    /// Calls per second; without it, as fast as answers come
    #[arg(long, value_name = "NUMBER", value_parser = rate, help_heading = "Repeating")]
    #[arg(allow_negative_numbers = true)]
    pub rate: Option<f64>,

    /// How to print; JSON is one document per line
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

fn limit(text: &str) -> Result<LimitOverride, String> {
    let explained = || "write a number and a unit, such as 5/minute".to_owned();
    let (count, unit) = text.split_once('/').ok_or_else(explained)?;
    let units = || format!("the unit is one of {}", Unit::ALL.map(Unit::word).join(", "));
    Ok(LimitOverride {
        requests_per_unit: count.parse().map_err(|_| explained())?,
        unit: Unit::from_word(unit).ok_or_else(units)?,
    })
}

fn call_timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        timeout if (1..=TIMEOUT_MS_MAX).contains(&timeout.as_millis()) => Ok(timeout),
        _ => Err("write a duration from 1ms to 27h".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.001..=1_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("write a number from 0.001 to 1000000".into()),
    }
}

pub(crate) fn run(flags: &CallFlags) -> anyhow::Result<Exit> {
    let caller = Caller::new(flags)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start")?;
    runtime.block_on(calls(flags, caller))
}

async fn calls(flags: &CallFlags, caller: Caller) -> anyhow::Result<Exit> {
    let mut summary = Summary::new()?;
    let interrupt = signal(SignalKind::interrupt())?;
    let printed = call_and_print(flags, caller, interrupt, &mut summary).await;
    // A run that was interrupted before any answer is not good.
    let is_good = summary.errors.is_empty() && summary.calls() > 0;
    if is_good { Exit::Success } else { Exit::Failure }.after(printed)
}

/// Calls and prints. Ends early when nobody reads what is printed.
async fn call_and_print(
    flags: &CallFlags,
    mut caller: Caller,
    mut interrupt: Signal,
    summary: &mut Summary,
) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let mut shown = CallPrinter { flags, advised: BTreeSet::new() };
    let mut pause = flags.rate.map(|rate| tokio::time::interval(Duration::from_secs_f64(1.0 / rate)));
    for number in 1..=flags.repeat {
        let called = async {
            if let Some(pause) = &mut pause {
                pause.tick().await;
            }
            caller.call().await
        };
        let outcome = tokio::select! {
            outcome = called => outcome,
            _ = interrupt.recv() => break,
        };
        match &outcome {
            Ok((response, took)) => {
                summary.answered(code(response.overall_code), *took);
                shown.answer(
                    &mut out,
                    number,
                    CallAnswer { descriptors: &flags.descriptors, response, took: *took },
                )?;
            }
            Err(trouble) => {
                summary.failed(trouble.code());
                shown.trouble(&mut out, number, trouble)?;
                // Nobody was there from the start. Repeating the call would only say so again.
                if number == 1 && matches!(trouble, CallError::Connect(_)) {
                    break;
                }
            }
        }
    }
    if flags.repeat > 1 {
        match flags.output {
            Output::Json => writeln!(out, "{}", summary.as_json())?,
            Output::Text => {
                if summary.calls() > LINES_MAX {
                    writeln!(out, "   ...")?;
                }
                summary.print(&mut out)?;
            }
        }
    }
    Ok(())
}

/// Prints outcomes as they come.
struct CallPrinter<'a> {
    flags: &'a CallFlags,
    /// Hints that were given already.
    advised: BTreeSet<&'static str>,
}

impl CallPrinter<'_> {
    fn answer(&self, out: &mut impl Write, number: u64, answer: CallAnswer<'_>) -> std::io::Result<()> {
        match self.flags.output {
            Output::Json => writeln!(out, "{}", answer.as_json(number)),
            Output::Text if self.flags.repeat == 1 => answer.print(out),
            Output::Text if number <= LINES_MAX => answer.print_short(out, number),
            Output::Text => Ok(()),
        }
    }

    fn trouble(&mut self, out: &mut impl Write, number: u64, trouble: &CallError) -> std::io::Result<()> {
        let line = format!("{}: {}", trouble.code(), trouble.text());
        let help = self.advised.insert(trouble.advice()).then(|| format!("  help: {}", trouble.advice()));
        match self.flags.output {
            Output::Json => writeln!(out, "{}", trouble.as_json(number))?,
            Output::Text if self.flags.repeat == 1 => {
                say(&format!("tidegate: {line}"));
                help.iter().for_each(|help| say(help));
            }
            Output::Text => {
                if number <= LINES_MAX {
                    writeln!(out, "{number:6}  {line}")?;
                }
                help.iter().try_for_each(|help| writeln!(out, "{help}"))?;
            }
        }
        Ok(())
    }
}

/// Why a call was not answered.
enum CallError {
    Connect(ConnectError),
    Call(ExchangeError),
}

impl CallError {
    fn code(&self) -> &'static str {
        let code = match self {
            CallError::Call(ExchangeError::Status { code, .. }) => *code,
            CallError::Call(ExchangeError::Http(_) | ExchangeError::Malformed(_)) => Code::Unknown,
            CallError::Connect(_) | CallError::Call(_) => Code::Unavailable,
        };
        exchange::name(code)
    }

    fn text(&self) -> String {
        match self {
            CallError::Connect(error) => error.to_string(),
            CallError::Call(ExchangeError::Status { message, .. }) => message.clone(),
            CallError::Call(failure) => failure.to_string(),
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            CallError::Connect(error) => advice::on_connect(error),
            CallError::Call(failure) => advice::on_failure(failure),
        }
    }

    fn as_json(&self, number: u64) -> Value {
        json!({"call": number, "error": {"code": self.code(), "message": self.text(), "hint": self.advice()}})
    }
}

/// The request, ready to be sent again and again, over a connection that is opened again when necessary.
struct Caller {
    target: Target,
    message: Bytes,
    timeout: Duration,
    /// `None` before the first call, and after one that broke the connection.
    open: Option<Sender>,
}

impl Caller {
    fn new(flags: &CallFlags) -> anyhow::Result<Caller> {
        let mut target = Target::new(&flags.server)?;
        let timeout = HeaderValue::try_from(format!("{}m", flags.timeout.as_millis()))?;
        target.head.headers_mut().insert("grpc-timeout", timeout);
        let message = exchange::framed(&request(flags)).freeze();
        Ok(Caller { target, message, timeout: flags.timeout, open: None })
    }

    /// Calls once. Returns the answer and how long it took, without connecting.
    async fn call(&mut self) -> Result<(RateLimitResponse, Duration), CallError> {
        let mut attempts = 0;
        loop {
            let mut sender = match self.open.take() {
                Some(sender) => sender,
                None => self.target.open(1).await.map_err(CallError::Connect)?,
            };
            attempts += 1;
            let begun = Instant::now();
            let asked = exchange::ask(&mut sender, self.target.head.clone(), self.message.clone());
            let answered = match timeout(self.timeout, asked).await {
                // The server knows the deadline too, and may be the first to notice it.
                Ok(Err(ExchangeError::Status { code: Code::Cancelled, .. })) if begun.elapsed() >= self.timeout => {
                    Err(too_late(self.timeout))
                }
                Ok(answered) => answered,
                Err(_) => Err(too_late(self.timeout)),
            };
            match answered {
                Err(ExchangeError::Closed | ExchangeError::Refused) if attempts < ATTEMPTS_MAX => continue,
                Err(failure @ (ExchangeError::Closed | ExchangeError::Refused | ExchangeError::Broken(_))) => {
                    return Err(CallError::Call(failure));
                }
                _ => self.open = Some(sender),
            }
            let message = answered.map_err(CallError::Call)?;
            let decoded = RateLimitResponse::decode(message);
            let response = decoded.map_err(|_| CallError::Call(ExchangeError::Malformed("not a RateLimitResponse")))?;
            return Ok((response, begun.elapsed()));
        }
    }
}

fn too_late(timeout: Duration) -> ExchangeError {
    let message = format!("no answer within {}", humantime::format_duration(timeout));
    ExchangeError::Status { code: Code::DeadlineExceeded, message }
}

fn request(flags: &CallFlags) -> RateLimitRequest {
    let limit = flags
        .limit
        .map(|limit| RateLimitOverride { requests_per_unit: limit.requests_per_unit, unit: unit_number(limit.unit) });
    let descriptor = |typed: &TypedDescriptor| RateLimitDescriptor {
        entries: typed.entries().map(|entry| Entry { key: entry.key.into(), value: entry.value.into() }).collect(),
        limit,
        hits_addend: flags.own_hits.map(|value| UInt64Value { value }),
        is_negative_hits: flags.refund,
    };
    RateLimitRequest {
        domain: flags.domain.clone(),
        descriptors: flags.descriptors.iter().map(descriptor).collect(),
        hits_addend: flags.hits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_typed_as_a_number_and_a_unit() {
        assert_eq!(limit("5/minute"), Ok(LimitOverride { requests_per_unit: 5, unit: Unit::Minute }));
        assert_eq!(limit("0/Week"), Ok(LimitOverride { requests_per_unit: 0, unit: Unit::Week }));
        for bad in ["5", "x/minute", "-1/minute", "5/"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
        assert!(limit("5/decade").unwrap_err().contains("second, minute"));
    }

    #[test]
    fn timeouts_and_rates_are_bounded() {
        assert_eq!(call_timeout("20ms"), Ok(Duration::from_millis(20)));
        assert!(call_timeout("0s").is_err() && call_timeout("2d").is_err() && call_timeout("1").is_err());
        assert_eq!(rate("0.5"), Ok(0.5));
        assert!(rate("0").is_err() && rate("nan").is_err() && rate("inf").is_err() && rate("-1").is_err());
    }
}
