//! ShouldRateLimit: from the bytes of a RateLimitRequest to the bytes of its answer, whichever port they came to.

use std::sync::Arc;
use std::time::Instant;

use prost::Message;

use crate::clock::Moment;
use crate::engine::Decision;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::request::Request;
use crate::request::owned::OwnedRequest;
use crate::server::in_force::InForce;
use crate::server::no_answer::NoAnswer;
use crate::server::rls::metadata::dynamic_metadata;
use crate::server::rls::read;
use crate::server::rls::write::Answer;
use crate::server::service::{FirstLook, Service, StoreWait};

/// The outcome of a first look at a request.
#[derive(Debug)]
pub(crate) enum RateLimitAnswer {
    Ready {
        /// Written, to be sent.
        answer: Answer,
        /// When everything that follows from the decision was done.
        finished: Instant,
    },
    /// A store has to be asked.
    Waits(Box<WaitingRequest>),
}

/// A request that waits for a store. The message it was read from is not needed any more.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    rules: Arc<InForce>,
    request: OwnedRequest,
    /// The message as it came, for the metadata of the answer to repeat; `None` if there is to be no metadata.
    as_written: Option<RateLimitRequest>,
    wait: Box<StoreWait>,
}

/// Answers a request, if memory can decide it. Counts failures.
pub(crate) fn answer(service: &Service, message: &[u8], at: Moment) -> Result<RateLimitAnswer, NoAnswer> {
    let request = read::request(message, &service.options().bounds).map_err(|reason| service.fail(reason))?;
    let rules = service.rules();
    let Some(rules) = rules.as_ref() else { return Err(service.fail(NoAnswer::NoRules)) };
    let as_written = || as_written(service, message);
    match service.decide(rules, &request, at)? {
        FirstLook::Decided(decision) => {
            let answer = write(service, rules, &request, &decision, as_written);
            let finished = service.conclude(rules, &request, &decision, at.instant);
            Ok(RateLimitAnswer::Ready { answer, finished })
        }
        FirstLook::Waits(wait) => Ok(RateLimitAnswer::Waits(Box::new(WaitingRequest {
            rules: rules.clone(),
            request: OwnedRequest::from(&request),
            as_written: as_written(),
            wait,
        }))),
    }
}

impl WaitingRequest {
    /// Asks the stores, and answers before `call_ends`, if that is given.
    pub(crate) async fn answer(self, service: &Service, call_ends: Option<Instant>) -> Answer {
        let WaitingRequest { rules, request, as_written, wait } = self;
        let (request, began) = (request.as_request(), wait.began());
        let decision = service.decide_after(wait, &rules, &request, call_ends).await;
        let answer = write(service, &rules, &request, &decision, || as_written);
        service.conclude(&rules, &request, &decision, began);
        answer
    }
}

/// The whole message, if metadata is to repeat it: metadata shows the request as it was written, not as it was understood.
fn as_written(service: &Service, message: &[u8]) -> Option<RateLimitRequest> {
    let is_wanted = service.options().answers.dynamic_metadata;
    is_wanted.then(|| RateLimitRequest::decode(message).unwrap_or_default())
}

fn write(
    service: &Service,
    rules: &InForce,
    request: &Request<'_>,
    decision: &Decision<'_>,
    as_written: impl FnOnce() -> Option<RateLimitRequest>,
) -> Answer {
    let metadata = as_written().map(|message| {
        dynamic_metadata(&message, request, decision, &rules.ruleset, service.is_cut_off()).encode_to_vec()
    });
    Answer::write(decision, &service.options().answers, metadata.as_deref())
}
