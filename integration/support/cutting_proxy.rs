//! A network between Tidegate and Redis that misbehaves: replies are lost after the script was applied, stop half way, come
//! late, or never come.
//!
//! The proxy reads commands and replies as the protocol frames them, so that a fault hits a reply and not just some bytes. Only
//! replies to scripts are cut, so that a connection can always be made.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use crate::support::harness::{PATIENCE, until};

/// A proxy on a port of its own. It ends when it is dropped.
pub struct CuttingProxy {
    address: SocketAddr,
    control: watch::Sender<Control>,
    shared: Arc<Shared>,
    _end: oneshot::Sender<()>,
}

#[derive(Clone)]
struct Control {
    upstream: SocketAddr,
    /// Connections of an earlier generation are closed.
    generation: u64,
    is_frozen: bool,
    is_refusing: bool,
    delay: Duration,
}

#[derive(Default)]
struct Shared {
    fault: Mutex<Option<Fault>>,
    commands: AtomicU64,
    scripts: AtomicU64,
    cuts: AtomicU64,
}

/// Which replies to scripts are cut, and how.
struct Fault {
    when: When,
    how: How,
}

enum When {
    /// The last of this many replies, once.
    After(u64),
    /// This many of a thousand replies, at random.
    Permille(u32, Box<StdRng>),
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Nothing of the reply arrives, and the connection closes.
    Swallow,
    /// Half of it arrives, and the connection is reset.
    Reset,
}

impl Shared {
    /// Whether and how the current reply is cut.
    fn cut(&self) -> Option<How> {
        let mut fault = self.fault.lock().unwrap();
        let Fault { when, how } = fault.as_mut()?;
        let how = *how;
        let is_hit = match when {
            When::After(left) => {
                *left -= 1;
                *left == 0
            }
            When::Permille(permille, dice) => dice.random_range(0..1000) < *permille,
        };
        if matches!(when, When::After(0)) {
            *fault = None;
        }
        is_hit.then(|| {
            self.cuts.fetch_add(1, Ordering::Relaxed);
            how
        })
    }
}

impl CuttingProxy {
    /// Starts a proxy that forwards everything, for now.
    pub fn before(upstream: SocketAddr) -> CuttingProxy {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let start = Control { upstream, generation: 0, is_frozen: false, is_refusing: false, delay: Duration::ZERO };
        let (control, seen) = watch::channel(start);
        let shared = Arc::new(Shared::default());
        let (_end, ended) = oneshot::channel::<()>();
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, seen, of_thread) => {}
                    _ = ended => {}
                }
            });
        });
        CuttingProxy { address, control, shared, _end }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The value of `REDIS_URL` that leads here.
    pub fn url(&self) -> String {
        self.address.to_string()
    }

    /// Ends every fault. Frozen connections go on.
    pub fn forward(&self) {
        *self.shared.fault.lock().unwrap() = None;
        self.control.send_modify(|control| {
            (control.is_frozen, control.is_refusing, control.delay) = (false, false, Duration::ZERO);
        });
    }

    fn fault(&self, when: When, how: How) {
        *self.shared.fault.lock().unwrap() = Some(Fault { when, how });
    }

    /// Loses the last of the next `scripts` replies to scripts, and the connection with it.
    pub fn swallow_after(&self, scripts: u64) {
        self.fault(When::After(scripts), How::Swallow);
    }

    /// Loses this many of a thousand replies to scripts, and their connections with them.
    pub fn swallow_at_random(&self, permille: u32, seed: u64) {
        self.fault(When::Permille(permille, Box::new(StdRng::seed_from_u64(seed))), How::Swallow);
    }

    /// Ends this many of a thousand replies to scripts half way, with a reset.
    pub fn reset_at_random(&self, permille: u32, seed: u64) {
        self.fault(When::Permille(permille, Box::new(StdRng::seed_from_u64(seed))), How::Reset);
    }

    /// Delays every reply by this much.
    pub fn delay(&self, delay: Duration) {
        self.control.send_modify(|control| control.delay = delay);
    }

    /// Lets nothing move in either direction.
    pub fn freeze(&self) {
        self.control.send_modify(|control| control.is_frozen = true);
    }

    /// Closes every connection, and new ones as they come.
    pub fn refuse(&self) {
        self.control.send_modify(|control| {
            control.is_refusing = true;
            control.generation += 1;
        });
    }

    /// Closes every connection; new ones go to this server.
    pub fn retarget(&self, upstream: SocketAddr) {
        self.control.send_modify(|control| {
            control.upstream = upstream;
            control.generation += 1;
        });
    }

    /// How many commands were sent on to Redis; a script is one.
    pub fn commands(&self) -> u64 {
        self.shared.commands.load(Ordering::Relaxed)
    }

    pub fn scripts(&self) -> u64 {
        self.shared.scripts.load(Ordering::Relaxed)
    }

    /// How many replies were cut.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

async fn accept(listener: std::net::TcpListener, seen: watch::Receiver<Control>, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((client, _)) = listener.accept().await {
        let link = Link { seen: seen.clone(), shared: shared.clone() };
        // It does not matter whether a connection ends with an error.
        tokio::spawn(async move { link.carry(client).await.ok() });
    }
}

struct Link {
    seen: watch::Receiver<Control>,
    shared: Arc<Shared>,
}

impl Link {
    async fn carry(mut self, mut client: TcpStream) -> io::Result<()> {
        while self.seen.borrow_and_update().is_frozen {
            self.changed().await?;
        }
        let start = self.seen.borrow_and_update().clone();
        if start.is_refusing {
            return Ok(());
        }
        let mut server = TcpStream::connect(start.upstream).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        // Whether each of the commands that wait for their reply is a script.
        let mut waiting = VecDeque::new();
        // Replies on their way.
        let mut late: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
        // A replica speaks in commands and replies until it asks for everything; what follows is framed otherwise.
        let mut is_copying = false;
        loop {
            let control = self.seen.borrow_and_update().clone();
            if control.generation != start.generation {
                return Ok(());
            }
            if control.is_frozen {
                self.changed().await?;
                continue;
            }
            if is_copying {
                return self.copy(client, server, start.generation).await;
            }
            // Delayed replies come at once when the delay ends.
            let due = late.front().map(|(due, _)| if control.delay.is_zero() { Instant::now() } else { *due });
            tokio::select! {
                changed = self.seen.changed() => changed.map_err(io::Error::other)?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let (_, reply) = late.pop_front().expect("one is due");
                    client.write_all(&reply).await?;
                }
                read = client.read_buf(&mut asked) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    self.thawed().await?;
                    while let Some(length) = value_length(&asked) {
                        let command: Vec<u8> = asked.drain(..length).collect();
                        let is_script = is_script(&command);
                        is_copying |= is_named(&command, &[b"PSYNC\r", b"SYNC\r"]);
                        waiting.push_back(is_script);
                        self.shared.commands.fetch_add(1, Ordering::Relaxed);
                        self.shared.scripts.fetch_add(u64::from(is_script), Ordering::Relaxed);
                        server.write_all(&command).await?;
                    }
                }
                read = server.read_buf(&mut told) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    self.thawed().await?;
                    let mut replies = Vec::new();
                    while let Some(length) = value_length(&told) {
                        let reply: Vec<u8> = told.drain(..length).collect();
                        let is_push = reply[0] == b'>';
                        // An error, as for a script that is not loaded, is not worth losing: nothing was applied.
                        let is_applied = !is_push && waiting.pop_front() == Some(true) && reply[0] != b'-';
                        let cut = if is_applied { self.shared.cut() } else { None };
                        match cut {
                            None => replies.extend(reply),
                            Some(How::Swallow) => {
                                client.write_all(&replies).await?;
                                return Ok(());
                            }
                            Some(How::Reset) => {
                                replies.extend(&reply[..reply.len() / 2]);
                                client.write_all(&replies).await?;
                                // The half that was sent arrives before the reset does.
                                tokio::time::sleep(Duration::from_millis(1)).await;
                                SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
                                return Ok(());
                            }
                        }
                    }
                    if control.delay > Duration::ZERO || !late.is_empty() {
                        late.push_back((Instant::now() + control.delay, replies));
                    } else {
                        client.write_all(&replies).await?;
                    }
                }
            }
        }
    }

    /// Carries bytes as they are.
    async fn copy(mut self, mut client: TcpStream, mut server: TcpStream, generation: u64) -> io::Result<()> {
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        loop {
            let control = self.seen.borrow_and_update().clone();
            if control.generation != generation {
                return Ok(());
            }
            if control.is_frozen {
                self.changed().await?;
                continue;
            }
            let read = tokio::select! {
                changed = self.changed() => {
                    changed?;
                    continue;
                }
                read = client.read_buf(&mut asked) => read?,
                read = server.read_buf(&mut told) => read?,
            };
            if read == 0 {
                return Ok(());
            }
            self.thawed().await?;
            server.write_all(&std::mem::take(&mut asked)).await?;
            client.write_all(&std::mem::take(&mut told)).await?;
        }
    }

    /// Waits while the proxy is frozen: bytes that came in after the freeze must not move on, even if they were noticed first.
    async fn thawed(&mut self) -> io::Result<()> {
        while self.seen.borrow_and_update().is_frozen {
            self.changed().await?;
        }
        Ok(())
    }

    async fn changed(&mut self) -> io::Result<()> {
        self.seen.changed().await.map_err(io::Error::other)
    }
}

fn is_script(command: &[u8]) -> bool {
    is_named(command, &[b"EVALSHA\r", b"EVAL\r", b"FCALL\r"])
}

/// Whether a command has one of these names, each with the carriage return that ends its line.
fn is_named(command: &[u8], names: &[&[u8]]) -> bool {
    let name = command.split(|byte| *byte == b'\n').nth(2).unwrap_or_default();
    names.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The length of the first value in the bytes; `None` while it is not complete.
fn value_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let number = || std::str::from_utf8(&bytes[1..line.max(3) - 2]).ok().and_then(|number| number.parse::<i64>().ok());
    let after = match bytes[0] {
        b'$' | b'=' | b'!' => {
            number().and_then(|length| usize::try_from(length + 2).ok()).filter(|length| *length >= 2)
        }
        b'*' | b'~' | b'>' | b'%' => {
            let pairs = if bytes[0] == b'%' { 2 } else { 1 };
            let mut length = 0;
            for _ in 0..number().unwrap_or(0).max(0) * pairs {
                length += value_length(&bytes[line + length..])?;
            }
            Some(length)
        }
        _ => None,
    };
    let length = line + after.unwrap_or(0);
    (bytes.len() >= length).then_some(length)
}

mod tests {
    use super::*;
    use crate::support::redis::{RedisServer, replica_of};

    /// Adds one, by a script.
    fn add(connection: &mut ::redis::Connection) -> ::redis::RedisResult<u64> {
        ::redis::cmd("EVAL").arg("return redis.call('INCR', KEYS[1])").arg(1).arg("k").query(connection)
    }

    fn connect(proxy: &CuttingProxy) -> ::redis::Connection {
        let client = ::redis::Client::open(format!("redis://{}", proxy.url())).unwrap();
        let connection = client.get_connection_with_timeout(PATIENCE).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    #[test]
    fn a_reply_that_is_swallowed_was_applied() {
        let redis = RedisServer::start();
        let proxy = CuttingProxy::before(redis.address());
        let mut connection = connect(&proxy);
        assert_eq!(add(&mut connection).unwrap(), 1);
        proxy.swallow_after(2);
        assert_eq!(add(&mut connection).unwrap(), 2);
        add(&mut connection).unwrap_err();
        assert_eq!((proxy.cuts(), redis.query::<u64>(&["GET", "k"])), (1, 3));
        assert_eq!(add(&mut connect(&proxy)).unwrap(), 4, "only once");
        assert_eq!(proxy.scripts(), 4);
    }

    #[test]
    fn random_cuts_repeat_with_their_seed_and_leave_other_commands_alone() {
        let redis = RedisServer::start();
        let outcomes = |seed, how: How| -> Vec<bool> {
            let proxy = CuttingProxy::before(redis.address());
            let seeded = Box::new(StdRng::seed_from_u64(seed));
            proxy.fault(When::Permille(400, seeded), how);
            let outcomes: Vec<bool> = (0..50).map(|_| add(&mut connect(&proxy)).is_ok()).collect();
            assert_eq!(proxy.cuts(), outcomes.iter().filter(|is_ok| !**is_ok).count() as u64);
            assert!(proxy.commands() >= proxy.scripts());
            outcomes
        };
        let first = outcomes(7, How::Swallow);
        assert_eq!(first, outcomes(7, How::Swallow));
        assert_eq!(first, outcomes(7, How::Reset));
        assert_ne!(first, outcomes(8, How::Reset));
        assert_eq!(redis.query::<u64>(&["GET", "k"]), 200);
    }

    #[test]
    fn replies_come_late_or_not_at_all_until_it_forwards_again() {
        let redis = RedisServer::start();
        let proxy = CuttingProxy::before(redis.address());
        let mut connection = connect(&proxy);
        proxy.delay(Duration::from_millis(50));
        let asked = Instant::now();
        add(&mut connection).unwrap();
        assert!(asked.elapsed() >= Duration::from_millis(50));
        proxy.freeze();
        connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        add(&mut connection).unwrap_err();
        assert_eq!(redis.query::<u64>(&["GET", "k"]), 1, "nor did the command arrive");
        proxy.forward();
        until_equal_to(&redis, 2);
        proxy.refuse();
        // It is noticed a moment later.
        until(PATIENCE, "the connection is cut", || add(&mut connection).is_err().then_some(()));
        proxy.forward();
        assert!(add(&mut connect(&proxy)).unwrap() >= 3);
    }

    #[test]
    fn connections_go_over_to_another_server() {
        let [one, two] = [RedisServer::start(), RedisServer::start()];
        let proxy = CuttingProxy::before(one.address());
        let mut connection = connect(&proxy);
        add(&mut connection).unwrap();
        proxy.retarget(two.address());
        // It is noticed a moment later.
        until(PATIENCE, "the connection is cut", || add(&mut connection).is_err().then_some(()));
        add(&mut connect(&proxy)).unwrap();
        assert!(one.query::<u64>(&["GET", "k"]) >= 1);
        assert_eq!(two.query::<u64>(&["GET", "k"]), 1);
    }

    #[test]
    fn a_replica_behind_it_can_be_made_to_lag() {
        let master = RedisServer::start();
        let _: String = master.query(&["SET", "k", "1"]);
        let proxy = CuttingProxy::before(master.address());
        let replica = replica_of(proxy.address());
        let _: u64 = master.query(&["INCR", "k"]);
        until_equal_to(&replica, 2);
        proxy.freeze();
        let _: u64 = master.query(&["INCR", "k"]);
        let _: String = replica.query(&["REPLICAOF", "NO", "ONE"]);
        proxy.forward();
        assert_eq!(replica.query::<u64>(&["GET", "k"]), 2, "it has never heard of the last");
    }

    fn until_equal_to(redis: &RedisServer, expected: u64) {
        until(PATIENCE, "the command arrives", || (redis.query::<u64>(&["GET", "k"]) == expected).then_some(()));
    }

    #[test]
    fn values_are_as_long_as_the_protocol_says() {
        let value = b"*3\r\n$4\r\na\r\nb\r\n:17\r\n*2\r\n$-1\r\n+OK\r\n";
        for end in 0..value.len() {
            assert_eq!(value_length(&value[..end]), None, "{end}");
        }
        assert_eq!(value_length(&[&value[..], b"-ERR\r\n"].concat()), Some(value.len()));
        assert!(is_script(b"*2\r\n$7\r\nevalsha\r\n$1\r\nx\r\n") && !is_script(b"*1\r\n$4\r\nPING\r\n"));
    }
}
