//! What the API server hears about a pod: that it passes as it is, that it gets the sidecar, or that it is denied.
//!
//! A pod that asks for a sidecar by its annotation and can't have it is denied, with the reason: whoever applies it should
//! hear of it now, not when limits do not hold. Every other pod passes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use crate::cli::inject::annotations;
use crate::cli::inject::sidecar::Sidecar;
use crate::cli::inject::workload::{Addition, Workload};
use crate::cli::webhook::request::{AdmissionRequest, AdmissionReview, GroupVersionKind, ReviewOperation};

const KIND: &str = "AdmissionReview";
const API_VERSION: &str = "admission.k8s.io/v1";

/// A review that can't be answered as one.
#[derive(Debug, Error)]
pub(crate) enum ReviewError {
    #[error("the body is not an AdmissionReview: {0}")]
    NotAReview(serde_json::Error),
    #[error("the body is {kind} of {api_version}: AdmissionReview of {API_VERSION} is understood")]
    OtherVersion { kind: String, api_version: String },
    #[error("the review has no request")]
    NoRequest,
}

/// The answer, and what is to be logged about it.
#[derive(Debug)]
pub(crate) struct ReviewResponse {
    /// The whole AdmissionReview to send back.
    pub review: Value,
    /// What became of the pod, for the log.
    pub what: Review,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    Unchanged,
    Injected,
    Denied(String),
}

pub(crate) fn answer(body: &[u8], usual: &Sidecar) -> Result<ReviewResponse, ReviewError> {
    let raw: Value = serde_json::from_slice(body).map_err(ReviewError::NotAReview)?;
    let text = |field: &str| raw.get(field).and_then(Value::as_str).unwrap_or("nothing").to_owned();
    if text("kind") != KIND || text("apiVersion") != API_VERSION {
        return Err(ReviewError::OtherVersion { kind: text("kind"), api_version: text("apiVersion") });
    }
    let review = AdmissionReview::deserialize(&raw).map_err(ReviewError::NotAReview)?;
    let request = review.request.ok_or(ReviewError::NoRequest)?;
    // The object as it came, with fields that our types do not know.
    let object = raw.pointer("/request/object").filter(|_| can_be_changed(&request));
    let additions = object.map_or_else(|| Ok(Vec::new()), |object| additions(object, &request, usual));
    let (response, what) = match additions {
        Ok(additions) if additions.is_empty() => {
            (json!({"uid": request.uid, "allowed": true, "status": {}}), Review::Unchanged)
        }
        Ok(additions) => {
            let patch = Value::Array(additions.iter().map(Addition::to_patch).collect());
            let patch = STANDARD.encode(patch.to_string());
            let response = json!({
                "uid": request.uid, "allowed": true, "status": {}, "patchType": "JSONPatch", "patch": patch,
            });
            (response, Review::Injected)
        }
        Err(reason) => {
            let status = json!({"code": 422, "message": reason});
            (json!({"uid": request.uid, "allowed": false, "status": status}), Review::Denied(reason))
        }
    };
    Ok(ReviewResponse { review: in_review(&response), what })
}

/// The answer to a body that can't be answered as a review. Its uid is empty, because none could be read.
pub(crate) fn refusal(error: &ReviewError) -> Value {
    let status = json!({"status": "Failure", "reason": "InvalidRequest", "message": error.to_string()});
    in_review(&json!({"uid": "", "allowed": false, "status": status}))
}

fn in_review(response: &Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": KIND, "response": response})
}

/// Whether containers can still be added: a pod's and a Job's are what they are from the beginning, those of other
/// templates can change.
fn can_be_changed(request: &AdmissionRequest) -> bool {
    let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
    is_whole
        && match request.operation {
            ReviewOperation::Create => true,
            ReviewOperation::Update => !matches!(request.kind.kind.as_str(), "Pod" | "Job"),
            ReviewOperation::Delete | ReviewOperation::Connect => false,
        }
}

fn additions(object: &Value, request: &AdmissionRequest, usual: &Sidecar) -> Result<Vec<Addition>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::inject::sidecar::Mode;

    fn review(annotations: &Value) -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u-1",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "operation": "CREATE",
                "userInfo": {},
                "object": {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}},
            },
        })
    }

    fn answered(review: &Value) -> Result<Value, ReviewError> {
        let usual = Sidecar {
            image: "tidegate:1".into(),
            mode: Mode::Native,
            rules: "rules".into(),
            env_configmap: None,
            env_secret: None,
            keys_max: 1,
        };
        answer(review.to_string().as_bytes(), &usual).map(|answer| answer.review)
    }

    #[test]
    fn an_answer_has_what_the_api_server_reads_and_no_more() {
        let answer = |response: Value| json!({"apiVersion": API_VERSION, "kind": KIND, "response": response});
        let unchanged = answered(&review(&json!({}))).unwrap();
        assert_eq!(unchanged, answer(json!({"uid": "u-1", "allowed": true, "status": {}})));
        let denied = answered(&review(&json!({"tidegate.dev/inject": "yes"}))).unwrap();
        let status = json!({
            "code": 422,
            "message": "the annotation tidegate.dev/inject is 'yes': write \"true\" or \"false\", with the quotes",
        });
        assert_eq!(denied, answer(json!({"uid": "u-1", "allowed": false, "status": status})));
        let mut injected = answered(&review(&json!({"tidegate.dev/inject": "true"}))).unwrap();
        let patch = injected["response"]["patch"].take();
        let patch: Value = serde_json::from_slice(&STANDARD.decode(patch.as_str().unwrap()).unwrap()).unwrap();
        let mount = json!([{"name": "tidegate-socket", "mountPath": "/run/tidegate"}]);
        assert_eq!(patch[0], json!({"op": "add", "path": "/spec/containers/0/volumeMounts", "value": mount}));
        let rest = json!({"uid": "u-1", "allowed": true, "status": {}, "patchType": "JSONPatch", "patch": null});
        assert_eq!(injected, answer(rest));
        let status = json!({"status": "Failure", "reason": "InvalidRequest", "message": "the review has no request"});
        let refused = refusal(&ReviewError::NoRequest);
        assert_eq!(refused, answer(json!({"uid": "", "allowed": false, "status": status})));
    }

    #[test]
    fn what_no_api_server_writes_is_refused_with_what_is_wrong() {
        for (place, wrong, part) in [
            ("uid", None, "missing field `uid`"),
            ("kind", Some(json!({"kind": "Pod", "version": "v1"})), "missing field `group`"),
            ("resource", None, "missing field `resource`"),
            ("operation", Some(json!("PATCH")), "unknown variant `PATCH`, expected one of `CREATE`"),
            ("userInfo", None, "missing field `userInfo`"),
            ("subResource", Some(json!(5)), "invalid type: integer `5`"),
            ("object", Some(json!("x")), "invalid type: string \"x\""),
            ("object", Some(json!([])), "invalid type: sequence"),
            ("object", Some(json!({"metadata": null})), "invalid type: null"),
            ("object", Some(json!({"metadata": {"annotations": {"a": true}}})), "invalid type: boolean `true`"),
            ("oldObject", Some(json!({"metadata": {"name": 5}})), "invalid type: integer `5`"),
            ("dryRun", Some(json!("no")), "expected a boolean"),
        ] {
            let mut review = review(&json!({}));
            let request = review["request"].as_object_mut().unwrap();
            match wrong {
                Some(value) => drop(request.insert(place.to_owned(), value)),
                None => drop(request.remove(place)),
            }
            let error = answered(&review).unwrap_err().to_string();
            assert!(error.starts_with("the body is not an AdmissionReview: ") && error.contains(part), "{error}");
        }
        let mut review = review(&json!({}));
        review["request"]["fieldOfTheFuture"] = json!(1);
        assert!(answered(&review).is_ok());
    }
}
