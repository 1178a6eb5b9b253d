//! What people copy: the files of `envoy/`, the compose file and the demo.

mod authorities;
mod bootstraps;
mod compose;
mod files;
mod istio;
mod kubernetes;
mod readme_demo;
