//! How long a call may stall: while its message arrives, and while its client takes the answer.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;

/// How long a message may take to arrive, and a client to take an answer.
pub(super) const STALL_MAX: Duration = Duration::from_secs(10);

/// Sends data as fast as the client takes it.
pub(super) async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let Some(room) = poll_fn(|context| stream.poll_capacity(context)).await else {
            return Err(Reason::CANCEL.into());
        };
        let part = data.split_to(room?.min(data.len()));
        stream.send_data(part, false)?;
    }
    Ok(())
}

/// How long the caller waits, as `grpc-timeout` says: at most eight digits and a unit. `None` if it can't be read.
pub(super) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 60 * 60),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        grpc_timeout(&headers)
    }

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        assert_eq!(read("18m"), Some(Duration::from_millis(18)));
        assert_eq!(read("0n"), Some(Duration::ZERO));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for nonsense in ["", "5", "m", "123456789m", "-1m", "1 m", "1x", "1.5S"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
