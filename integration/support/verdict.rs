//! How an answer explains itself in metadata and header: the reason, what is enforced, and by whom.

use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate::proto::google::protobuf::value::Kind;
use tonic::Status;

use crate::support::harness::{Client, PATIENCE, Service, ask_one, until};

/// The settings with which every answer explains itself completely.
pub const TELLING: [(&str, &str); 2] = [("RESPONSE_DYNAMIC_METADATA", "true"), ("TIDEGATE_REASON_HEADER", "always")];

/// An answer, as far as a policy determines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub is_ok: bool,
    pub reason: String,
    pub scope: String,
    pub layer: String,
    pub by: String,
    pub retry_after_s: Option<u64>,
}

impl Verdict {
    /// Reads an answer under the settings of `TELLING`. Asserts that header and metadata give the same reason.
    pub fn of(response: &RateLimitResponse) -> Verdict {
        let metadata = response.dynamic_metadata.as_ref().expect("metadata");
        let account = match metadata.fields.get("tidegate").and_then(|account| account.kind.as_ref()) {
            Some(Kind::StructValue(account)) => account,
            other => panic!("no account: {other:?}"),
        };
        let word = |name: &str| match account.fields.get(name).and_then(|value| value.kind.as_ref()) {
            Some(Kind::StringValue(text)) => text.clone(),
            other => panic!("{name} is {other:?}: {account:?}"),
        };
        let reason = word("reason");
        assert_eq!(header(response, "x-ratelimit-reason"), Some(reason.as_str()), "{response:?}");
        Verdict {
            is_ok: is_ok(response),
            reason,
            scope: word("scope"),
            layer: word("layer"),
            by: word("by"),
            retry_after_s: header(response, "retry-after").map(|wait| wait.parse().expect("seconds")),
        }
    }

    /// The verdict on one more request.
    pub async fn on(client: &mut Client, descriptor: &str) -> Verdict {
        Verdict::to(client, ask_one(descriptor)).await.unwrap_or_else(|error| panic!("{descriptor}: {error}"))
    }

    pub async fn to(
        client: &mut Client,
        request: impl tonic::IntoRequest<RateLimitRequest>,
    ) -> Result<Verdict, Status> {
        Ok(Verdict::of(&client.should_rate_limit(request).await?.into_inner()))
    }
}

fn is_ok(response: &RateLimitResponse) -> bool {
    match response.overall_code() {
        Code::Ok => true,
        Code::OverLimit => false,
        Code::Unknown => panic!("neither: {response:?}"),
    }
}

fn header<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = response.response_headers_to_add.iter();
    headers.find(|header| header.key.eq_ignore_ascii_case(name)).map(|header| header.value.as_str())
}

/// Waits until these processes see a layer as up, or as down.
pub fn until_layer<'a>(services: impl IntoIterator<Item = &'a Service> + Clone, layer: &str, is_up: bool) {
    let series = format!("tidegate_layer_up{{layer=\"{layer}\"}}");
    until(PATIENCE, &format!("{series} is {is_up}"), || {
        let mut services = services.clone().into_iter();
        services.all(|service| service.metric(&series) == Some(f64::from(u8::from(is_up)))).then_some(())
    });
}
