//! How long each layer may be silent before it is given up, and how often it is then tried again.

use std::time::Duration;

use clap::Args;

use crate::flag_value::{DurationError, duration, duration_within};
use crate::regional::breaker::BreakerOptions;

#[derive(Args, Clone, Debug)]
pub struct OutageFlags {
    /// Redis, or the owner, is given up when it has answered nothing for this long; calls that fail make it sooner
    #[arg(long, env = "TIDEGATE_ORIGIN_OUTAGE_AFTER", value_name = "DURATION", default_value = "500ms")]
    #[arg(value_parser = duration, help_heading = "Outages")]
    pub origin_outage_after: Duration,

    /// MySQL is given up when nothing could be imported or published for this long
    #[arg(long, env = "TIDEGATE_GLOBAL_OUTAGE_AFTER", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = duration, help_heading = "Outages")]
    pub global_outage_after: Duration,

    /// How often a Redis that was given up is tried again
    #[arg(long, env = "TIDEGATE_PROBE_INTERVAL", value_name = "DURATION", default_value = "200ms")]
    #[arg(value_parser = duration, help_heading = "Outages")]
    pub probe_interval: Duration,
}

/// When a layer is given up, and when it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutageSettings {
    /// For each Redis: the region's own, and the owner of strict limits.
    pub breaker: BreakerOptions,
    /// MySQL is given up when nothing could be imported or published for this long.
    pub global_after: Duration,
}

impl OutageSettings {
    pub(crate) fn new(flags: &OutageFlags) -> Result<OutageSettings, DurationError> {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let outage_after = duration_within(
            ("origin-outage-after", "TIDEGATE_ORIGIN_OUTAGE_AFTER"),
            flags.origin_outage_after,
            ms(50)..=s(60),
        )?;
        let global_after = duration_within(
            ("global-outage-after", "TIDEGATE_GLOBAL_OUTAGE_AFTER"),
            flags.global_outage_after,
            s(1)..=s(3600),
        )?;
        let probe_interval =
            duration_within(("probe-interval", "TIDEGATE_PROBE_INTERVAL"), flags.probe_interval, ms(10)..=s(60))?;
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let breaker = BreakerOptions { outage_after_us: us(outage_after), probe_interval_us: us(probe_interval) };
        Ok(OutageSettings { breaker, global_after })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: OutageFlags,
    }

    #[test]
    fn times_are_bounded() {
        for (flag, value, range) in [
            ("--origin-outage-after", "1ms", "from 50ms to 1m"),
            ("--global-outage-after", "2h", "from 1s to 1h"),
            ("--probe-interval", "2h", "from 10ms to 1m"),
        ] {
            let flags = Command::try_parse_from(["serve", flag, value]).unwrap().flags;
            let text = OutageSettings::new(&flags).unwrap_err().to_string();
            assert!(text.contains(flag) && text.contains(&format!("write a duration {range}")), "{text}");
        }
    }
}
