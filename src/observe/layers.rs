//! How the layers stand, for metrics and for people.

use std::fmt;
use std::time::Duration;

use prometheus_client::metrics::MetricType;
use serde_json::{Value, json};

use crate::observe::label_name::LabelName;
use crate::observe::page::MetricsPage;

/// What a process shares its counts through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerName {
    /// The table in MySQL.
    Global,
    /// The owner of strict limits. With one region, that is the region's Redis.
    Strict,
    /// The region's Redis.
    Regional,
}

impl LayerName {
    pub(crate) const ALL: [LayerName; 3] = [LayerName::Global, LayerName::Strict, LayerName::Regional];

    pub(crate) fn word(self) -> &'static str {
        match self {
            LayerName::Global => "global",
            LayerName::Strict => "strict",
            LayerName::Regional => "regional",
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<LayerName> {
        LayerName::ALL.into_iter().find(|name| name.word() == word)
    }

    /// What is enforced with the layer, or without it.
    fn meaning(self, is_up: bool) -> &'static str {
        match (self, is_up) {
            (LayerName::Global, true) => "limits hold over all regions",
            (LayerName::Global, false) => "limits hold in the region, on the last counts of others (share: its part)",
            (LayerName::Strict, true) => "strict limits are exact",
            (LayerName::Regional, true) => "limits hold over the region",
            (LayerName::Strict | LayerName::Regional, false) => self.outage_in_full(),
        }
    }

    /// What is enforced without the layer, in words that need a line of their own.
    pub(crate) fn outage_in_full(self) -> &'static str {
        match self {
            LayerName::Global => {
                "limits hold in the region, on the last counts of the others (share: its part of the limit)"
            }
            LayerName::Strict => "on_outage of each strict rule decides",
            LayerName::Regional => "on_outage of each rule decides",
        }
    }
}

/// One layer at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerFigures {
    /// Which layer this is about.
    pub name: LayerName,
    /// `None` while it can be reached.
    pub down_for: Option<Duration>,
    /// How often it was given up since the start.
    pub lost: u64,
    /// Its address, without password.
    pub place: String,
}

impl LayerFigures {
    pub(crate) fn new(name: LayerName, down_for: Option<Duration>, lost: u64, place: &str) -> LayerFigures {
        LayerFigures { name, down_for, lost, place: place.to_owned() }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.down_for.is_none()
    }

    /// How often it came back.
    fn regained(&self) -> u64 {
        self.lost.saturating_sub(u64::from(!self.is_up()))
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "layer": self.name.word(),
            "is_up": self.is_up(),
            "down_for_s": self.down_for.map(|down_for| down_for.as_secs_f64()),
            "lost": self.lost,
            "place": self.place,
        })
    }
}

impl fmt::Display for LayerFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_up() { '+' } else { '-' };
        write!(f, "[{sign}] {}: ", self.name.word())?;
        match self.down_for {
            None => write!(f, "up")?,
            Some(down_for) => write!(f, "down for {} s", down_for.as_secs())?,
        }
        write!(f, ", {} ({})", self.name.meaning(self.is_up()), self.place)
    }
}

/// Writes how the layers stand.
pub(super) fn write(layers: &[LayerFigures], page: &mut MetricsPage<'_>) -> fmt::Result {
    let up = layers.iter().map(|layer| (vec![(LabelName::Layer, layer.name.word())], u64::from(layer.is_up())));
    page.family("tidegate_layer_up", "1 while a layer can be reached", MetricType::Gauge, up)?;
    let changes = layers.iter().flat_map(|layer| {
        let labels = |to| vec![(LabelName::Layer, layer.name.word()), (LabelName::To, to)];
        [(labels("down"), layer.lost), (labels("up"), layer.regained())]
    });
    page.family(
        "tidegate_layer_changes_total",
        "How often a layer was given up and came back",
        MetricType::Counter,
        changes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_known_by_its_word() {
        for name in LayerName::ALL {
            assert_eq!(LayerName::of_word(name.word()), Some(name));
        }
        assert_eq!(LayerName::of_word("local"), None);
    }

    #[test]
    fn a_layer_says_what_it_means() {
        let up = LayerFigures::new(LayerName::Regional, None, 2, "redis:6379");
        assert_eq!(up.to_string(), "[+] regional: up, limits hold over the region (redis:6379)");
        assert_eq!(up.regained(), 2);
        let down = LayerFigures::new(LayerName::Regional, Some(Duration::from_millis(3500)), 3, "redis:6379");
        assert_eq!(down.to_string(), "[-] regional: down for 3 s, on_outage of each rule decides (redis:6379)");
        assert_eq!((down.regained(), down.to_json()["is_up"].clone()), (2, json!(false)));
    }
}
