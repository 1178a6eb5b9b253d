//! How the layers stand, as `/stats` says it.

use std::io::{self, Write};

use serde::Deserialize;

use crate::cli::status::report::time;

#[derive(Debug, Deserialize)]
pub struct Layer {
    layer: String,
    is_up: bool,
    down_for_s: Option<f64>,
    lost: u64,
    place: String,
}

impl Layer {
    /// What follows from it, if it is down.
    pub fn problem(&self) -> Option<String> {
        let follows = match self.layer.as_str() {
            "global" => "limits hold in the region, on the last counts of the others (share: its part of the limit)",
            "strict" => "on_outage of each strict rule decides",
            _ => "on_outage of each rule decides",
        };
        let Layer { layer, place, .. } = self;
        (!self.is_up).then(|| format!("the {layer} layer is down for {}, {place}: {follows}", self.down_for()))
    }

    fn down_for(&self) -> String {
        time(self.down_for_s.unwrap_or_default() as u64)
    }

    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Layer { layer, lost, place, .. } = self;
        let state = if self.is_up { "up".to_owned() } else { format!("down for {}", self.down_for()) };
        writeln!(out, "  layer     {layer} is {state}, at {place}; given up {lost} times")
    }
}
