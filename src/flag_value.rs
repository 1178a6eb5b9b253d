//! How values of flags are typed. Booleans, durations and addresses may also have the forms that envoyproxy/ratelimit takes.

use std::net::{Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// Reads a boolean, in the words that envoyproxy/ratelimit takes.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".into()),
    }
}

/// Reads a duration, such as `500ms`, `2s`, `1h30m` or `1.5h`: Go's syntax, and days.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parts_of_duration(text).ok_or_else(|| "write a duration such as 500ms, 2s, 10m or 1h".into())
}

fn parts_of_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let number_ends = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number_ends);
        let unit_ends = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_ends);
        let unit_s = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 24.0 * 3600.0,
            _ => return None,
        };
        let seconds = number.parse::<f64>().ok()? * unit_s;
        sum = sum.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(sum)
}

/// A duration outside of the range that its setting allows.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "--{flag} ({env}) is {}: write a duration from {} to {}",
    humantime::format_duration(*.value),
    humantime::format_duration(*.range.start()),
    humantime::format_duration(*.range.end())
)]
pub struct DurationError {
    flag: &'static str,
    env: &'static str,
    value: Duration,
    range: RangeInclusive<Duration>,
}

/// Checks the duration of a flag, or of its environment variable, against the allowed range.
pub(crate) fn duration_within(
    (flag, env): (&'static str, &'static str),
    value: Duration,
    range: RangeInclusive<Duration>,
) -> Result<Duration, DurationError> {
    if range.contains(&value) { Ok(value) } else { Err(DurationError { flag, env, value, range }) }
}

/// Reads a share from 0 to 1.
pub(crate) fn ratio(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("write a number from 0 to 1, such as 0.8".into()),
    }
}

/// Reads a share from 0 to 1 as thousandths: a whole number, so that all processes of a region agree on it exactly.
pub(crate) fn thousandths(text: &str) -> Result<u16, String> {
    let help = || "write a number from 0 to 1 with at most three decimals, such as 0.1".to_owned();
    let scaled = text.parse::<f64>().map_err(|_| help())? * 1000.0;
    let whole = scaled.round();
    if (0.0..=1000.0).contains(&scaled) && (scaled - whole).abs() < 1e-6 { Ok(whole as u16) } else { Err(help()) }
}

/// `address:port`, or `:port` for every address of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAddress(pub SocketAddr);

impl FromStr for SocketAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<SocketAddress, String> {
        let help = || "write :9090, 127.0.0.1:9090 or [::1]:9090".to_owned();
        let addr = match text.strip_prefix(':').or_else(|| text.strip_prefix("localhost:")) {
            Some(port) if text.starts_with(':') => {
                SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port.parse().map_err(|_| help())?)
            }
            Some(port) => SocketAddr::from(([127, 0, 0, 1], port.parse().map_err(|_| help())?)),
            None => text.parse().map_err(|_| help())?,
        };
        Ok(SocketAddress(addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_both_syntaxes() {
        let ms = |text: &str| duration(text).map(|duration| duration.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("1h30m"), Ok(5_400_000));
        assert_eq!(ms("1.5h"), Ok(5_400_000));
        assert_eq!(ms("1m0.5s"), Ok(60_500));
        assert_eq!(ms("150us").unwrap(), 0);
        assert_eq!(ms("0"), Ok(0));
        assert_eq!(ms("1d"), Ok(86_400_000));
        for nonsense in ["", "5", "s", "1.2.3s", "-1s", "1 fortnight", "1e300h", ".", "10M", "1h 30m"] {
            assert!(duration(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_duration_out_of_its_range_is_told_the_range() {
        let (least, most) = (Duration::from_millis(50), Duration::from_secs(60));
        assert_eq!(duration_within(("a-b", "A_B"), most, least..=most), Ok(most));
        let said = duration_within(("a-b", "A_B"), Duration::from_millis(1), least..=most).unwrap_err().to_string();
        assert_eq!(said, "--a-b (A_B) is 1ms: write a duration from 50ms to 1m");
    }

    #[test]
    fn shares_are_thousandths() {
        for (text, share) in [("0", 0), ("0.1", 100), ("0.125", 125), ("1", 1000), ("0.001", 1)] {
            assert_eq!(thousandths(text), Ok(share));
        }
        for nonsense in ["", "x", "1.001", "-0.1", "0.0005", "NaN", "inf", "10%"] {
            assert!(thousandths(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn an_address_may_leave_out_the_host() {
        let read = |text: &str| text.parse::<SocketAddress>().map(|address| address.0.to_string());
        assert_eq!(read(":19001").unwrap(), "[::]:19001");
        assert_eq!(read("127.0.0.1:1").unwrap(), "127.0.0.1:1");
        assert_eq!(read("[::1]:1").unwrap(), "[::1]:1");
        assert_eq!(read("localhost:1").unwrap(), "127.0.0.1:1");
        for nonsense in ["", ":", "9090", ":x", "example.com:1", "1.2.3.4", ":65536"] {
            assert!(read(nonsense).is_err(), "{nonsense}");
        }
    }
}
