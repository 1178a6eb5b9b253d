//! The container that is put beside a workload, and the volumes that the two share.
//!
//! It answers rate limit calls on a unix socket only. The port that it opens for probes offers nothing else, so that
//! nobody outside the pod can use up its limits.
//!
//! Written as the JSON that Kubernetes reads: types for all of Kubernetes would take longer to compile than the rest of
//! `inject`. Tests hold the result against Kubernetes' schemas.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::engine::table::weight::SHARED_KEY_BYTES;

/// The container's name, by which a later injection recognises it.
pub(crate) const CONTAINER: &str = "tidegate";
pub(crate) const SOCKET_VOLUME: &str = "tidegate-socket";
pub(crate) const RULES_VOLUME: &str = "tidegate-rules";
pub(crate) const SOCKET_DIRECTORY: &str = "/run/tidegate";
const RULES_DIRECTORY: &str = "/etc/tidegate/rules";
/// Away from 8080, where workloads often are.
const HTTP_PORT: i32 = 18080;
const ADMIN_PORT: i32 = 16070;
/// The image's user. Written out, because a pod that runs as root would otherwise run the sidecar as root too.
const USER: i64 = 65532;
/// How much memory keys may take, for each of `keys_max`. Usual keys fill four fifths of it; of heavier ones, fewer
/// fit.
const KEY_BYTES: u64 = SHARED_KEY_BYTES as u64 * 5 / 4 + 1;
/// The memory for everything else, arriving messages included.
const BASE_BYTES: u64 = 64 * 1024 * 1024;
/// Room for arriving messages: the largest that may be set. The other containers of the pod are the only clients.
const ARRIVING_BYTES: u64 = (16 * 1024 + 64) * 1024;

/// How the sidecar is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// An init container that goes on (Kubernetes 1.29 and later): it starts first, stops last, and lets Jobs finish
    Native,
    /// One more container, for older clusters
    Plain,
}

/// What is injected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// As the container's `image` names it.
    pub image: String,
    /// Which kind of container it is.
    pub mode: Mode,
    /// The ConfigMap that has the rule files, in the pod's namespace.
    pub rules: String,
    /// A ConfigMap with further environment, if there is one.
    pub env_configmap: Option<String>,
    /// A Secret with further environment, if there is one. It wins over the ConfigMap.
    pub env_secret: Option<String>,
    /// How many keys it holds. Its memory is limited accordingly.
    pub keys_max: u64,
}

impl Sidecar {
    pub fn container(&self) -> Value {
        let socket = format!("{SOCKET_DIRECTORY}/tidegate.sock");
        let (http_port, admin_port) = (HTTP_PORT.to_string(), ADMIN_PORT.to_string());
        let keys_max = self.keys_max.to_string();
        let keys_bytes = (self.keys_max * KEY_BYTES).max(1024 * 1024);
        let (keys_bytes_max, arriving_bytes_max) = (keys_bytes.to_string(), ARRIVING_BYTES.to_string());
        let memory = format!("{}Mi", (BASE_BYTES + keys_bytes).div_ceil(1024 * 1024));
        // A native sidecar is stopped after the workload. A plain one is stopped along with it, and has to wait.
        let drain_delay = if self.mode == Mode::Native { "0s" } else { "15s" };
        let args = [
            ["serve", "--rules", RULES_DIRECTORY].as_slice(),
            // Only containers of the pod can reach it, whoever they run as.
            &["--grpc-uds", &socket, "--uds-mode", "666"],
            // All ports are set, though one is not used: a Service called `grpc` would set GRPC_PORT for every pod of
            // the namespace.
            &["--port", &http_port, "--debug-port", &admin_port, "--grpc-port", "8081"],
            &["--drain-delay", drain_delay, "--http-json", "false"],
            // These belong to the memory limit below. They are flags, so that no variable of the namespace changes one
            // without the other.
            &[
                "--keys-max",
                &keys_max,
                "--keys-bytes-max",
                &keys_bytes_max,
                "--max-arriving-bytes",
                &arriving_bytes_max,
            ],
        ];
        let mut container = json!({
            "name": CONTAINER,
            "image": self.image,
            // The image has no entry point.
            "command": ["/bin/tidegate"],
            "args": args.concat(),
            "ports": [{"name": "tidegate-http", "containerPort": HTTP_PORT}],
            // The workload's containers wait for it where the sidecar is a native one.
            "startupProbe": {
                "httpGet": {"path": "/readyz", "port": HTTP_PORT},
                "periodSeconds": 1,
                "failureThreshold": 60,
            },
            "livenessProbe": {"httpGet": {"path": "/livez", "port": HTTP_PORT}, "periodSeconds": 10},
            "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": memory}},
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumeMounts": [
                workload_mount(),
                {"name": RULES_VOLUME, "mountPath": RULES_DIRECTORY, "readOnly": true},
            ],
        });
        if self.mode == Mode::Native {
            container["restartPolicy"] = "Always".into();
        }
        let sources = self.env_from();
        if !sources.is_empty() {
            container["envFrom"] = sources.into();
        }
        container
    }

    fn env_from(&self) -> Vec<Value> {
        let configmap = self.env_configmap.iter().map(|name| json!({"configMapRef": {"name": name}}));
        let secret = self.env_secret.iter().map(|name| json!({"secretRef": {"name": name}}));
        configmap.chain(secret).collect()
    }

    pub fn volumes(&self) -> [Value; 2] {
        [
            json!({"name": SOCKET_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}),
            json!({"name": RULES_VOLUME, "configMap": {"name": self.rules}}),
        ]
    }
}

/// Where the workload finds the socket.
pub(crate) fn workload_mount() -> Value {
    json!({"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY})
}
