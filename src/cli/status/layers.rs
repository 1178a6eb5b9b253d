//! How the layers stand, as `/stats` says it.

use std::io::{self, Write};

use serde::Deserialize;

use crate::cli::status::report::time;
use crate::observe::layers::LayerName;

#[derive(Debug, Deserialize)]
pub(super) struct Layer {
    layer: String,
    is_up: bool,
    down_for_s: Option<f64>,
    lost: u64,
    place: String,
}

impl Layer {
    /// What follows from the outage; `None` if the layer is up.
    pub(super) fn problem(&self) -> Option<String> {
        // A layer that this command does not know yet is taken for one of the region's.
        let follows = LayerName::of_word(&self.layer).unwrap_or(LayerName::Regional).outage_in_full();
        let Layer { layer, place, .. } = self;
        (!self.is_up).then(|| format!("the {layer} layer is down for {}, {place}: {follows}", self.down_for()))
    }

    fn down_for(&self) -> String {
        time(self.down_for_s.unwrap_or_default() as u64)
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Layer { layer, lost, place, .. } = self;
        let state = if self.is_up { "up".to_owned() } else { format!("down for {}", self.down_for()) };
        writeln!(out, "  layer     {layer} is {state}, at {place}; given up {lost} times")
    }
}
