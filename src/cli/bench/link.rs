//! A connection under load: requests go out as they become due, and what comes back is counted.
//!
//! When a connection ends it is opened again. Requests that the server says it has not processed are sent again and are
//! no errors, so that a server may ask its clients to reconnect as often as it likes.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

use crate::cli::bench::choice::KeyChoice;
use crate::cli::bench::http2::{CallOutcome, Connection, FrameError};
use crate::cli::bench::load::LoadPlan;
use crate::cli::bench::pace::Pace;
use crate::cli::bench::tally::{self, BenchTally};
use crate::cli::client::connect::{ConnectError, Stream};

/// Room for several frames of the longest kind.
const INCOMING_BYTES: usize = 64 * 1024;
/// How long to wait before a server that went away is tried again, at first. Then it is twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What the connections of a thread share.
pub(super) struct Site {
    /// What all threads have in common.
    pub plan: Arc<LoadPlan>,
    /// Draws the key of each descriptor, whichever connection sends it.
    pub choice: RefCell<KeyChoice>,
    /// When requests are due, on whichever connection.
    pub pace: Pace,
    /// Its own thread locks it all the time, the one that shows progress now and then.
    pub tally: Arc<Mutex<BenchTally>>,
    /// Requests that begin earlier are warm-up.
    pub counted_from: Instant,
    /// Counted requests that have no answer yet.
    pub in_flight: Cell<u64>,
}

impl Site {
    fn failed(&self, kind: &'static str) {
        if Instant::now() >= self.counted_from {
            self.tally.lock().failed(kind, 1);
        }
    }

    fn begun(&self, begun: Instant) {
        self.in_flight.set(self.in_flight.get() + u64::from(begun >= self.counted_from));
    }

    fn ended(&self, tally: &mut BenchTally, begun: Instant, now: Instant, outcome: CallOutcome) {
        let is_counted = begun >= self.counted_from;
        self.in_flight.set(self.in_flight.get() - u64::from(is_counted));
        match outcome {
            CallOutcome::NotProcessed => self.pace.put_back(begun),
            _ if !is_counted => {}
            CallOutcome::Answered(verdict) => tally.answered(verdict, now - begun),
            CallOutcome::Failed(kind) => tally.failed(kind, 1),
        }
    }
}

/// Puts load on a connection, and on the next one when it ends, until the run is over.
pub(super) async fn keep_asking(site: Rc<Site>, first: BenchLink) {
    let mut opened = Some(first);
    let mut pause = PAUSE_MIN;
    while !site.pace.is_over() {
        let mut link = match opened.take() {
            Some(link) => link,
            None => match BenchLink::open(&site.plan).await {
                Ok(link) => link,
                Err(_) => {
                    site.failed(tally::CONNECT);
                    pause = rest(pause).await;
                    continue;
                }
            },
        };
        let since = Instant::now();
        if link.ask(&site).await > 0 {
            pause = PAUSE_MIN;
        } else if since.elapsed() < PAUSE_MAX && !site.pace.is_over() {
            // A server that closes every connection unused must not make this loop spin.
            site.failed(tally::TURNED_AWAY);
            pause = rest(pause).await;
        }
    }
}

/// Waits, and returns how long to wait the next time.
async fn rest(pause: Duration) -> Duration {
    sleep(pause).await;
    (pause * 2).min(PAUSE_MAX)
}

/// An open connection, and the bytes that go over it.
pub(super) struct BenchLink {
    stream: Box<dyn Stream>,
    connection: Connection,
    /// What was read. Its first `incoming_bytes` are not yet a whole frame, and the rest is room.
    incoming: Vec<u8>,
    incoming_bytes: usize,
    /// What is to be sent. Its first `outgoing_sent` bytes have been.
    outgoing: Vec<u8>,
    outgoing_sent: usize,
    /// Whether the stream has passed on all that it took.
    is_flushed: bool,
}

impl BenchLink {
    /// Connects, and returns when the server has shown that it speaks HTTP/2.
    pub(super) async fn open(plan: &LoadPlan) -> Result<BenchLink, ConnectError> {
        plan.target.open_raw(|stream| BenchLink::greet(stream, plan)).await
    }

    async fn greet(stream: Box<dyn Stream>, plan: &LoadPlan) -> io::Result<BenchLink> {
        let mut outgoing = Vec::new();
        let mut link = BenchLink {
            stream,
            connection: Connection::new(plan.blocks.clone(), plan.streams, &mut outgoing),
            incoming: vec![0; INCOMING_BYTES],
            incoming_bytes: 0,
            outgoing,
            outgoing_sent: 0,
            is_flushed: true,
        };
        while !link.connection.is_greeted() {
            poll_fn(|context| link.poll_exchange(context)).await?;
            link.receive(|_, _| {})?;
        }
        if !link.connection.has_room(plan.template.bytes()) {
            return Err(io::Error::other("it takes no requests of this size"));
        }
        Ok(link)
    }

    /// Asks until the connection takes no more or the run is over, and then until everything is answered. Returns how
    /// many requests came to an end.
    async fn ask(&mut self, site: &Site) -> u64 {
        let mut outcomes = 0;
        while let Ok(()) = self.ask_once(site, &mut outcomes).await {
            if self.connection.in_flight() == 0 && (self.connection.is_leaving() || site.pace.is_over()) {
                return outcomes;
            }
        }
        let now = Instant::now();
        let mut tally = site.tally.lock();
        self.connection.fail_all(tally::BROKEN, |begun, outcome| {
            outcomes += 1;
            site.ended(&mut tally, begun, now, outcome);
        });
        outcomes
    }

    /// Sends what is due, and takes what has come, or waits for either.
    async fn ask_once(&mut self, site: &Site, outcomes: &mut u64) -> io::Result<()> {
        self.fill(site, None);
        let may_send = self.connection.has_room(site.plan.template.bytes()) && !site.pace.is_over();
        tokio::select! {
            biased;
            exchanged = poll_fn(|context| self.poll_exchange(context)) => exchanged?,
            due = site.pace.wait(), if may_send => {
                self.fill(site, due);
                return Ok(());
            }
        }
        let now = Instant::now();
        let mut tally = site.tally.lock();
        self.receive(|begun, outcome| {
            *outcomes += u64::from(outcome != CallOutcome::NotProcessed);
            site.ended(&mut tally, begun, now, outcome);
        })
    }

    /// Makes requests of everything that is due, as far as there is room.
    fn fill(&mut self, site: &Site, mut due: Option<Instant>) {
        let template = &site.plan.template;
        let now = Instant::now();
        while self.connection.has_room(template.bytes()) {
            let Some(begun) = due.take().or_else(|| site.pace.take(now)) else { return };
            site.begun(begun);
            let mut choice = site.choice.borrow_mut();
            let write = |out: &mut Vec<u8>| template.write(out, || choice.next());
            self.connection.send(begun, template.bytes(), &mut self.outgoing, write);
        }
    }

    fn receive(&mut self, ended: impl FnMut(Instant, CallOutcome)) -> io::Result<()> {
        let received = self.connection.receive(&self.incoming[..self.incoming_bytes], &mut self.outgoing, ended);
        let taken = received.map_err(|FrameError(why)| io::Error::new(io::ErrorKind::InvalidData, why))?;
        self.incoming.copy_within(taken..self.incoming_bytes, 0);
        self.incoming_bytes -= taken;
        Ok(())
    }

    /// Sends as much as the system takes, and is ready when something has come.
    fn poll_exchange(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.outgoing_sent < self.outgoing.len() {
            let rest = &self.outgoing[self.outgoing_sent..];
            match Pin::new(&mut self.stream).poll_write(context, rest) {
                Poll::Ready(Ok(sent)) if sent > 0 => self.outgoing_sent += sent,
                // What the server said before it closed is still to be read, and reading ends with the reason.
                Poll::Ready(_) => self.outgoing_sent = self.outgoing.len(),
                Poll::Pending => break,
            }
            self.is_flushed = false;
        }
        if self.outgoing_sent == self.outgoing.len() {
            self.outgoing.clear();
            self.outgoing_sent = 0;
        }
        if !self.is_flushed {
            self.is_flushed = Pin::new(&mut self.stream).poll_flush(context).is_ready();
        }
        let mut buffer = ReadBuf::new(&mut self.incoming[self.incoming_bytes..]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        match buffer.filled().len() {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            read => {
                self.incoming_bytes += read;
                Poll::Ready(Ok(()))
            }
        }
    }
}
