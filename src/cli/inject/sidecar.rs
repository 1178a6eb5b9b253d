//! The container that is put beside a workload, and the volumes that the two share.
//!
//! It answers on a unix socket only: the port that it opens for probes has nothing else, so that nobody outside the pod can
//! use up what others may use.
//!
//! Written as the JSON that Kubernetes reads: types for all of Kubernetes would take longer to compile than the rest of
//! `inject`. Tests hold what comes out against Kubernetes' schemas.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::engine::table::weight::SHARED_KEY_BYTES;

/// The container's name, by which it is found again.
pub(crate) const CONTAINER: &str = "tidegate";
pub(crate) const SOCKET_VOLUME: &str = "tidegate-socket";
pub(crate) const RULES_VOLUME: &str = "tidegate-rules";
pub(crate) const SOCKET_DIRECTORY: &str = "/run/tidegate";
const RULES_DIRECTORY: &str = "/etc/tidegate/rules";
/// Away from 8080, where workloads often are.
const HTTP_PORT: i32 = 18080;
const ADMIN_PORT: i32 = 16070;
/// The image's user: a pod that runs as root has to be told.
const USER: i64 = 65532;
/// What keys may take together is this for each: four fifths of it are for usual ones, and heavier ones are fewer then.
const KEY_BYTES: u64 = SHARED_KEY_BYTES as u64 * 5 / 4 + 1;
/// What everything else takes, messages that arrive among it.
const BASE_BYTES: u64 = 64 * 1024 * 1024;
/// The other containers of the pod are the only clients. Room for the largest message that may be set.
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
    pub image: String,
    pub mode: Mode,
    /// The ConfigMap that has the rule files.
    pub rules: String,
    /// A ConfigMap and a Secret with further environment.
    pub env_configmap: Option<String>,
    pub env_secret: Option<String>,
    /// How many keys it holds; its memory is limited accordingly.
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
        // A native sidecar is stopped after the workload; a plain one along with it, so that it has to wait.
        let drain_delay = if self.mode == Mode::Native { "0s" } else { "15s" };
        let args = [
            ["serve", "--rules", RULES_DIRECTORY].as_slice(),
            // Only containers of the pod can reach it, whoever they run as.
            &["--grpc-uds", &socket, "--uds-mode", "666"],
            // All ports, though one is not used: a Service called `grpc` would set GRPC_PORT for every pod of the namespace.
            &["--port", &http_port, "--debug-port", &admin_port, "--grpc-port", "8081"],
            &["--drain-delay", drain_delay, "--http-json", "false"],
            // Together with the memory limit below: flags, so that no variable of the namespace parts them.
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
