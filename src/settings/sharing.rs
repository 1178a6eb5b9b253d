//! What counts are shared through, as flags and as checked: the same for `serve`, which connects to it, and for `check`,
//! which tells what it means for the rules.

use clap::Args;

use crate::engine::reach::{Layers, RegionIndex, Store};
use crate::global::settings::{GlobalFlags, GlobalSettings, RegionNames};
use crate::regional::redis::settings::owner::{OwnerFlags, OwnerSettings};
use crate::regional::redis::settings::{RedisFlags, RedisSettings};
use crate::secret::{self, Secret, SecretFlags};
use crate::settings::SettingError;
use crate::settings::outages::{OutageFlags, OutageSettings};
use crate::sources::surroundings::Surroundings;

#[derive(Args, Clone, Debug)]
pub struct SharingFlags {
    #[command(flatten)]
    pub redis: RedisFlags,

    #[command(flatten)]
    pub global: GlobalFlags,

    #[command(flatten)]
    pub owner: OwnerFlags,

    #[command(flatten)]
    pub outages: OutageFlags,
}

/// Whom counts are shared with.
#[derive(Clone, Debug)]
pub(crate) struct SharingSettings {
    /// The region's Redis. `None`: the process counts alone.
    pub redis: Option<RedisSettings>,
    /// The regions and what they share. `None`: counts stay in the region.
    pub global: Option<GlobalSettings>,
    /// The regions, also when they share nothing.
    pub names: Option<RegionNames>,
    /// Who owns strict limits.
    pub owner: OwnerSettings,
    /// By what outages are noticed.
    pub outages: OutageSettings,
    /// What sensitive values are hashed with before they leave the process.
    pub secret: Option<Secret>,
}

impl SharingSettings {
    pub(crate) fn new(flags: &SharingFlags, secret: &SecretFlags) -> Result<SharingSettings, SettingError> {
        let outages = OutageSettings::new(&flags.outages)?;
        let owner = OwnerSettings::new(&flags.owner, &flags.redis)?;
        let global = GlobalSettings::new(&flags.global)?;
        Ok(SharingSettings {
            redis: RedisSettings::new(&flags.redis)?,
            names: match &global {
                Some(global) => Some(global.names.clone()),
                None => RegionNames::alone(&flags.global)?,
            },
            global,
            owner,
            outages,
            secret: secret::read(secret)?,
        })
    }

    /// How far limits can reach.
    pub(crate) fn layers(&self) -> Layers {
        let is_regional = self.redis.is_some();
        let place = self.names.as_ref().map_or(RegionIndex::ONLY, RegionNames::place);
        let owner = match &self.owner.redis {
            Some(_) => Some(Store::Owner),
            // Several regions have no Redis that could own a limit of all of them.
            None => (is_regional && place.regions == 1).then_some(Store::Origin),
        };
        Layers {
            is_regional,
            is_global: self.global.is_some() && place.regions > 1,
            owner,
            place,
            slack_permille: self.redis.as_ref().map_or(0, |redis| redis.slack),
        }
    }

    /// What rules have to fit into.
    pub(crate) fn surroundings(&self) -> Surroundings {
        Surroundings {
            layers: self.layers(),
            has_store: self.redis.is_some() || self.global.is_some() || self.owner.redis.is_some(),
            has_secret: self.secret.is_some(),
        }
    }

    /// Whether anything says where the rules are to hold.
    pub(crate) fn is_set(&self) -> bool {
        self.surroundings().has_store || self.names.is_some()
    }

    /// What is harmless, but hardly what was meant, a sentence each.
    pub(crate) fn warnings(&self, flags: &SharingFlags) -> Vec<String> {
        let alone = match (&self.redis, &self.global) {
            (None, Some(global)) => Some(format!(
                "MYSQL_URL without REDIS_URL: this process has to be the only one of region {}, others would not add up",
                global.names.region
            )),
            _ => None,
        };
        let owner = flags.owner.warning(self.redis.is_some());
        [flags.redis.warning(), flags.global.warning(), owner, alone].into_iter().flatten().collect()
    }
}
