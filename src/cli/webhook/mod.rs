//! `tidegate webhook`: pods get their sidecar when they are made.

mod request;
pub(crate) mod review;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::cli::Exit;
use crate::cli::inject::SidecarFlags;
use crate::cli::inject::sidecar::Sidecar;
use crate::cli::webhook::review::Review;
use crate::observe::logging;
use crate::observe::logging::{LogFormat, LogLevel};
use crate::server::drain::{self, DrainPhase};
use crate::server::http::{respond, serve_tls};
use crate::server::tls::ServerTls;
use crate::server::tls::settings::{PairNames, TlsSettings};

/// The longest review. It has a pod and what it was before, each at most some 1.5 MiB.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long a stop waits for open reviews, which are short.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
pub struct WebhookFlags {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,

    /// PEM file of the certificate, with the name of the Service in it; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub tls_cert: PathBuf,

    /// PEM file of the certificate's private key; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub tls_key: PathBuf,

    #[command(flatten)]
    pub sidecar: SidecarFlags,

    /// How much to log
    #[arg(long, env = "LOG_LEVEL", value_enum, default_value = "warn", ignore_case = true)]
    pub log_level: LogLevel,

    /// How to log
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "text", ignore_case = true)]
    pub log_format: LogFormat,
}

pub(crate) fn run(flags: &WebhookFlags) -> anyhow::Result<Exit> {
    logging::start(flags.log_level, flags.log_format);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(flags))?;
    Ok(Exit::Success)
}

async fn serve(flags: &WebhookFlags) -> anyhow::Result<()> {
    let tls = ServerTls::start(TlsSettings {
        certificate: flags.tls_cert.clone(),
        key: flags.tls_key.clone(),
        clients: None,
        names: PairNames { certificate: "--tls-cert", key: "--tls-key" },
        protocol: b"http/1.1",
    })?;
    let listener =
        TcpListener::bind(flags.listen).await.with_context(|| format!("can't listen on {}", flags.listen))?;
    logging::say(&format!("tidegate: injecting {} into pods, on {}", flags.sidecar.image, listener.local_addr()?));
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (drainer, drain) = drain::channel();
    let mut hang_up = signal(SignalKind::hangup())?;
    let router = router(flags.sidecar.sidecar());
    let mut serving = tokio::spawn(serve_tls(listener, "webhook", router, tls.clone(), drain));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => tokio::task::block_in_place(|| tls.reload()),
            ended = &mut serving => return Ok(ended?),
        }
    }
    drainer.enter(DrainPhase::Closing);
    let _ = timeout(DRAIN_TIMEOUT, serving).await;
    Ok(())
}

fn router(sidecar: Sidecar) -> Router {
    Router::new()
        .route("/mutate", post(mutate))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async || "ok\n"))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::new(sidecar))
}

async fn mutate(State(usual): State<Arc<Sidecar>>, body: Bytes) -> Response {
    const JSON: &str = "application/json";
    match review::answer(&body, &usual) {
        Ok(answer) => {
            let pod = answer.review.pointer("/response/uid").and_then(serde_json::Value::as_str).unwrap_or_default();
            match answer.what {
                Review::Unchanged => tracing::debug!(review = pod, "a pod passes as it is"),
                Review::Injected => tracing::info!(review = pod, "a pod gets its sidecar"),
                Review::Denied(reason) => tracing::warn!(review = pod, reason, "a pod is denied"),
            }
            respond(StatusCode::OK, JSON, answer.review.to_string())
        }
        Err(error) => {
            tracing::warn!(error = error.to_string(), "a review can't be answered");
            respond(StatusCode::BAD_REQUEST, JSON, review::refusal(&error).to_string())
        }
    }
}
