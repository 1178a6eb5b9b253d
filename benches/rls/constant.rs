//! Servers that decode the request and answer a constant: what is left of a rate limit service when nothing is limited.
//!
//! Each is a process of its own, which runs this program again. An answer is as long as a real one, with a status for each
//! descriptor.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use socket2::{Domain, Socket, Type};
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tidegate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate::proto::google::protobuf::Duration;
use tokio::runtime::Builder;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// The first argument of a process that runs one of these servers; the second says which.
pub const ARGUMENT: &str = "constant-server";

/// The flags and the length before a message.
const PREFIX_BYTES: usize = 5;
/// More connections than any scenario opens at once.
const BACKLOG: i32 = 1024;

#[derive(Clone, Copy, Debug)]
pub enum Constant {
    /// As everybody writes it: tonic on tokio's multi-thread runtime.
    Tonic,
    /// tonic on a runtime for each core; the kernel shares out the connections among them.
    TonicPerCore,
    /// hyper alone, on a runtime for each core.
    HyperPerCore,
}

impl Constant {
    pub const ALL: [Constant; 3] = [Constant::Tonic, Constant::TonicPerCore, Constant::HyperPerCore];

    pub fn name(self) -> &'static str {
        match self {
            Constant::Tonic => crate::servers::TONIC,
            Constant::TonicPerCore => "tonic per core",
            Constant::HyperPerCore => "hyper per core",
        }
    }
}

/// Serves until it is killed, on a port that it prints.
pub fn serve(name: &str) -> anyhow::Result<()> {
    let kind = Constant::ALL.into_iter().find(|kind| kind.name() == name).context("no such server")?;
    let first = reusable_listener(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let address = first.local_addr()?;
    if let Constant::Tonic = kind {
        announce(address)?;
        return Builder::new_multi_thread().enable_all().build()?.block_on(serve_tonic(first));
    }
    let cores = std::thread::available_parallelism()?.get();
    let mut listeners = vec![first];
    for _ in 1..cores {
        listeners.push(reusable_listener(address)?);
    }
    announce(address)?;
    let each = listeners.into_iter().map(|listener| std::thread::spawn(move || serve_core(kind, listener)));
    for thread in each.collect::<Vec<_>>() {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}

fn announce(address: SocketAddr) -> anyhow::Result<()> {
    println!("{address}");
    Ok(std::io::stdout().flush()?)
}

/// One of several listeners on the same port.
fn reusable_listener(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn serve_core(kind: Constant, listener: TcpListener) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    match kind {
        Constant::HyperPerCore => runtime.block_on(serve_hyper(listener)),
        Constant::Tonic | Constant::TonicPerCore => runtime.block_on(serve_tonic(listener)),
    }
}

async fn serve_tonic(listener: TcpListener) -> anyhow::Result<()> {
    let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true));
    Ok(Server::builder().add_service(RateLimitServiceServer::new(Answering)).serve_with_incoming(incoming).await?)
}

struct Answering;

#[tonic::async_trait]
impl RateLimitService for Answering {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(answer(request.get_ref())))
    }
}

fn answer(request: &RateLimitRequest) -> RateLimitResponse {
    let status = || DescriptorStatus {
        code: Code::Ok as i32,
        current_limit: Some(RateLimit {
            requests_per_unit: 4_000_000_000,
            unit: Unit::Year as i32,
            name: String::new(),
        }),
        limit_remaining: 3_999_999_999,
        duration_until_reset: Some(Duration { seconds: 4_000_000, nanos: 0 }),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: Code::Ok as i32,
        statuses: request.descriptors.iter().map(|_| status()).collect(),
        ..RateLimitResponse::default()
    }
}

async fn serve_hyper(listener: TcpListener) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        // If a connection breaks, the client notices.
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service_fn(call)));
    }
}

async fn call(
    request: http::Request<Incoming>,
) -> anyhow::Result<http::Response<impl Body<Data = Bytes, Error = std::convert::Infallible>>> {
    let framed = request.into_body().collect().await?.to_bytes();
    let message = framed.get(PREFIX_BYTES..).context("no message")?;
    let answer = answer(&RateLimitRequest::decode(message)?);
    let mut body = BytesMut::with_capacity(PREFIX_BYTES + answer.encoded_len());
    body.put_u8(0);
    body.put_u32(answer.encoded_len() as u32);
    answer.encode(&mut body)?;
    let trailers =
        HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let mut response = http::Response::new(Full::new(body.freeze()).with_trailers(async { Some(Ok(trailers)) }));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}
