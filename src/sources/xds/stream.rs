//! The stream to the management server: opened, listened to, and opened again.

use std::time::Duration;

use crate::proto::envoy::config::core::v3::Node;
use crate::proto::envoy::service::discovery::v3::DiscoveryRequest;
use crate::proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use crate::proto::google::protobuf::value::Kind;
use crate::proto::google::protobuf::{Struct, Value};
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::rules::RuleText;
use crate::sources::xds::settings::{XdsSettings, XdsTls};
use crate::sources::xds::subscription::Subscription;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the server is pinged, so that one that is gone without a word is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How many requests may wait to be sent. There is one for each response, so the channel is never full.
const REQUESTS_MAX: usize = 16;

/// Takes rules, or says why it does not.
pub(crate) trait Taker {
    fn take(&self, sources: Vec<RuleText>) -> impl Future<Output = Result<(), String>> + Send;
}

/// Listens for rules, for as long as the process runs. Streams that end are opened again.
pub(crate) async fn follow(settings: XdsSettings, taker: impl Taker) {
    let mut subscription = Subscription::new(node(&settings));
    let mut pause = settings.retry_interval;
    loop {
        let before = subscription.version().to_owned();
        match listen(&settings, &mut subscription, &taker).await {
            Ok(()) => tracing::info!(server = %settings.place, "the management server has closed the stream"),
            Err(error) => {
                tracing::warn!(server = %settings.place, error, "no rules from the management server: trying again");
            }
        }
        // A stream that brought rules was a good one, so the pauses start over.
        if subscription.version() != before {
            pause = settings.retry_interval;
        }
        sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
        pause = (pause * 2).min(settings.retry_interval_max);
    }
}

/// One stream, from its beginning to its end.
async fn listen(settings: &XdsSettings, subscription: &mut Subscription, taker: &impl Taker) -> Result<(), String> {
    let channel = channel(settings).await?;
    let mut client =
        AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(settings.message_bytes_max);
    let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
    let gone = |_| "the stream has ended".to_owned();
    requests.send(subscription.begin()).await.map_err(gone)?;
    let told = stream::unfold(receiver, |mut receiver: mpsc::Receiver<DiscoveryRequest>| async move {
        receiver.recv().await.map(|request| (request, receiver))
    });
    let mut request = Request::new(told);
    for (name, value) in &settings.headers {
        // Names and values were checked with the settings.
        if let (Ok(name), Ok(value)) = (name.as_str().parse::<tonic::metadata::AsciiMetadataKey>(), value.to_str())
            && let Ok(value) = value.parse()
        {
            request.metadata_mut().insert(name, value);
        }
    }
    let failed = |status: tonic::Status| format!("{}: {}", status.code(), status.message());
    let mut responses = client.stream_aggregated_resources(request).await.map_err(failed)?.into_inner();
    tracing::info!(server = %settings.place, "connected to the management server");
    while let Some(response) = responses.message().await.map_err(failed)? {
        let Some(received) = subscription.hear(&response) else { continue };
        let taken = match received.sources {
            Ok(sources) => taker.take(sources).await,
            Err(why) => Err(why),
        };
        let answer = match taken {
            Ok(()) => {
                tracing::info!(version = received.version, "rules of the management server are in force");
                subscription.accept(&received.version)
            }
            Err(why) => {
                tracing::error!(version = received.version, why, "rules of the management server are refused");
                subscription.refuse(&why)
            }
        };
        requests.send(answer).await.map_err(gone)?;
    }
    Ok(())
}

async fn channel(settings: &XdsSettings) -> Result<Channel, String> {
    let mut endpoint = Endpoint::from(settings.uri.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true);
    if let Some(tls) = &settings.tls {
        endpoint = endpoint.tls_config(tls_config(tls)?).map_err(|error| in_full(&error))?;
    }
    endpoint.connect().await.map_err(|error| in_full(&error))
}

/// Reads the files anew, at each connect.
fn tls_config(tls: &XdsTls) -> Result<ClientTlsConfig, String> {
    let read =
        |path: &std::path::Path| std::fs::read(path).map_err(|error| format!("can't read {}: {error}", path.display()));
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(read(ca)?)),
        None => config.with_native_roots(),
    };
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    if let Some(name) = &tls.name {
        config = config.domain_name(name);
    }
    Ok(config)
}

/// An error with all its causes: the outermost only says that something failed.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

fn node(settings: &XdsSettings) -> Node {
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let fields = settings.node_metadata.iter().map(|(name, text)| (name.clone(), value(text)));
    let metadata = (!settings.node_metadata.is_empty()).then(|| Struct { fields: fields.collect() });
    Node { id: settings.node_id.clone(), metadata, ..Node::default() }
}
