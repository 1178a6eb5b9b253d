//! Where rules come from, and what tells of new ones.

use std::fmt;

use tokio::sync::watch;

use crate::sources::changes::Changes;
use crate::sources::files::Location;
use crate::sources::settings::{RuleFlags, RulesType};
use crate::sources::xds::settings::{XdsFlags, XdsSettingError, XdsSettings};

/// Where rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleSource {
    /// They are read, and read again when they change.
    Files(Location),
    /// A management server sends them.
    Server(Box<XdsSettings>),
}

impl RuleSource {
    pub(crate) fn new(kind: RulesType, files: &RuleFlags, server: &XdsFlags) -> Result<RuleSource, XdsSettingError> {
        match kind {
            RulesType::File => Ok(RuleSource::Files(files.location())),
            RulesType::Xds => Ok(RuleSource::Server(Box::new(XdsSettings::new(server)?))),
        }
    }
}

impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleSource::Files(location) => location.fmt(f),
            RuleSource::Server(xds) => write!(f, "xds:{}", xds.place),
        }
    }
}

/// What tells of new rules.
#[derive(Debug)]
pub(crate) enum RuleNews {
    /// There may be new ones in the files.
    Files(Location, Changes),
    /// Counts the server's rules that have come into force.
    Server(watch::Receiver<u64>),
}

impl RuleNews {
    /// Watches the files from now on.
    pub(crate) fn of_files(location: &Location) -> RuleNews {
        let watched = location.clone();
        RuleNews::Files(location.clone(), Changes::of(move || watched.watched()))
    }

    /// Waits for the next change.
    pub(crate) async fn next(&mut self) {
        match self {
            RuleNews::Files(_, changes) => changes.next().await,
            RuleNews::Server(news) => {
                if news.changed().await.is_err() {
                    // Nobody follows the server any more, so there is nothing to tell.
                    std::future::pending().await
                }
            }
        }
    }
}
