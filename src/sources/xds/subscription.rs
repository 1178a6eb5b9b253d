//! What to tell the server: that we are there, which version we have, and why we do not take another.

use crate::proto::envoy::config::core::v3::Node;
use crate::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::proto::google::rpc::Status;
use crate::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use prost::{Message, Name};

use crate::rules::RuleText;
use crate::sources::xds::message::source;

/// How much of a refusal's reason the server is told.
const REASON_CHARS_MAX: usize = 4000;
/// `INVALID_ARGUMENT`, in the words of gRPC.
const INVALID_ARGUMENT: i32 = 3;

/// Our side of the stream. It outlives streams: a server that comes back hears which version we have.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    node: Node,
    /// The version in force, empty before the first.
    version: String,
    /// Of the last response on this stream; empty before the first.
    nonce: String,
}

/// What a response holds.
#[derive(Clone, Debug)]
pub(crate) struct ResponseResources {
    /// The server's name for these rules, which it hears again when they are accepted.
    pub version: String,
    /// All rules, or why they can't be read.
    pub sources: Result<Vec<RuleText>, String>,
}

impl Subscription {
    pub(crate) fn new(node: Node) -> Subscription {
        Subscription { node, version: String::new(), nonce: String::new() }
    }

    /// The version in force.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// The first request of a stream.
    pub(crate) fn begin(&mut self) -> DiscoveryRequest {
        self.nonce.clear();
        self.request()
    }

    fn request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.version.clone(),
            node: Some(self.node.clone()),
            type_url: RateLimitConfig::type_url(),
            response_nonce: self.nonce.clone(),
            ..DiscoveryRequest::default()
        }
    }

    /// Takes a response apart. It is answered with [`Subscription::accept`] or [`Subscription::refuse`]. `None` if it
    /// is about something that nobody asked for.
    pub(crate) fn hear(&mut self, response: &DiscoveryResponse) -> Option<ResponseResources> {
        if response.type_url != RateLimitConfig::type_url() {
            return None;
        }
        self.nonce.clone_from(&response.nonce);
        let mut sources = Ok(Vec::new());
        for resource in &response.resources {
            if resource.type_url != RateLimitConfig::type_url() {
                sources = Err(format!("a resource is a {}, not a {}", resource.type_url, RateLimitConfig::type_url()));
                break;
            }
            match (&mut sources, RateLimitConfig::decode(&*resource.value)) {
                (Ok(sources), Ok(config)) => sources.push(source(&config)),
                (_, Err(error)) => {
                    sources = Err(format!("a resource can't be decoded: {error}"));
                    break;
                }
                (Err(_), _) => break,
            }
        }
        Some(ResponseResources { version: response.version_info.clone(), sources })
    }

    /// Tells the server that the rules are in force.
    pub(crate) fn accept(&mut self, version: &str) -> DiscoveryRequest {
        version.clone_into(&mut self.version);
        self.request()
    }

    /// Tells the server that the rules were refused. Those from before stay.
    pub(crate) fn refuse(&self, reason: &str) -> DiscoveryRequest {
        let message = reason.chars().take(REASON_CHARS_MAX).collect();
        let status = Status { code: INVALID_ARGUMENT, message, details: Vec::new() };
        DiscoveryRequest { error_detail: Some(status), ..self.request() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::google::protobuf::Any;

    fn response(version: &str, nonce: &str, resources: Vec<Any>) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: version.into(),
            nonce: nonce.into(),
            type_url: RateLimitConfig::type_url(),
            resources,
            ..DiscoveryResponse::default()
        }
    }

    fn resource(domain: &str) -> Any {
        let config = RateLimitConfig { domain: domain.into(), ..RateLimitConfig::default() };
        Any { type_url: RateLimitConfig::type_url(), value: config.encode_to_vec() }
    }

    fn told(request: &DiscoveryRequest) -> (&str, &str, Option<&str>) {
        let error = request.error_detail.as_ref().map(|status| &*status.message);
        (&request.version_info, &request.response_nonce, error)
    }

    #[test]
    fn versions_are_acknowledged_or_refused() {
        let mut subscription = Subscription::new(Node { id: "n".into(), ..Node::default() });
        assert_eq!(told(&subscription.begin()), ("", "", None));
        let received = subscription.hear(&response("1", "a", vec![resource("x"), resource("y")])).unwrap();
        assert_eq!(received.sources.unwrap().len(), 2);
        assert_eq!(told(&subscription.accept("1")), ("1", "a", None));
        subscription.hear(&response("2", "b", Vec::new())).unwrap();
        assert_eq!(told(&subscription.refuse("no")), ("1", "b", Some("no")), "the version in force stays");
        assert_eq!(told(&subscription.begin()), ("1", "", None), "a new stream knows no nonce");
    }

    #[test]
    fn what_can_not_be_read_says_why() {
        let mut subscription = Subscription::new(Node::default());
        let broken = Any { value: vec![0xff], ..resource("x") };
        let why = |received: Option<ResponseResources>| received.unwrap().sources.unwrap_err();
        assert!(why(subscription.hear(&response("1", "a", vec![broken]))).contains("can't be decoded"));
        let other = Any { type_url: "type.googleapis.com/other".into(), ..resource("x") };
        assert!(why(subscription.hear(&response("1", "a", vec![other]))).contains("other"));
        let unasked = DiscoveryResponse { type_url: "other".into(), ..response("1", "a", Vec::new()) };
        assert!(subscription.hear(&unasked).is_none());
    }
}
