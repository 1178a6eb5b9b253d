//! The servers that take turns, each a process of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use prost::Message;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tidegate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use crate::constant::{self, Constant};
use crate::process::Process;
use crate::scenario::Rule;
use crate::stores::Stores;
use crate::tidegate_server::TidegateServer;

/// The server that all others are compared with.
pub const TONIC: &str = "tonic";
pub const TIDEGATE: &str = "tidegate";
pub const TIDEGATE_WITH_STORES: &str = "tidegate, Redis and MySQL";

/// By how many bytes a constant answer may differ from a real one, for each descriptor: numbers take as many as they need.
const ANSWER_BYTES_APART_MAX: usize = 4;
/// More than half of the limit that is never reached. Beyond half of it, a region tells the others about the key through MySQL
/// every second.
const HITS_AT_FIRST: u32 = 2_200_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Constant,
    Tidegate,
    /// Somebody else's, whose rules are not known.
    Peer,
}

pub struct Server {
    pub name: String,
    pub kind: Kind,
    pub address: String,
    /// The process whose CPU time is measured. `None`: it is elsewhere, or nobody has named it.
    pub pid: Option<u32>,
    pub stores: Option<Stores>,
    _constant: Option<Process>,
    tidegate: Option<TidegateServer>,
}

impl Server {
    pub fn constant(kind: Constant) -> anyhow::Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process =
            Process::start(command.args([constant::ARGUMENT, kind.name()]).env_clear().stdout(Stdio::piped()))?;
        let address = process.first_on_stdout(|line| Some(line.trim().to_owned()))?;
        Ok(Server {
            name: kind.name().into(),
            kind: Kind::Constant,
            address,
            pid: Some(process.pid()),
            stores: None,
            _constant: Some(process),
            tidegate: None,
        })
    }

    /// Starts Tidegate with all defaults, except for free ports.
    pub fn tidegate(rules: &Path, stores: Option<Stores>) -> anyhow::Result<Server> {
        let tidegate = match &stores {
            Some(stores) => TidegateServer::start(rules, &stores.settings(), &["regional", "global"])?,
            None => TidegateServer::start(rules, &[], &[])?,
        };
        Ok(Server {
            name: if stores.is_some() { TIDEGATE_WITH_STORES } else { TIDEGATE }.into(),
            kind: Kind::Tidegate,
            address: tidegate.address().to_owned(),
            pid: Some(tidegate.pid()),
            stores,
            _constant: None,
            tidegate: Some(tidegate),
        })
    }

    pub fn peer(name: &str, address: &str, pid: Option<u32>) -> Server {
        Server {
            name: name.into(),
            kind: Kind::Peer,
            address: address.into(),
            pid,
            stores: None,
            _constant: None,
            tidegate: None,
        }
    }

    /// What the server says about a store that is not up; `None` if all that it should have are up.
    pub fn lost_store(&self) -> anyhow::Result<Option<String>> {
        self.tidegate.as_ref().map_or(Ok(None), TidegateServer::lost_layer)
    }
}

/// Asks every server, so that none is measured that answers something else than the others.
pub fn compare_answers(servers: &[Server]) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (descriptors, hits) in [(1, HITS_AT_FIRST), (4, 0)] {
        let mut real_bytes = None;
        // The last server gives a real answer, which the others are compared with.
        for server in servers.iter().rev() {
            let asked = runtime.block_on(ask(&server.address, descriptors, hits));
            let answer = asked.with_context(|| format!("{} at {} does not answer", server.name, server.address))?;
            if server.kind == Kind::Peer {
                continue;
            }
            let is_right = answer.overall_code == Code::Ok as i32 && answer.statuses.len() == descriptors;
            ensure!(is_right, "{} answers {descriptors} descriptors with {answer:?}", server.name);
            let bytes = answer.encoded_len();
            let real = *real_bytes.get_or_insert(bytes);
            if bytes.abs_diff(real) > ANSWER_BYTES_APART_MAX * descriptors {
                bail!("{} answers with {bytes} bytes, and a real answer has {real}", server.name);
            }
        }
    }
    Ok(())
}

async fn ask(address: &str, descriptors: usize, hits: u32) -> anyhow::Result<RateLimitResponse> {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await?;
    let descriptor = |number: usize| RateLimitDescriptor {
        entries: vec![Entry { key: Rule::far().key, value: format!("{number:032}") }],
        ..RateLimitDescriptor::default()
    };
    let descriptors = (0..descriptors).map(descriptor).collect();
    let request = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: hits };
    Ok(client.should_rate_limit(request).await?.into_inner())
}
