//! `tidegate gen istio`: the filter and the actions for Istio's proxies, as EnvoyFilters.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use clap::ValueEnum;

use crate::cli::generate::envoy::{filter, rate_limits};
use crate::cli::generate::plan::GatewayPlan;
use crate::cli::yaml::{element, indented, quoted};

/// Which of Istio's proxies limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Context {
    /// Those at the edge
    Gateway,
    /// Those beside a workload, for what comes in
    Sidecar,
}

impl Context {
    fn word(self) -> &'static str {
        match self {
            Context::Gateway => "GATEWAY",
            Context::Sidecar => "SIDECAR_INBOUND",
        }
    }
}

/// Where the filters apply.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    /// What the names of the EnvoyFilters begin with.
    pub name: String,
    /// Where the EnvoyFilters are to be.
    pub namespace: String,
    /// Gateways, or sidecars for what comes in.
    pub context: Context,
    /// Labels of the workload; never empty.
    pub selector: BTreeMap<String, String>,
    /// The service's host in the mesh; an IPv6 address has no brackets.
    pub host: String,
    /// The service's port, as the name of Istio's cluster has it.
    pub port: u16,
}

impl Mesh {
    /// The host as HTTP writes it. A call with an authority that HTTP does not allow is reset before it is read.
    fn authority(&self) -> String {
        match self.host.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => self.host.clone(),
        }
    }
}

/// Two EnvoyFilters: the filter, and the actions on every virtual host.
pub(crate) fn documents(plan: &GatewayPlan, mesh: &Mesh) -> [String; 2] {
    let cluster = format!("outbound|{}||{}", mesh.port, mesh.host);
    let context = mesh.context.word();
    let of_filter = format!(
        "applyTo: HTTP_FILTER
match:
  context: {context}
  listener:
    filterChain:
      filter:
        name: envoy.filters.network.http_connection_manager
        subFilter: {{name: envoy.filters.http.router}}
patch:
  operation: INSERT_BEFORE
  value:
{}",
        indented(4, &filter(plan, &cluster, Some(&mesh.authority())))
    );
    let of_actions = format!(
        "applyTo: VIRTUAL_HOST
match:
  context: {context}
patch:
  operation: MERGE
  value:
    rate_limits:
{}",
        indented(4, &rate_limits(plan))
    );
    [envoy_filter(mesh, "filter", &of_filter), envoy_filter(mesh, "actions", &of_actions)]
}

fn envoy_filter(mesh: &Mesh, part: &str, patch: &str) -> String {
    let label = |(key, value): (&String, &String)| format!("      {}: {}\n", quoted(key), quoted(value));
    format!(
        "apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata:
  name: {name}
  namespace: {namespace}
spec:
  workloadSelector:
    labels:
{labels}  configPatches:
{patch}",
        name = quoted(&format!("{}-{part}", mesh.name)),
        namespace = quoted(&mesh.namespace),
        labels = mesh.selector.iter().map(label).collect::<String>(),
        patch = indented(2, &element(patch)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::generate::envoy::ServiceTarget;

    #[test]
    fn whatever_host_can_be_given_is_an_authority_that_http_takes() {
        for typed in ["tidegate.tidegate.svc.cluster.local:8081", "127.0.0.1:8081", "[::1]:8081", "a_b:1"] {
            let Ok(ServiceTarget::Tcp { host, port }) = ServiceTarget::read(typed) else {
                panic!("{typed} is an address")
            };
            let (context, selector) = (Context::Gateway, BTreeMap::new());
            let mesh = Mesh { name: "n".into(), namespace: "n".into(), context, selector, host, port };
            let authority = mesh.authority();
            assert!(authority.parse::<http::uri::Authority>().is_ok(), "{typed}: {authority}");
        }
    }
}
