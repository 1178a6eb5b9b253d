//! What the API server is answered about a pod: as it is, with the sidecar, or not at all.
//!
//! A pod that asks for a sidecar by its annotation and can't have it is denied, with the reason: whoever applies it should
//! hear of it now, not when limits do not hold. Every other pod passes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use json_patch::Patch;
use kube_core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, Operation};
use kube_core::{DynamicObject, GroupVersionKind};
use serde_json::Value;
use thiserror::Error;

use crate::cli::inject::annotations;
use crate::cli::inject::sidecar::Sidecar;
use crate::cli::inject::workload::{Addition, Workload};

/// A review that can't be answered as one.
#[derive(Debug, Error)]
pub enum ReviewError {
    #[error("the body is not an AdmissionReview: {0}")]
    NotAReview(serde_json::Error),
    #[error("the body is {kind} of {api_version}: AdmissionReview of {META_API_VERSION_V1} is understood")]
    OtherVersion { kind: String, api_version: String },
    #[error("the review has no request")]
    NoRequest,
}

/// The answer, and what is to be logged about it.
#[derive(Debug)]
pub struct Answer {
    pub review: Value,
    pub what: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Unchanged,
    Injected,
    Denied(String),
}

pub fn answer(body: &[u8], usual: &Sidecar) -> Result<Answer, ReviewError> {
    let raw: Value = serde_json::from_slice(body).map_err(ReviewError::NotAReview)?;
    let text = |field: &str| raw.get(field).and_then(Value::as_str).unwrap_or("nothing").to_owned();
    if text("kind") != "AdmissionReview" || text("apiVersion") != META_API_VERSION_V1 {
        return Err(ReviewError::OtherVersion { kind: text("kind"), api_version: text("apiVersion") });
    }
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_value(raw.clone()).map_err(ReviewError::NotAReview)?;
    let request: AdmissionRequest<DynamicObject> = review.try_into().map_err(|_| ReviewError::NoRequest)?;
    let response = AdmissionResponse::from(&request);
    // As it came, with fields that our types may not know.
    let object = raw.pointer("/request/object").filter(|_| can_be_changed(&request));
    let (response, what) = match object.map(|object| additions(object, &request, usual)) {
        None => (response, Verdict::Unchanged),
        Some(Ok(additions)) if additions.is_empty() => (response, Verdict::Unchanged),
        Some(Ok(additions)) => {
            let steps = Value::Array(additions.iter().map(Addition::to_patch).collect());
            let patch: Result<Patch, _> = serde_json::from_value(steps);
            match patch.map(|patch| response.clone().with_patch(patch)) {
                Ok(Ok(patched)) => (patched, Verdict::Injected),
                // Can't be: the steps are made here.
                _ => (response, Verdict::Unchanged),
            }
        }
        Some(Err(reason)) => {
            let mut denied = response.deny(&reason);
            denied.result.code = 422;
            (denied, Verdict::Denied(reason))
        }
    };
    Ok(Answer { review: in_base64(serde_json::to_value(response.into_review()).unwrap_or_default()), what })
}

/// The containers of a pod and of a Job are what they are from the beginning; those of other templates can change.
fn can_be_changed(request: &AdmissionRequest<DynamicObject>) -> bool {
    let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
    is_whole
        && match request.operation {
            Operation::Create => true,
            Operation::Update => !matches!(request.kind.kind.as_str(), "Pod" | "Job"),
            Operation::Delete | Operation::Connect => false,
        }
}

fn additions(
    object: &Value,
    request: &AdmissionRequest<DynamicObject>,
    usual: &Sidecar,
) -> Result<Vec<Addition>, String> {
    // An object in a review need not say what it is.
    let mut named = object.clone();
    if let Some(fields) = named.as_object_mut() {
        let GroupVersionKind { group, version, kind } = &request.kind;
        let api_version = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
        fields.insert("kind".into(), kind.as_str().into());
        fields.insert("apiVersion".into(), api_version.into());
    }
    let Some(workload) = Workload::of(&named) else { return Ok(Vec::new()) };
    let annotations = workload.annotations();
    if annotations::wish(annotations).map_err(|error| error.to_string())? != Some(true) {
        return Ok(Vec::new());
    }
    let sidecar = usual.for_pod(annotations).map_err(|error| error.to_string())?;
    workload.additions(&sidecar).map_err(|error| error.to_string())
}

/// The patch as a text, as the API has it. The types write a list of numbers, which the API server reads too, but other
/// readers do not.
fn in_base64(mut review: Value) -> Value {
    if let Some(patch) = review.pointer_mut("/response/patch") {
        let bytes: Vec<u8> = serde_json::from_value(patch.clone()).unwrap_or_default();
        *patch = STANDARD.encode(&bytes).into();
    }
    review
}
