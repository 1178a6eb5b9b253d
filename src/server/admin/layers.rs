//! How the layers stand: whether Redis, the owner of strict limits and the table that regions share can be reached.
//!
//! A rule falls back from its widest layer to the next one, and returns by itself. The process is ready in any case, because
//! memory always answers.

use std::time::Duration;

use crate::engine::reach::Store;
use crate::observe::layers::{LayerFigures, LayerName};
use crate::server::service::Service;

impl Service {
    /// Every layer that is configured, the widest first.
    pub(crate) fn layers(&self) -> Vec<LayerFigures> {
        let mut layers = Vec::new();
        if let Some(global) = self.global() {
            let (down_for, changes) = global.downtime();
            layers.push(LayerFigures::new(LayerName::Global, down_for, changes, global.place()));
        }
        // With one region, its own Redis decides strict limits.
        let owner = match self.engine().layers().owner {
            Some(Store::Owner) => self.owner(),
            Some(Store::Origin) => self.regional(),
            None => None,
        };
        for (name, store) in [(LayerName::Strict, owner), (LayerName::Regional, self.regional())] {
            let Some(regional) = store else { continue };
            let is_strict = name == LayerName::Strict;
            let down_for = regional.region().down_for_us(is_strict, regional.now()).map(Duration::from_micros);
            let times_lost = regional.region().times_lost(is_strict);
            layers.push(LayerFigures::new(name, down_for, times_lost, &regional.redis().status().address));
        }
        layers
    }
}
