//! When anything last came over a connection: a sign of life, whatever it was, and however late it came.
//!
//! The client library drops answers that nobody waits for any more. The stream below it still sees them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is known of a connection's life: when it was made, when it was heard, and since when an answer is owed.
#[derive(Clone, Debug)]
pub(super) struct SignsOfLife {
    since: Instant,
    /// In microseconds since then.
    times: Arc<SignTimes>,
}

#[derive(Debug, Default)]
struct SignTimes {
    heard_us: AtomicU64,
    /// When the first call went out since something was heard, or the last one before that.
    asked_us: AtomicU64,
}

impl Default for SignsOfLife {
    fn default() -> SignsOfLife {
        SignsOfLife { since: Instant::now(), times: Arc::default() }
    }
}

impl SignsOfLife {
    fn now_us(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// When anything last came; when the connection was made, if nothing ever did.
    pub(super) fn at(&self) -> Instant {
        self.since + Duration::from_micros(self.times.heard_us.load(Ordering::Relaxed))
    }

    /// How old the connection is.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    fn hears(&self) {
        self.times.heard_us.store(self.now_us(), Ordering::Relaxed);
    }

    /// A call goes out.
    pub(super) fn asks(&self) {
        let SignTimes { heard_us, asked_us } = &*self.times;
        if asked_us.load(Ordering::Relaxed) <= heard_us.load(Ordering::Relaxed) {
            asked_us.store(self.now_us(), Ordering::Relaxed);
        }
    }

    /// For how long the other side has owed an answer and said nothing.
    pub(super) fn silence(&self) -> Duration {
        let SignTimes { heard_us, asked_us } = &*self.times;
        let (heard_us, asked_us) = (heard_us.load(Ordering::Relaxed), asked_us.load(Ordering::Relaxed));
        if asked_us <= heard_us {
            return Duration::ZERO;
        }
        Duration::from_micros(self.now_us().saturating_sub(asked_us))
    }
}

/// A stream that notes when bytes come.
pub(super) struct ListenedStream<S> {
    stream: S,
    signs: SignsOfLife,
}

impl<S> ListenedStream<S> {
    pub(super) fn new(stream: S, signs: SignsOfLife) -> ListenedStream<S> {
        ListenedStream { stream, signs }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ListenedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > before {
            self.signs.hears();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ListenedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn whatever_comes_ends_the_silence() {
        let (near, mut far) = tokio::io::duplex(64);
        let heard = SignsOfLife::default();
        let mut near = ListenedStream::new(near, heard.clone());
        assert_eq!(heard.silence(), Duration::ZERO, "nothing was asked");
        std::thread::sleep(Duration::from_millis(2));
        heard.asks();
        std::thread::sleep(Duration::from_millis(2));
        assert!(heard.silence() >= Duration::from_millis(2));
        far.write_all(b"x").await.unwrap();
        near.read_u8().await.unwrap();
        assert_eq!(heard.silence(), Duration::ZERO);
        assert!(heard.at() > heard.since);
    }
}
