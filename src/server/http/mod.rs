//! The HTTP port: `/json` for people and tests, and the probes.

pub(crate) mod body;
pub(crate) mod json_outline;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::routing::{any, get};
use http::{HeaderName, HeaderValue, StatusCode, header};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prost::Message;
use prost_reflect::prost_types::{EnumValueDescriptorProto, FileDescriptorSet};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::clock::Moment;
use crate::observe::outcome::NoDecision;
use crate::request::Unit;
use crate::server::accept::{Room, WhenFull, accept};
use crate::server::answer_options;
use crate::server::drain::Drain;
use crate::server::http::body::NoBody;
use crate::server::http::json_outline::JsonOutline;
use crate::server::line::LineStream;
use crate::server::no_answer::NoAnswer;
use crate::server::rls::should_rate_limit::{self, RateLimitAnswer};
use crate::server::rls::{DESCRIPTORS, unit_number};
use crate::server::service::Service;
use crate::server::tls::ServerTls;

/// Names the reason of a refusal, which the body does not tell.
const ERROR_HEADER: &str = "x-tidegate-error";

const REASON: HeaderName = HeaderName::from_static(answer_options::REASON);

/// Everything that the handlers need.
#[derive(Clone)]
struct HttpPort {
    service: Arc<Service>,
    drain: Drain,
    json: Arc<Json>,
    body_bytes_max: usize,
    is_ready_without_rules: bool,
}

impl HttpPort {
    /// Refuses and counts a request that did not get as far as the service.
    fn refuse(&self, failure: NoDecision, reason: &str) -> Response {
        self.service.outcomes().record_failure(failure);
        bad_request(reason)
    }

    /// Refuses and counts a request because there is no room for it or its body. Nothing is wrong with it.
    fn refuse_for_now(&self, overload: &NoAnswer) -> Response {
        self.service.outcomes().record_failure(overload.failure());
        no_room(overload)
    }
}

fn no_room(overload: &NoAnswer) -> Response {
    refused(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable\n", &overload.to_string())
}

/// How long a client may take for its TLS handshake, then for its headers, and then for its body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How much a connection reads ahead, beside the memory that its body is collected in.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// For probes and people: so many that nobody is turned away, so few that file descriptors are left for gRPC.
const CONNECTIONS_MAX: usize = 512;

/// Accepts and serves connections until the drain says to close, then waits for those that are open.
pub(crate) async fn serve(listener: TcpListener, port: &'static str, router: Router, drain: Drain) {
    accept(listener, port, room(), drain, move |stream, drain| {
        serve_one(LineStream::Plain(stream), router.clone(), drain)
    })
    .await;
}

/// Accepts and serves connections over TLS until the drain says to close, then waits for those that are open.
pub(crate) async fn serve_tls(
    listener: TcpListener,
    port: &'static str,
    router: Router,
    tls: Arc<ServerTls>,
    drain: Drain,
) {
    accept(listener, port, room(), drain, move |stream, drain| {
        let (router, tls) = (router.clone(), tls.clone());
        async move {
            let stream = timeout(READ_TIMEOUT, tls.accept(stream)).await??;
            serve_one(LineStream::Tls(Box::new(stream)), router, drain).await
        }
    })
    .await;
}

fn room() -> Room {
    Room { max: CONNECTIONS_MAX, when_full: WhenFull::EndOldest, stats: Arc::default() }
}

async fn serve_one(stream: LineStream, router: Router, mut drain: Drain) -> anyhow::Result<()> {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = drain.closing() => {}
    }
    connection.as_mut().graceful_shutdown();
    Ok(connection.await?)
}

/// The handlers of the port. A body may be four times as large as the largest message, because JSON is longer.
pub(crate) fn router(
    service: Arc<Service>,
    drain: Drain,
    message_bytes_max: usize,
    is_ready_without_rules: bool,
    has_json: bool,
) -> anyhow::Result<Router> {
    let body_bytes_max = message_bytes_max.saturating_mul(4);
    let port = HttpPort { service, drain, json: Arc::new(Json::new()?), body_bytes_max, is_ready_without_rules };
    let router = if has_json { Router::new().route("/json", any(json)) } else { Router::new() };
    Ok(router
        .route("/healthcheck", get(ready))
        .route("/readyz", get(ready))
        .route("/livez", get(|| async { "OK" }))
        .with_state(port))
}

/// The process is ready if rules are loaded (unless it may be ready without, after a forced start) and nobody has asked it
/// to stop. The gRPC port needs no look: it opens before this one.
async fn ready(State(port): State<HttpPort>, RawQuery(query): RawQuery) -> Response {
    let is_ready = (port.service.has_rules() || port.is_ready_without_rules) && !port.drain.has_begun();
    let status = if is_ready { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    let wants_all = query.is_some_and(|query| query.split('&').any(|part| part == "verbose" || part == "verbose=true"));
    let text = match (wants_all, is_ready) {
        (true, _) => readiness(&port, is_ready),
        (false, true) => "OK".to_owned(),
        (false, false) => String::new(),
    };
    respond(status, "text/plain; charset=utf-8", text)
}

/// Everything that readiness depends on, and the layers, on which it does not.
fn readiness(port: &HttpPort, is_ready: bool) -> String {
    let sign = |is_good: bool| if is_good { '+' } else { '-' };
    let rules = port.service.in_force().map_or(0, |rules| rules.ruleset.rules_count());
    let has_rules = port.service.has_rules();
    let is_serving = !port.drain.has_begun();
    let mut text = format!("[{}] rules: {rules} in force\n", sign(has_rules));
    text += &format!("[{}] serving: {}\n", sign(is_serving), if is_serving { "yes" } else { "draining" });
    for layer in port.service.layers() {
        text += &format!("{layer}\n");
    }
    text + if is_ready { "ready\n" } else { "not ready\n" }
}

/// Answers a request in proto3 JSON: 200 for OK, 429 for OVER_LIMIT, 503 if there is no room for it.
async fn json(State(port): State<HttpPort>, body: Body) -> Response {
    let _in_flight = match port.service.admission().enter() {
        Ok(in_flight) => in_flight,
        Err(overload) => return port.refuse_for_now(&overload),
    };
    let body = match timeout(READ_TIMEOUT, body::read(body, port.service.admission().incomplete(), port.body_bytes_max))
        .await
    {
        Ok(Ok(body)) => body,
        Ok(Err(NoBody::Overload(overload))) => return port.refuse_for_now(&overload),
        Ok(Err(error)) => return port.refuse(NoDecision::Malformed, &error.to_string()),
        Err(_) => return port.refuse(NoDecision::Deadline, "the body took too long to arrive"),
    };
    // A request with too many descriptors or entries is refused before it is decoded.
    if let Err(refused) = JsonOutline::in_json(&body).check(&port.service.options().bounds) {
        return bad_request(&port.service.fail(refused.into()).to_string());
    }
    let message = match port.json.request(&body) {
        Ok(message) => message,
        Err(error) => return port.refuse(NoDecision::Malformed, &error),
    };
    let answer = match should_rate_limit::answer(&port.service, &message, Moment::now()) {
        Ok(RateLimitAnswer::Ready { answer, .. }) => answer,
        Ok(RateLimitAnswer::Waits(waiting)) => waiting.answer(&port.service, None).await,
        // `answer` has counted this failure, and the next.
        Err(error) if error.failure() == NoDecision::Overload => return no_room(&error),
        Err(error) => return bad_request(&error.to_string()),
    };
    let (Ok(read), Ok(text)) = (RateLimitResponse::decode(answer.message()), port.json.response(answer.message()))
    else {
        return respond(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", "Internal Server Error\n");
    };
    let is_over = read.overall_code == Code::OverLimit as i32;
    let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let mut response = respond(status, "application/json", text);
    // Envoy would be asked to add these headers. Here they are headers of the response itself.
    for (name, said_as) in [(header::RETRY_AFTER, answer_options::RETRY_AFTER), (REASON, answer_options::REASON)] {
        let said = read.response_headers_to_add.iter().find(|header| header.key == said_as);
        if let Some(value) = said.and_then(|header| HeaderValue::from_str(&header.value).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

pub(crate) fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn bad_request(reason: &str) -> Response {
    refused(StatusCode::BAD_REQUEST, "Bad Request\n", reason)
}

fn refused(status: StatusCode, text: &'static str, reason: &str) -> Response {
    let mut response = respond(status, "text/plain; charset=utf-8", text);
    let printable = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    let printable: String = reason.chars().take(200).map(printable).collect();
    if let Ok(value) = HeaderValue::from_str(&printable) {
        response.headers_mut().insert(ERROR_HEADER, value);
    }
    response
}

const WEEK: &str = "WEEK";

/// The messages in proto3 JSON: camel case or snake case in, camel case out, nothing unknown.
struct Json {
    request: MessageDescriptor,
    response: MessageDescriptor,
}

impl Json {
    fn new() -> anyhow::Result<Json> {
        let mut described = FileDescriptorSet::decode(DESCRIPTORS)?;
        let enums = described.file.iter_mut().flat_map(|file| &mut file.enum_type);
        // Envoy's unit of overrides has no week, but the unit of answers does: a client that reads it there may write it here.
        for unit in enums.filter(|it| it.name() == "RateLimitUnit" && it.value.iter().all(|value| value.name() != WEEK))
        {
            let number = Some(unit_number(Unit::Week));
            unit.value.push(EnumValueDescriptorProto { name: Some(WEEK.into()), number, options: None });
        }
        let pool = DescriptorPool::from_file_descriptor_set(described)?;
        let message = |name: &str| {
            let name = format!("envoy.service.ratelimit.v3.{name}");
            pool.get_message_by_name(&name).ok_or_else(|| anyhow::anyhow!("{name} is not described"))
        };
        Ok(Json { request: message("RateLimitRequest")?, response: message("RateLimitResponse")? })
    }

    /// Encodes a request in JSON as a message.
    fn request(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let options = DeserializeOptions::new().deny_unknown_fields(true);
        let dynamic = DynamicMessage::deserialize_with_options(self.request.clone(), &mut json, &options)
            .map_err(|error| error.to_string())?;
        json.end().map_err(|error| error.to_string())?;
        Ok(dynamic.encode_to_vec())
    }

    fn response(&self, message: &[u8]) -> anyhow::Result<String> {
        let dynamic = DynamicMessage::decode(self.response.clone(), message)?;
        Ok(serde_json::to_string(&dynamic)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

    #[test]
    fn json_takes_both_cases_and_nothing_unknown() {
        let json = Json::new().unwrap();
        for text in [
            r#"{"domain":"d","hitsAddend":3,"descriptors":[{"entries":[{"key":"a","value":"b"}],"hitsAddend":"7"}]}"#,
            r#"{"domain":"d","hits_addend":3,"descriptors":[{"entries":[{"key":"a","value":"b"}],"hits_addend":7}]}"#,
        ] {
            let request = RateLimitRequest::decode(&*json.request(text.as_bytes()).unwrap()).unwrap();
            assert_eq!((request.domain.as_str(), request.hits_addend), ("d", 3));
            assert_eq!(request.descriptors[0].hits_addend.as_ref().unwrap().value, 7);
        }
        assert!(json.request(br#"{"domain":"d","nonsense":1}"#).is_err());
        assert!(json.request(b"").is_err());
        assert!(json.request(br#"{} trailing"#).is_err());
    }

    #[test]
    fn json_takes_every_unit_of_an_override_by_its_name() {
        let json = Json::new().unwrap();
        for unit in Unit::ALL {
            let name = unit.word().to_uppercase();
            let text = format!(r#"{{"descriptors":[{{"limit":{{"requestsPerUnit":5,"unit":"{name}"}}}}]}}"#);
            let request = RateLimitRequest::decode(&*json.request(text.as_bytes()).unwrap()).unwrap();
            assert_eq!(request.descriptors[0].limit.as_ref().unwrap().unit, unit_number(unit), "{name}");
        }
    }

    #[test]
    fn answers_leave_out_what_is_zero() {
        let response = RateLimitResponse { overall_code: 1, ..Default::default() };
        let text = Json::new().unwrap().response(&response.encode_to_vec()).unwrap();
        assert_eq!(text, r#"{"overallCode":"OK"}"#);
    }
}
