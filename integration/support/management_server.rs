//! A management server (ADS, state of the world) that tests control: they see what it is asked, and set what it says.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use prost::{Message, Name};
use tidegate::proto::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use tidegate::proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use tidegate::proto::google::protobuf::Any;
use tidegate::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::support::harness::{PATIENCE, until};

type Responses = Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

/// A request, with the headers of the stream it came on.
#[derive(Clone, Debug)]
pub struct Heard {
    pub request: DiscoveryRequest,
    pub headers: Vec<(String, String)>,
}

#[derive(Clone)]
struct Ads {
    heard: Arc<Mutex<VecDeque<Heard>>>,
    /// Every client that asks is told this, at once and whenever it changes.
    said: watch::Receiver<Option<DiscoveryResponse>>,
}

pub struct ManagementServer {
    pub address: SocketAddr,
    ads: Ads,
    says: watch::Sender<Option<DiscoveryResponse>>,
    /// Everything that it serves ends with it. `None` only while the server restarts or is dropped.
    runtime: Option<Runtime>,
    nonce: u64,
}

impl ManagementServer {
    pub fn start() -> ManagementServer {
        ManagementServer::launch("127.0.0.1:0".parse().unwrap(), None)
    }

    /// With TLS, for clients that have a certificate of this CA.
    pub fn with_tls(certificate: &str, key: &str, ca: &str) -> ManagementServer {
        let read = |file: &str| std::fs::read(file).unwrap();
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(read(certificate), read(key)))
            .client_ca_root(Certificate::from_pem(read(ca)));
        ManagementServer::launch("127.0.0.1:0".parse().unwrap(), Some(tls))
    }

    fn launch(address: SocketAddr, tls: Option<ServerTlsConfig>) -> ManagementServer {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (says, said) = watch::channel(None);
        let ads = Ads { heard: Arc::default(), said };
        let service = AggregatedDiscoveryServiceServer::new(ads.clone());
        let _on_runtime = runtime.enter();
        let incoming = until(PATIENCE, "the port is free", || TcpIncoming::bind(address).ok());
        let address = incoming.local_addr().unwrap();
        let mut builder = Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        runtime.spawn(builder.add_service(service).serve_with_incoming(incoming));
        drop(_on_runtime);
        ManagementServer { address, ads, says, runtime: Some(runtime), nonce: 0 }
    }

    /// Says a version to everyone, and returns its nonce.
    pub fn say(&mut self, version: &str, configs: &[RateLimitConfig]) -> String {
        let any =
            |config: &RateLimitConfig| Any { type_url: RateLimitConfig::type_url(), value: config.encode_to_vec() };
        self.say_resources(version, configs.iter().map(any).collect())
    }

    pub fn say_resources(&mut self, version: &str, resources: Vec<Any>) -> String {
        self.nonce += 1;
        let nonce = self.nonce.to_string();
        self.says.send_replace(Some(DiscoveryResponse {
            version_info: version.into(),
            resources,
            type_url: RateLimitConfig::type_url(),
            nonce: nonce.clone(),
            ..DiscoveryResponse::default()
        }));
        nonce
    }

    /// Waits for the next request that fits.
    pub fn asked(&self, what: &str, is_it: impl Fn(&DiscoveryRequest) -> bool) -> Heard {
        until(PATIENCE, what, || {
            let mut heard = self.ads.heard.lock().unwrap();
            let at = heard.iter().position(|heard| is_it(&heard.request))?;
            heard.drain(..=at).next_back()
        })
    }

    /// Waits for the answer to a nonce. Returns the version that is in force, and why the one of the nonce is not.
    pub fn answer_to(&self, nonce: &str) -> (String, Option<String>) {
        let heard = self.asked("an answer", |request| request.response_nonce == nonce);
        (heard.request.version_info, heard.request.error_detail.map(|status| status.message))
    }

    /// Ends all streams, and serves again on the same port.
    pub fn restart(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // One runtime must not wait for another.
            let stopped = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(1)));
            stopped.join().unwrap();
        }
        let again = ManagementServer::launch(self.address, None);
        *self = again;
    }
}

impl Drop for ManagementServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream = Responses;
    type DeltaAggregatedResourcesStream = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let text = |value: &tonic::metadata::MetadataValue<tonic::metadata::Ascii>| {
            value.to_str().unwrap_or_default().to_owned()
        };
        let headers = request.metadata().iter().filter_map(|pair| match pair {
            tonic::metadata::KeyAndValueRef::Ascii(key, value) => Some((key.to_string(), text(value))),
            tonic::metadata::KeyAndValueRef::Binary(..) => None,
        });
        let headers: Vec<(String, String)> = headers.collect();
        let mut requests = request.into_inner();
        let heard = self.heard.clone();
        let (first, mut is_asked) = mpsc::channel::<()>(1);
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                heard.lock().unwrap().push_back(Heard { request, headers: headers.clone() });
                let _ = first.try_send(());
            }
        });
        // Nothing is said before somebody asks.
        is_asked.recv().await;
        let mut said = self.said.clone();
        said.mark_changed();
        let responses = stream::unfold(said, |mut said| async move {
            loop {
                said.changed().await.ok()?;
                let response = said.borrow_and_update().clone();
                if let Some(response) = response {
                    return Some((Ok(response), said));
                }
            }
        });
        Ok(Response::new(Box::pin(responses)))
    }

    async fn delta_aggregated_resources(
        &self,
        _request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

/// A domain with one rule: this many requests a minute for each value of a key.
pub fn per_minute(domain: &str, key: &str, requests_per_unit: u32) -> RateLimitConfig {
    let unit = RateLimitUnit::Minute.into();
    let rate_limit = Some(RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() });
    let descriptor = RateLimitDescriptor { key: key.into(), rate_limit, ..RateLimitDescriptor::default() };
    RateLimitConfig { name: format!("{domain}/{key}"), domain: domain.into(), descriptors: vec![descriptor] }
}
