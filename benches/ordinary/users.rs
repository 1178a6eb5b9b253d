//! The users and how often they ask: most are far below their limit, some near it, a few far above it.

use anyhow::Context;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::weighted::WeightedAliasIndex;
use rand_distr::{Distribution, LogNormal};

/// One user in so many is far above its limit: half a percent.
const ONE_HEAVY_IN: usize = 200;
/// Limits that such a user asks for in a window.
const HEAVY: std::ops::Range<f64> = 2.0..10.0;
/// Of the others, half ask for less than this part of their limit, and one in a hundred for more than 60 %.
const MEDIAN: f64 = 0.03;
const SIGMA: f64 = 1.288;
const PART_MAX: f64 = 3.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    BelowHalf,
    FromHalf,
    Above,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::BelowHalf, Class::FromHalf, Class::Above];

    /// Of a user who asks for this part of its limit in a window.
    pub fn of(part: f64) -> Class {
        match part {
            _ if part < 0.5 => Class::BelowHalf,
            _ if part <= 1.0 => Class::FromHalf,
            _ => Class::Above,
        }
    }
}

pub struct Users {
    classes: Vec<Class>,
    /// Picks the next user, each in proportion to its rate.
    choice: WeightedAliasIndex<f64>,
    /// Limits that all of them together ask for in a window, on average.
    parts: f64,
}

impl Users {
    /// As many as there may be, or as together ask for so many limits in a window.
    pub fn draw(count_max: u64, parts_max: f64, seed: u64) -> anyhow::Result<Users> {
        let mut random = SmallRng::seed_from_u64(seed);
        let light = LogNormal::new(MEDIAN.ln(), SIGMA).context("no such distribution")?;
        let (mut parts, mut sum) = (Vec::new(), 0.0);
        while (parts.len() as u64) < count_max && sum < parts_max {
            let is_heavy = parts.len() % ONE_HEAVY_IN == ONE_HEAVY_IN - 1;
            let part = if is_heavy { random.random_range(HEAVY) } else { light.sample(&mut random).min(PART_MAX) };
            parts.push(part);
            sum += part;
        }
        let classes = parts.iter().map(|part| Class::of(*part)).collect();
        Ok(Users { classes, choice: WeightedAliasIndex::new(parts).context("no users")?, parts: sum })
    }

    pub fn count(&self) -> usize {
        self.classes.len()
    }

    pub fn count_of(&self, class: Class) -> usize {
        self.classes.iter().filter(|of| **of == class).count()
    }

    pub fn class(&self, user: usize) -> Class {
        self.classes[user]
    }

    /// Limits that all of them together ask for in a window, on average.
    pub fn parts(&self) -> f64 {
        self.parts
    }

    pub fn next(&self, random: &mut SmallRng) -> usize {
        self.choice.sample(random)
    }
}
