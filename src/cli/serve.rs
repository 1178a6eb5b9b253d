//! `tidegate serve`: open the ports, answer, and stop without a failed call.

use std::io::IsTerminal;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::cli::check::{counts, plural, print};
use crate::cli::{Exit, known_variables};
use crate::engine::Engine;
use crate::engine::reach::Store;
use crate::engine::table::weight::Capacity;
use crate::global::driver::{GlobalDriver, GlobalStart, OriginLinks};
use crate::global::exchange::ExchangeOptions;
use crate::global::mysql::MySql;
use crate::global::settings::{GlobalSettings, RegionNames};
use crate::observe::logging;
use crate::regional::call::ProcessId;
use crate::regional::driver::{RegionalDriver, RegionalOptions};
use crate::regional::key_names::KeyNames;
use crate::regional::node_map::NodeMap;
use crate::regional::redis::Redis;
use crate::regional::redis::settings::RedisSettings;
use crate::regional::region::RegionOptions;
use crate::server::admin::Admin;
use crate::server::connection_stats::ConnectionStats;
use crate::server::drain::{self, DrainPhase, Drainer};
use crate::server::grpc::connection::{self, ConnectionBounds, GrpcPort};
use crate::server::grpc::workers::Workers;
use crate::server::listener::{GrpcListener, UnixSocket};
use crate::server::reload::{self, Reloader, XdsFollower};
use crate::server::service::Service;
use crate::server::tls::ServerTls;
use crate::server::{grpc, http};
use crate::settings::serve_flags::ServeFlags;
use crate::settings::sharing::SharingSettings;
use crate::settings::{PrometheusPort, Settings, ineffective};
use crate::sources::files::Location;
use crate::sources::load_status::now_s;
use crate::sources::rule_source::{RuleNews, RuleSource};
use crate::sources::xds::settings::XdsSettings;
use crate::sources::xds::stream;

/// How often expired keys, and rules that no request sees any more, are cleared away.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(flags: &ServeFlags) -> anyhow::Result<Exit> {
    let settings = Settings::new(flags)?;
    logging::start(flags.log_level, flags.log_format);
    warn_of_ineffective_settings();
    if let Some(warning) = flags.tls.warning() {
        tracing::warn!("{warning}");
    }
    for warning in settings.sharing.warnings(&flags.sharing) {
        tracing::warn!("{warning}");
    }
    let engine = Engine::with(settings.capacity, settings.sharing.layers());
    let (keys_max, Capacity { keys, bytes }) = (engine.table().keys_max(), settings.capacity);
    if keys_max < keys {
        tracing::warn!(
            "there is room for {keys_max} keys, not for the {keys} of TIDEGATE_KEYS_MAX: they may take {bytes} bytes \
             (TIDEGATE_KEYS_BYTES_MAX, by default 60 % of the memory limit)"
        );
    }
    let reloader = Reloader {
        options: flags.rules.options()?,
        service: Arc::new(Service::new(engine, settings.service.clone())),
        config: Arc::default(),
        deployment: settings.sharing.deployment(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("can't start")?;
    // Before the first load, which takes its time: a signal that comes meanwhile must not end the process by default.
    let signals = {
        let _on_runtime = runtime.enter();
        Signals::new()?
    };
    let (news, signals) = match &settings.rules {
        RuleSource::Server(xds) => match runtime.block_on(first_rules(xds, &reloader, settings.force_start, signals)) {
            Some(started) => started,
            None => return Ok(Exit::Success),
        },
        RuleSource::Files(location) => {
            // Before the first load, so that no change falls in between.
            let news = RuleNews::of_files(location);
            tracing::debug!(rules = %location, "reading the rules");
            if !first_load(&reloader, location, settings.force_start) {
                return Ok(Exit::Failure);
            }
            (news, signals)
        }
    };
    raise_open_files();
    runtime.block_on(serve(settings, reloader, news, signals))?;
    // The exit does not wait for calls that outlived the drain timeout.
    runtime.shutdown_background();
    Ok(Exit::Success)
}

fn warn_of_ineffective_settings() {
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    for sentence in
        ineffective::sentence(&environment).into_iter().chain(ineffective::unknown(&environment, &known_variables()))
    {
        tracing::warn!("{sentence}");
    }
}

/// Raises the number of open files as far as the system lets us: each connection is one.
fn raise_open_files() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "can't raise the number of open files");
    }
}

/// Loads the first rules and prints what was found in them. Returns false if the start has to be given up.
fn first_load(reloader: &Reloader, location: &Location, is_forced: bool) -> bool {
    match reloader.load(location) {
        Ok(problems) => {
            reload::log(&problems);
            reloader.not_honoured().iter().for_each(|sentence| tracing::warn!("{sentence}"));
            true
        }
        Err(problems) if is_forced => {
            reload::log(&problems);
            tracing::error!("started without rules: calls fail until there are good ones in {location}");
            true
        }
        Err(problems) => {
            // If standard error is gone, there is nobody to tell.
            let _ = print(&mut std::io::stderr(), &problems);
            let (errors, warnings) = counts(&problems);
            let (errors, warnings) = (plural(errors, "error"), plural(warnings, "warning"));
            logging::say(&format!("tidegate: not started: {errors} and {warnings} in the rules"));
            false
        }
    }
}

/// Follows a management server, and waits for its first rules unless the start is forced. `None` if it was asked to
/// stop before they came.
async fn first_rules(
    xds: &XdsSettings,
    reloader: &Reloader,
    is_forced: bool,
    mut signals: Signals,
) -> Option<(RuleNews, Signals)> {
    let (news, mut heard) = watch::channel(0);
    tokio::spawn(stream::follow(xds.clone(), XdsFollower { reloader: reloader.clone(), news }));
    if !is_forced {
        logging::say(&format!("tidegate: waiting for the first rules from {}", xds.place));
        tokio::select! {
            _ = heard.changed() => {}
            _ = signals.terminate.recv() => return None,
            _ = signals.interrupt.recv() => return None,
        }
    }
    Some((RuleNews::Server(heard), signals))
}

/// The signals that tell the process to stop or to reload.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

async fn serve(settings: Settings, reloader: Reloader, news: RuleNews, signals: Signals) -> anyhow::Result<()> {
    let Signals { mut terminate, mut interrupt, hang_up } = signals;
    let tls = settings.tls.clone().map(ServerTls::start).transpose()?;
    let grpc_listener = match &settings.grpc_socket {
        Some(socket) => GrpcListener::Unix(UnixSocket::open(socket)?),
        None => GrpcListener::Tcp(bind("gRPC", settings.grpc_addr, "--grpc-port (GRPC_PORT)").await?),
    };
    let http_listener = bind("HTTP", settings.http_addr, "--port (PORT)").await?;
    let admin_listener = bind("admin", settings.admin_addr, "--debug-port (DEBUG_PORT)").await?;
    let addresses = (grpc_listener.address()?, http_listener.local_addr()?, admin_listener.local_addr()?);

    let service = reloader.service.clone();
    let sharing = &settings.sharing;
    let key_names = KeyNames::new(sharing.secret.clone());
    let joining = StoreJoin { service: &service, key_names: &key_names, sharing, process: rand::random() };
    let regional = sharing.redis.clone().map(|redis| joining.region(redis));
    let owner = sharing.owner.redis.clone().map(|redis| joining.owner(redis));
    let migrates = settings.migrates;
    let global = sharing.global.clone().map(|global| joining.others(global, migrates, regional.as_ref()));
    let health = Health { reporter: HealthReporter::new(), needs_rules: !is_ready_without_rules(&settings) };
    health.report(&service).await;
    let (drainer, drain) = drain::channel();
    let calls = grpc::calls(service.clone(), health.reporter.clone(), settings.message_bytes_max)?;
    let bounds = ConnectionBounds {
        connections_max: settings.connections_max,
        age: settings.connection_age,
        grace: settings.connection_grace,
    };
    let connections = Arc::new(ConnectionStats::default());
    let admin = Admin {
        service: service.clone(),
        config: reloader.config.clone(),
        connections: connections.clone(),
        tls: tls.clone(),
        scrape: Arc::new(settings.scrape.clone()),
        rules_at: settings.rules.to_string().into(),
        started_at_s: now_s(),
        is_loopback: settings.admin_addr.ip().is_loopback(),
        log: Arc::default(),
    };
    let mut ports = JoinSet::new();
    if let Some(PrometheusPort { addr, path }) = &settings.prometheus {
        let listener = bind("metrics", *addr, "--prometheus-addr (PROMETHEUS_ADDR)").await?;
        ports.spawn(http::serve(listener, "metrics", admin.clone().metrics_router(path), drain.clone()));
    }
    let router = http::router(
        service.clone(),
        drain.clone(),
        settings.message_bytes_max,
        is_ready_without_rules(&settings),
        settings.has_http_json,
    )?;
    let workers = Arc::new(Workers::start(settings.workers).context("can't start the threads of the gRPC port")?);
    let port = GrpcPort { calls, tls: tls.clone(), bounds, stats: connections, workers };
    ports.spawn(connection::serve(grpc_listener, port, drain.clone()));
    ports.spawn(http::serve(http_listener, "HTTP", router, drain.clone()));
    ports.spawn(http::serve(admin_listener, "admin", admin.router(), drain.clone()));
    std::thread::Builder::new().name("tidy".into()).spawn(move || tidy(&service))?;
    let config = reloader.config.read();
    announce(addresses, (config.rules, config.domains));

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = reload(reloader, tls, &health, news, hang_up) => {}
        // A port that nobody serves any more must not look like one that is served.
        ended = ports.join_next() => anyhow::bail!("a port stopped: {ended:?}"),
    }
    let finished = async {
        stop(&drainer, &health.reporter, settings.drain_delay).await;
        let until = Instant::now() + settings.drain_timeout;
        let all = async { while ports.join_next().await.is_some() {} };
        if timeout(settings.drain_timeout, all).await.is_err() {
            tracing::warn!("stopped with calls still open: they did not end within the drain timeout");
        }
        for regional in [&regional, &owner].into_iter().flatten() {
            regional.leave(until).await;
        }
        if let Some(global) = &global {
            global.leave().await;
        }
    };
    tokio::select! {
        () = finished => {}
        // Someone at a terminal who interrupts again does not want to wait.
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Connects the process to the stores and regions that it shares counts with.
struct StoreJoin<'a> {
    service: &'a Arc<Service>,
    key_names: &'a KeyNames,
    sharing: &'a SharingSettings,
    /// Names this process at the stores. Drawn anew at each start.
    process: u64,
}

impl StoreJoin<'_> {
    fn start(&self, redis: RedisSettings, store: Store) -> Arc<RegionalDriver> {
        let deadline = redis.origin_deadline;
        let region = RegionOptions {
            store,
            process: ProcessId(self.process),
            key_names: self.key_names.clone(),
            is_cluster: false,
            nodes: Arc::new(NodeMap::undivided("store")),
            deadline_us: u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX),
            breaker: self.sharing.outages.breaker,
            seed: rand::random(),
        };
        let is_owner = self.service.engine().layers().owner == Some(store);
        let strict_deadline = is_owner.then_some(self.sharing.owner.timeout);
        let replicas = if is_owner { self.sharing.owner.replicas } else { 0 };
        let replicated = (replicas > 0).then(|| Redis::start_replicated(redis.clone(), replicas));
        let options = RegionalOptions { region, deadline, strict_deadline, replicated, began: self.service.began() };
        RegionalDriver::start(self.service.engine().clone(), Redis::start(redis), options)
    }

    /// Shares the counts with the other processes of the region from now on.
    fn region(&self, redis: RedisSettings) -> Arc<RegionalDriver> {
        let regional = self.start(redis, Store::Origin);
        self.service.join(regional.clone());
        regional
    }

    /// Has strict limits decided by their owner from now on.
    fn owner(&self, redis: RedisSettings) -> Arc<RegionalDriver> {
        let owner = self.start(redis, Store::Owner);
        self.service.join_owner(owner.clone());
        owner
    }

    /// Shares the counts with other regions from now on.
    fn others(
        &self,
        settings: GlobalSettings,
        migrates: bool,
        regional: Option<&Arc<RegionalDriver>>,
    ) -> Arc<GlobalDriver> {
        let GlobalSettings { mysql, names: RegionNames { region, regions } } = settings;
        let timeout_ms = u64::try_from(mysql.timeout.as_millis()).unwrap_or(u64::MAX);
        let options = ExchangeOptions {
            region,
            regions,
            key_names: self.key_names.clone(),
            timeout_ms,
            seed: rand::random(),
            process: regional.map(|_| ProcessId(self.process)),
        };
        let origin = regional
            .zip(self.sharing.redis.clone())
            .map(|(regional, redis)| OriginLinks { calls: regional.redis().clone(), feed: Redis::start_feed(redis) });
        let outage_after = self.sharing.outages.global_after;
        let start = GlobalStart { place: mysql.place.clone(), migrates, outage_after };
        let engine = self.service.engine().clone();
        let global = GlobalDriver::start(engine, MySql::new(&mysql), origin, options, start);
        self.service.join_others(global.clone());
        global
    }
}

/// Loads the rules again whenever their files change or somebody asks for it.
async fn reload(
    reloader: Reloader,
    tls: Option<Arc<ServerTls>>,
    health: &Health,
    mut news: RuleNews,
    mut hang_up: Signal,
) {
    loop {
        tokio::select! {
            () = news.next() => {}
            _ = hang_up.recv() => {
                // Certificates are watched on their own, but a hang-up means them too. Neither reload waits for the
                // other.
                if let Some(tls) = tls.clone() {
                    tokio::task::spawn_blocking(move || tls.reload());
                }
            }
        }
        // Rules from a server are in force already.
        if let RuleNews::Files(location, _) = &news {
            let (reloading, location) = (reloader.clone(), location.clone());
            if let Err(error) = tokio::task::spawn_blocking(move || reloading.reload(&location)).await {
                tracing::error!(%error, "the rules could not be reloaded");
            }
        }
        health.report(&reloader.service).await;
    }
}

fn is_ready_without_rules(settings: &Settings) -> bool {
    settings.force_start && !settings.ready_with_rules_only
}

/// What gRPC health says until the process is asked to stop.
struct Health {
    reporter: HealthReporter,
    /// Without rules, health says NOT_SERVING.
    needs_rules: bool,
}

impl Health {
    async fn report(&self, service: &Service) {
        let is_ready = service.has_rules() || !self.needs_rules;
        let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        report_health(&self.reporter, status).await;
    }
}

/// Announces the stop, waits for it to be noticed, then asks every connection to finish.
async fn stop(drainer: &Drainer, health: &HealthReporter, delay: Duration) {
    tracing::info!(?delay, "stopping: health says NOT_SERVING, calls are still answered");
    drainer.enter(DrainPhase::Announced);
    report_health(health, ServingStatus::NotServing).await;
    sleep(delay).await;
    drainer.enter(DrainPhase::Closing);
    // Ends the streams of those who watch health, which would otherwise stay open for good.
    let mut health = health.clone();
    for name in ["", grpc::HEALTH_NAME] {
        health.clear_service_status(name).await;
    }
}

async fn report_health(health: &HealthReporter, status: ServingStatus) {
    for name in ["", grpc::HEALTH_NAME] {
        health.set_service_status(name, status).await;
    }
}

async fn bind(what: &str, address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let stream = |address| socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None);
    let (socket, address) = match stream(address) {
        Ok(socket) => (socket, address),
        // All addresses are asked for, and this machine has no IPv6.
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            (stream(address)?, address)
        }
        Err(error) => return Err(error).with_context(|| format!("can't open the {what} port {address}")),
    };
    // `::` serves both families, whatever the system's default.
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket
        .bind(&address.into())
        .and_then(|()| socket.listen(4096))
        .with_context(|| format!("can't open the {what} port {address}: choose another with {flag}"))?;
    Ok(TcpListener::from_std(socket.into())?)
}

/// On a thread of its own, because a request must not wait for a sweep.
fn tidy(service: &Service) {
    loop {
        std::thread::sleep(TIDY_INTERVAL);
        service.tidy();
    }
}

/// Says in one line where to point Envoy, even if the log level hides that.
fn announce((grpc, http, admin): (String, SocketAddr, SocketAddr), (rules, domains): (usize, usize)) {
    tracing::info!(%grpc, %http, %admin, rules, domains, "serving");
    if std::io::stderr().is_terminal() || !tracing::enabled!(tracing::Level::INFO) {
        let (rules, domains) = (plural(rules, "rule"), plural(domains, "domain"));
        logging::say(&format!(
            "tidegate: serving {rules} in {domains} on {grpc} (gRPC), {http} (HTTP) and {admin} (admin)"
        ));
    }
}
