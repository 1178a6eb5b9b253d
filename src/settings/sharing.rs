//! What counts are shared through: the flags, and the settings that they come to. `serve` connects to it, and `check` tells
//! what it means for the rules.

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

/// With whom counts are shared, and through what.
#[derive(Clone, Debug)]
pub(crate) struct SharingSettings {
    /// The region's Redis. `None`: the process counts alone.
    pub redis: Option<RedisSettings>,
    /// The regions and what they share. `None`: counts stay in the region.
    pub global: Option<GlobalSettings>,
    /// The names of the regions, even if these share nothing. `None`: no names are set, so there is one region.
    pub names: Option<RegionNames>,
    /// Which Redis owns strict limits, and how long requests wait for it.
    pub owner: OwnerSettings,
    /// When a layer is given up, and when it is tried again.
    pub outages: OutageSettings,
    /// The key of the digests that stand for sensitive values outside the process; `None` if none is set.
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
            // Of several regions, none has a Redis that could own a limit of all of them.
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

    /// The layers and the secret that rules have to make do with.
    pub(crate) fn surroundings(&self) -> Surroundings {
        Surroundings {
            layers: self.layers(),
            has_store: self.redis.is_some() || self.global.is_some() || self.owner.redis.is_some(),
            has_secret: self.secret.is_some(),
        }
    }

    /// Whether any setting tells of a store or of regions, so that rules can be judged by what they reach.
    pub(crate) fn is_set(&self) -> bool {
        self.surroundings().has_store || self.names.is_some()
    }

    /// A sentence for each setting that is harmless, but hardly what was meant.
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
