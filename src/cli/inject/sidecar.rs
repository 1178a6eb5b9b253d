//! The container that is put beside a workload, and the volumes that the two share.
//!
//! It answers on a unix socket only: the port that it opens for probes has nothing else, so that nobody outside the pod can
//! use up what others may use.

use std::collections::BTreeMap;

use clap::ValueEnum;
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapEnvSource, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource,
    EnvFromSource, HTTPGetAction, Probe, ResourceRequirements, SeccompProfile, SecretEnvSource, SecurityContext,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The container's name, by which it is found again.
pub const CONTAINER: &str = "tidegate";
pub const SOCKET_VOLUME: &str = "tidegate-socket";
pub const RULES_VOLUME: &str = "tidegate-rules";
pub const SOCKET_DIRECTORY: &str = "/run/tidegate";
const RULES_DIRECTORY: &str = "/etc/tidegate/rules";
/// Away from 8080, where workloads often are.
const HTTP_PORT: i32 = 18080;
const ADMIN_PORT: i32 = 16070;
/// The image's user: a pod that runs as root has to be told.
const USER: i64 = 65532;
/// What a key takes at most, with Redis and MySQL, and what everything else does.
const KEY_BYTES: u64 = 300;
const BASE_BYTES: u64 = 64 * 1024 * 1024;

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
    pub fn container(&self) -> Container {
        let mounts = [(SOCKET_VOLUME, SOCKET_DIRECTORY, None), (RULES_VOLUME, RULES_DIRECTORY, Some(true))];
        let http = |path: &str| HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(HTTP_PORT),
            ..HTTPGetAction::default()
        };
        let socket = format!("{SOCKET_DIRECTORY}/tidegate.sock");
        let (http_port, admin_port) = (HTTP_PORT.to_string(), ADMIN_PORT.to_string());
        let keys_max = self.keys_max.to_string();
        let memory = format!("{}Mi", (BASE_BYTES + self.keys_max * KEY_BYTES).div_ceil(1024 * 1024));
        // A native sidecar is stopped after the workload; a plain one along with it, so that it has to wait.
        let drain_delay = if self.mode == Mode::Native { "0s" } else { "15s" };
        let args = [
            ["serve", "--rules", RULES_DIRECTORY].as_slice(),
            // Only containers of the pod can reach it, whoever they run as.
            &["--grpc-uds", &socket, "--uds-mode", "666"],
            // All ports, though one is not used: a Service called `grpc` would set GRPC_PORT for every pod of the namespace.
            &["--port", &http_port, "--debug-port", &admin_port, "--grpc-port", "8081"],
            &["--drain-delay", drain_delay, "--http-json", "false", "--keys-max", &keys_max],
        ];
        Container {
            name: CONTAINER.to_owned(),
            image: Some(self.image.clone()),
            // The image has no entry point.
            command: Some(vec!["/bin/tidegate".to_owned()]),
            args: Some(args.concat().into_iter().map(str::to_owned).collect()),
            restart_policy: (self.mode == Mode::Native).then(|| "Always".to_owned()),
            env_from: self.env_from(),
            ports: Some(vec![ContainerPort {
                name: Some("tidegate-http".to_owned()),
                container_port: HTTP_PORT,
                ..ContainerPort::default()
            }]),
            // The workload's containers wait for it where the sidecar is a native one.
            startup_probe: Some(Probe {
                http_get: Some(http("/readyz")),
                period_seconds: Some(1),
                failure_threshold: Some(60),
                ..Probe::default()
            }),
            liveness_probe: Some(Probe {
                http_get: Some(http("/livez")),
                period_seconds: Some(10),
                ..Probe::default()
            }),
            resources: Some(ResourceRequirements {
                requests: Some(quantities([("cpu", "50m"), ("memory", "32Mi")])),
                limits: Some(quantities([("memory", &memory)])),
                ..ResourceRequirements::default()
            }),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                read_only_root_filesystem: Some(true),
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(mounts.map(|(name, path, read_only)| mount(name, path, read_only)).to_vec()),
            ..Container::default()
        }
    }

    fn env_from(&self) -> Option<Vec<EnvFromSource>> {
        let configmap = self.env_configmap.iter().map(|name| EnvFromSource {
            config_map_ref: Some(ConfigMapEnvSource { name: name.clone(), optional: None }),
            ..EnvFromSource::default()
        });
        let secret = self.env_secret.iter().map(|name| EnvFromSource {
            secret_ref: Some(SecretEnvSource { name: name.clone(), optional: None }),
            ..EnvFromSource::default()
        });
        let sources: Vec<EnvFromSource> = configmap.chain(secret).collect();
        (!sources.is_empty()).then_some(sources)
    }

    pub fn volumes(&self) -> [Volume; 2] {
        let socket =
            EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(Quantity("1Mi".into())) };
        let rules = ConfigMapVolumeSource { name: self.rules.clone(), ..ConfigMapVolumeSource::default() };
        [
            Volume { name: SOCKET_VOLUME.to_owned(), empty_dir: Some(socket), ..Volume::default() },
            Volume { name: RULES_VOLUME.to_owned(), config_map: Some(rules), ..Volume::default() },
        ]
    }
}

/// Where the workload finds the socket.
pub fn workload_mount() -> VolumeMount {
    mount(SOCKET_VOLUME, SOCKET_DIRECTORY, None)
}

fn mount(name: &str, path: &str, read_only: Option<bool>) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), read_only, ..VolumeMount::default() }
}

fn quantities<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, Quantity> {
    pairs.map(|(name, quantity)| (name.to_owned(), Quantity(quantity.to_owned()))).into()
}
