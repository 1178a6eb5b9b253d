//! Asks the sentinels which server is the master now.
//!
//! All sentinels are asked at once, and the first that knows the name is believed, so that one that is down costs
//! nothing. The server that it names must say itself that it is a master: right after a failover a sentinel may be
//! behind.

use std::sync::Arc;

use redis::Value;
use tokio::task::JoinSet;

use crate::regional::redis::dial::{self, Fresh};
use crate::regional::redis::error::OriginError;
use crate::regional::redis::link::Link;
use crate::regional::redis::settings::address::RedisNode;

/// The server that the sentinels name. Fails with the error of the last sentinel to answer.
pub(super) async fn master(name: &str, sentinels: &[RedisNode], fresh: &Fresh) -> Result<RedisNode, OriginError> {
    let name: Arc<str> = name.into();
    let fresh = Arc::new(fresh.for_sentinels());
    // Dropped when the first has answered, which ends the other questions.
    let mut asked = JoinSet::new();
    for sentinel in sentinels {
        let (name, sentinel, fresh) = (name.clone(), sentinel.clone(), fresh.clone());
        asked.spawn(async move {
            let within = fresh.connect_timeout;
            let asking = tokio::time::timeout(within, ask(&name, &sentinel, &fresh)).await;
            asking.unwrap_or(Err(OriginError::Timeout { within }))
        });
    }
    let mut last = OriginError::Down;
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(node)) => return Ok(node),
            Ok(Err(error)) => last = error,
            // The task was stopped with the runtime.
            Err(_) => {}
        }
    }
    Err(last)
}

async fn ask(name: &str, sentinel: &RedisNode, fresh: &Fresh) -> Result<RedisNode, OriginError> {
    let link = dial::single(sentinel, fresh.credentials.as_ref(), fresh).await?;
    let command = redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(name).to_owned();
    let answer = link.query(&command).await.map_err(|error| error.at(&format!("sentinel {sentinel}")))?;
    if answer == Value::Nil {
        return Err(OriginError::Refused {
            code: "ERR".into(),
            text: format!("the sentinel {sentinel} knows no master '{name}': see REDIS_URL"),
        });
    }
    match redis::from_redis_value::<(String, u16)>(answer) {
        Ok((host, port)) => Ok(RedisNode { host, port }),
        Err(_) => Err(OriginError::BadReply),
    }
}

/// Fails unless the server is a master. One that may not be asked for its role is believed to be one.
pub(super) async fn expect_master(link: &Link) -> Result<(), OriginError> {
    let role = match link.query(&redis::cmd("ROLE")).await {
        Err(OriginError::Refused { code, .. }) if code == "NOPERM" => return Ok(()),
        other => other?,
    };
    let Value::Array(fields) = role else { return Err(OriginError::BadReply) };
    match fields.into_iter().next().map(redis::from_redis_value::<String>) {
        Some(Ok(role)) if role == "master" => Ok(()),
        Some(Ok(role)) => Err(OriginError::Refused {
            code: "READONLY".into(),
            text: format!("the sentinels name it as the master, but it is a {role}"),
        }),
        _ => Err(OriginError::BadReply),
    }
}
