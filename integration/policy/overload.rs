//! More requests than may wait for a slow Redis: those that matter least are answered without it, at once, and the others
//! are decided as fast as before.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prost::Message;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitResponse;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::frames::{Connection, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM};
use crate::support::harness::{PATIENCE, ask_one, until, until_equal};
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;
use crate::support::verdict::{TELLING, Verdict};

/// Every request asks.
const RULES: &str = "
domain: d
descriptors:
  - {key: comfort, rate_limit: {requests_per_unit: 1000000, unit: year, class: comfort, scope: regional, slack: 0}}
  - {key: cost, rate_limit: {requests_per_unit: 1000000, unit: year, class: cost, scope: regional, slack: 0}}
  - {key: security, rate_limit: {requests_per_unit: 1000000, unit: year, class: security, scope: regional, slack: 0}}
";
const CLASSES: [&str; 3] = ["comfort", "cost", "security"];

const IN_FLIGHT_MAX: &str = "32";
/// As many as can wait before anybody is turned away.
const CAPACITY_CALLERS: usize = 28;
const OVERLOAD_CALLERS: usize = 4 * CAPACITY_CALLERS;
/// How much later Redis answers.
const SLOWER: Duration = Duration::from_millis(20);
/// So many that requests hardly ever wait for each other's.
const KEYS: usize = 10_000;
const TIME: Duration = Duration::from_millis(1500);

/// What callers of one class have heard.
#[derive(Clone, Default)]
struct Heard {
    /// How long each took that Redis decided, and each that was turned away.
    decided: Vec<Duration>,
    shed: Vec<Duration>,
    /// What should not be.
    others: BTreeMap<String, usize>,
}

impl Heard {
    fn take(&mut self, other: Heard) {
        self.decided.extend(other.decided);
        self.shed.extend(other.shed);
        for (what, count) in other.others {
            *self.others.entry(what).or_default() += count;
        }
    }

    fn per_second(&self) -> f64 {
        self.decided.len() as f64 / TIME.as_secs_f64()
    }

    fn decided_share(&self) -> f64 {
        self.decided.len() as f64 / (self.decided.len() + self.shed.len()) as f64
    }
}

/// One who asks again only once answered, on a connection of its own.
struct Caller {
    class: &'static str,
    connection: Connection,
    /// Nobody else's, at this time.
    keys: std::ops::Range<usize>,
    stream: u32,
    dice: StdRng,
}

impl Caller {
    fn new(address: SocketAddr, number: usize, count: usize) -> Caller {
        const WINDOW: u32 = 1 << 30;
        let mut connection = Connection::greeted(address);
        assert!(connection.send(&Frame::window_update(WINDOW).bytes()));
        let keys = number * KEYS / count..(number + 1) * KEYS / count;
        let dice = StdRng::seed_from_u64(number as u64);
        Caller { class: CLASSES[number % CLASSES.len()], connection, keys, stream: 1, dice }
    }

    /// Asks on and on for a time. Who is turned away comes back a little later.
    fn call(&mut self, time: Duration) -> Heard {
        let (mut heard, end) = (Heard::default(), Instant::now() + time);
        // Not all at the same moment.
        std::thread::sleep(self.dice.random_range(Duration::ZERO..SLOWER));
        loop {
            let asked = Instant::now();
            if asked >= end {
                return heard;
            }
            let verdict = self.ask();
            let took = asked.elapsed();
            match verdict {
                Some(verdict) if verdict.by == "origin" && verdict.reason == "within_limit" => heard.decided.push(took),
                Some(verdict) if verdict.by == "overload" && verdict.reason == "overload" => {
                    // Comfort goes on from memory, and the others refuse.
                    assert_eq!(verdict.is_ok, self.class == "comfort", "{verdict:?}");
                    heard.shed.push(took);
                    std::thread::sleep(self.dice.random_range(3 * SLOWER..5 * SLOWER));
                }
                other => *heard.others.entry(format!("{other:?}")).or_default() += 1,
            }
        }
    }

    /// Sends a request in one piece, as Envoy does. `None` is an error.
    fn ask(&mut self) -> Option<Verdict> {
        let request = ask_one(&format!("{}={}", self.class, self.dice.random_range(self.keys.clone())));
        let call = Frame::call(END_HEADERS, self.stream).bytes();
        let message = Frame::message(self.stream, &request.encode_to_vec()).bytes();
        assert!(self.connection.send(&[call, message].concat()));
        self.stream += 2;
        let mut verdict = None;
        loop {
            let frame = self.connection.read().expect("the connection stays");
            if frame.kind == DATA {
                // After the length of the message.
                let response = RateLimitResponse::decode(&frame.payload[5..]).expect("a response");
                verdict = Some(Verdict::of(&response));
            }
            if [HEADERS, DATA, RST_STREAM].contains(&frame.kind)
                && (frame.kind == RST_STREAM || frame.flags & END_STREAM != 0)
            {
                return verdict;
            }
        }
    }
}

/// So many callers at once, of all classes in turn: what each class has heard.
fn callers(address: SocketAddr, count: usize, time: Duration) -> BTreeMap<&'static str, Heard> {
    let callers: Vec<Caller> = (0..count).map(|number| Caller::new(address, number, count)).collect();
    let mut heard: BTreeMap<&str, Heard> = BTreeMap::new();
    std::thread::scope(|scope| {
        let call = |mut caller: Caller| scope.spawn(move || (caller.class, caller.call(time)));
        let threads: Vec<_> = callers.into_iter().map(call).collect();
        for thread in threads {
            let (class, one) = thread.join().expect("the caller did not fail");
            heard.entry(class).or_default().take(one);
        }
    });
    heard
}

fn sum(heard: &BTreeMap<&'static str, Heard>) -> Heard {
    let mut sum = Heard::default();
    heard.values().for_each(|one| sum.take(one.clone()));
    sum
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[test]
fn under_overload_everybody_is_answered_and_who_is_turned_away_is_counted() {
    print(&overload());
}

/// As many as may wait, then many more, then few again.
pub fn overload() -> Vec<Promise> {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let env: Vec<(&str, &str)> =
        [PATIENT, ("TIDEGATE_MAX_IN_FLIGHT", IN_FLIGHT_MAX)].into_iter().chain(TELLING).collect();
    let fleet = Fleet::together(1, RULES, &proxy.url(), &env);
    let service = &fleet.services[0];
    proxy.delay(SLOWER);

    let usual = sum(&callers(service.grpc, CAPACITY_CALLERS, TIME));
    let counted =
        || CLASSES.map(|class| service.metric(&format!("tidegate_shed_total{{class=\"{class}\"}}")).unwrap_or(0.0));
    let before = counted();
    let heard = callers(service.grpc, OVERLOAD_CALLERS, TIME);
    let after = counted();
    // What comes after it is decided by Redis again.
    let recovering = Instant::now();
    until(PATIENCE, "nobody is turned away any more", || {
        sum(&callers(service.grpc, 10, Duration::from_millis(200))).shed.is_empty().then_some(())
    });
    let recovered = recovering.elapsed();
    until_equal(PATIENCE, Some(0.0), || service.metric("tidegate_requests_waiting"));

    for (number, class) in CLASSES.into_iter().enumerate() {
        let shed = (after[number] - before[number]) as usize;
        eprintln!("{class}: {} decided, {shed} turned away", heard[class].decided.len());
        assert_eq!(shed, heard[class].shed.len(), "{class}: who was turned away is counted");
        let over = service.metric(&format!("ratelimit_service_rate_limit_over_limit{{domain=\"d\",key1=\"{class}\"}}"));
        assert_eq!(over.unwrap_or(0.0), 0.0, "{class}: who is turned away is not over its limit");
    }
    let all = sum(&heard);
    for others in [&usual.others, &all.others] {
        assert_eq!(others, &BTreeMap::new(), "everybody is answered, by Redis or at once");
    }
    let share = |class: &str| heard[class].decided_share();
    let turned_away = all.shed.len() as f64 / all.decided.len() as f64;
    let goodput = all.per_second() / usual.per_second();
    let (quick, slow) = (median(all.shed), median(all.decided));
    vec![
        Promise::at_most("turned away while there is room", 0.0, usual.shed.len() as f64),
        Promise::at_least("turned away for each that Redis decides: it is an overload", 0.25, turned_away),
        Promise::at_least("decided under overload, as a part of what Redis can", 0.9, goodput),
        Promise::at_least("decided of security, for comfort's share", share("comfort"), share("security")),
        Promise::within("who is turned away knows, in half the time of a decision", slow / 2, quick),
        Promise::within("nobody is turned away any more", Duration::from_secs(2), recovered),
    ]
}
