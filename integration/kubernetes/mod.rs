//! What is given to Kubernetes, without a cluster: manifests, the image, the sidecar.

pub mod container_image;
mod inject;
mod kustomizations;
mod processes;
mod sidecar_memory;
mod webhook;
