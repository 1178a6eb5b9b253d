//! `tidegate serve`: open the ports, answer, and stop without a failed call.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep, timeout};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::cli::Exit;
use crate::cli::check::{counts, plural, print};
use crate::engine::Engine;
use crate::observe::logging;
use crate::rules::lint::not_honoured;
use crate::rules::{Loaded, Ruleset};
use crate::server::connection::{self, ConnectionBounds};
use crate::server::drain::{self, Drainer, Phase};
use crate::server::service::{Service, wall_ms};
use crate::server::{grpc, http};
use crate::settings::{RuleFlags, ServeFlags, Settings};
use crate::sources::files;

/// How often expired keys are looked for.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(1);

pub fn run(flags: &ServeFlags) -> anyhow::Result<Exit> {
    let settings = Settings::new(flags)?;
    logging::start(flags.log_level, flags.log_format);
    let loaded = files::load(&flags.rules.rules, &flags.rules.options());
    let Some(ruleset) = report(loaded) else { return Ok(Exit::Failure) };
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("can't start")?;
    runtime.block_on(serve(settings, ruleset, &flags.rules))?;
    // Calls that outlived the drain timeout do not hold the exit up.
    runtime.shutdown_background();
    Ok(Exit::Success)
}

/// Connections are files: as many as the system lets us have.
fn raise_open_files() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "can't raise the number of open files");
    }
}

/// Says what was found in the rules. `None` if they can't be used.
fn report(loaded: Loaded) -> Option<Ruleset> {
    let (errors, warnings) = counts(&loaded.problems);
    match loaded.ruleset {
        None => {
            // Nobody to tell if standard error is gone.
            let _ = print(&mut std::io::stderr(), &loaded.problems);
            let (errors, warnings) = (plural(errors, "error"), plural(warnings, "warning"));
            logging::say(&format!(
                "tidegate: not started: {errors} and {warnings} in the rules; tidegate check shows the same"
            ));
            None
        }
        Some(ruleset) => {
            for problem in &loaded.problems {
                tracing::warn!("{}: {} ({})", problem.place, problem.message, problem.help);
            }
            for sentence in not_honoured(&ruleset) {
                tracing::warn!("{sentence}");
            }
            Some(ruleset)
        }
    }
}

async fn serve(settings: Settings, ruleset: Ruleset, rules: &RuleFlags) -> anyhow::Result<()> {
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let grpc_listener = bind("gRPC", settings.grpc_addr, "--grpc-port (GRPC_PORT)").await?;
    let http_listener = bind("HTTP", settings.http_addr, "--port (PORT)").await?;
    let counted = (ruleset.rules_count(), ruleset.domains().count());
    let addresses = (grpc_listener.local_addr()?, http_listener.local_addr()?);

    let engine = Engine::new(settings.keys_max);
    let service = Service::new(engine, settings.bounds, settings.modes, settings.answers, settings.in_flight_max);
    service.install(ruleset);
    let service = Arc::new(service);
    let health = HealthReporter::new();
    report_health(&health, ServingStatus::Serving).await;
    let (drainer, drain) = drain::channel();

    let routes = grpc::routes(service.clone(), health.clone(), settings.message_bytes_max)?;
    let bounds = ConnectionBounds {
        connections_max: settings.connections_max,
        age: settings.connection_age,
        grace: settings.connection_grace,
    };
    let mut grpc = tokio::spawn(connection::serve(grpc_listener, routes, bounds, drain.clone()));
    let router = http::router(service.clone(), drain.clone(), settings.message_bytes_max)?;
    let mut http = tokio::spawn(http::serve(http_listener, router, drain.clone()));
    tokio::spawn(expire(service.clone()));
    announce(addresses, counted);

    loop {
        tokio::select! {
            _ = hang_up.recv() => reload(&service, rules),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            // A port that nobody serves any more must not look like one that is served.
            ended = &mut grpc => anyhow::bail!("the gRPC port stopped: {ended:?}"),
            ended = &mut http => anyhow::bail!("the HTTP port stopped: {ended:?}"),
        }
    }
    let finished = async {
        stop(&drainer, &health, settings.drain_delay).await;
        let both = async { tokio::join!(&mut grpc, &mut http) };
        if timeout(settings.drain_timeout, both).await.is_err() {
            tracing::warn!("stopped with calls still open: they did not end within the drain timeout");
        }
    };
    tokio::select! {
        () = finished => {}
        // Someone at a terminal who asks twice does not want to wait.
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Reads the rules again. Bad ones change nothing; counts survive in any case.
fn reload(service: &Service, rules: &RuleFlags) {
    let loaded = files::load(&rules.rules, &rules.options());
    let (errors, _) = counts(&loaded.problems);
    for problem in &loaded.problems {
        tracing::warn!("{}: {}: {} ({})", problem.place, problem.severity, problem.message, problem.help);
    }
    match loaded.ruleset {
        Some(ruleset) => {
            tracing::info!(rules = ruleset.rules_count(), "the rules were reloaded");
            service.install(ruleset);
        }
        None => tracing::error!(errors, "the rules were not reloaded, those from before stay in force"),
    }
}

/// Announces the stop, waits for it to be noticed, then asks every connection to finish.
async fn stop(drainer: &Drainer, health: &HealthReporter, delay: Duration) {
    tracing::info!(?delay, "stopping: health says NOT_SERVING, calls are still answered");
    drainer.enter(Phase::Announced);
    report_health(health, ServingStatus::NotServing).await;
    sleep(delay).await;
    drainer.enter(Phase::Closing);
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
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
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

async fn expire(service: Arc<Service>) {
    let mut ticks = interval(EXPIRE_INTERVAL);
    loop {
        ticks.tick().await;
        service.engine().expire(wall_ms());
    }
}

/// One line that says where to point Envoy, also when the log level is above it.
fn announce((grpc, http): (SocketAddr, SocketAddr), (rules, domains): (usize, usize)) {
    tracing::info!(%grpc, %http, rules, domains, "serving");
    if std::io::stderr().is_terminal() || !tracing::enabled!(tracing::Level::INFO) {
        let (rules, domains) = (plural(rules, "rule"), plural(domains, "domain"));
        logging::say(&format!("tidegate: serving {rules} in {domains} on {grpc} (gRPC) and {http} (HTTP)"));
    }
}
