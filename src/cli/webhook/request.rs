//! What the API server asks in an AdmissionReview, in the words of the API.
//!
//! All fields that the API has are held to their types, though few are read: a request with something else in them was
//! not written by an API server, and is better refused than guessed at. The object's own fields except its metadata are
//! left alone, so that those of a newer Kubernetes pass.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "a question has no answer yet")]
pub(super) struct AdmissionReview {
    /// Without it the review can't be answered.
    pub request: Option<AdmissionRequest>,
    response: Option<AdmissionResponse>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "most fields are only held to their types")]
pub(super) struct AdmissionRequest {
    /// Names the review. The answer repeats it.
    pub uid: String,
    /// What the object is, after conversion to what the webhook is registered for.
    pub kind: GroupVersionKind,
    resource: GroupVersionResource,
    /// Empty or missing for the object as a whole.
    pub sub_resource: Option<String>,
    request_kind: Option<GroupVersionKind>,
    request_resource: Option<GroupVersionResource>,
    request_sub_resource: Option<String>,
    #[serde(default)]
    name: String,
    namespace: Option<String>,
    /// What is being done to the object. Only creating and updating can inject.
    pub operation: ReviewOperation,
    user_info: UserInfo,
    object: Option<Object>,
    old_object: Option<Object>,
    #[serde(default)]
    dry_run: bool,
    options: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
pub(super) struct GroupVersionKind {
    /// Empty for kinds that have been there from the beginning, such as pods.
    pub group: String,
    /// Of the group, such as `v1`.
    pub version: String,
    /// Such as `Pod`. With the operation it decides whether containers can be added.
    pub kind: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum ReviewOperation {
    Create,
    Update,
    Delete,
    Connect,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only held to its type")]
struct GroupVersionResource {
    group: String,
    version: String,
    resource: String,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only held to its type")]
struct UserInfo {
    username: Option<String>,
    uid: Option<String>,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only held to its type")]
struct Object {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(flatten)]
    rest: BTreeMap<String, IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only held to its type")]
struct ObjectMeta {
    name: Option<String>,
    generate_name: Option<String>,
    namespace: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
    managed_fields: Option<Vec<ManagedFieldsEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only held to its type")]
struct OwnerReference {
    api_version: Option<String>,
    kind: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    controller: Option<bool>,
    block_owner_deletion: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "only held to its type")]
struct ManagedFieldsEntry {
    manager: Option<String>,
    operation: Option<String>,
    api_version: Option<String>,
    time: Option<String>,
    fields_type: Option<String>,
    subresource: Option<String>,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "only held to its type")]
struct AdmissionResponse {
    uid: String,
    allowed: bool,
    status: BTreeMap<String, IgnoredAny>,
}
