//! The requests: at times of chance, of users of chance, at processes of chance. One seed always gives the same
//! requests, so everybody gets all of them.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp};

use super::users::{Class, Users};

/// Divisible by the size of every fleet, so that each process is as likely as the others.
pub const PROCESSES: usize = 9;

#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The time at which it is due, counted from the begin of the plan.
    pub after: Duration,
    /// The user who sends it, and whose limit it counts against.
    pub user: usize,
    /// The class of that user.
    pub class: Class,
    /// The process that is asked: this number, modulo the size of the fleet.
    pub process: usize,
}

/// An endless number of them.
pub struct Arrivals<'a> {
    users: &'a Users,
    random: SmallRng,
    gap_s: Exp<f64>,
    after: Duration,
}

impl<'a> Arrivals<'a> {
    pub fn new(users: &'a Users, requests_per_s: f64, seed: u64) -> anyhow::Result<Arrivals<'a>> {
        let (random, gap_s) = (SmallRng::seed_from_u64(seed), Exp::new(requests_per_s)?);
        Ok(Arrivals { users, random, gap_s, after: Duration::ZERO })
    }

    pub fn next(&mut self) -> Arrival {
        self.after += Duration::from_secs_f64(self.gap_s.sample(&mut self.random));
        let user = self.users.next(&mut self.random);
        let process = self.random.random_range(0..PROCESSES);
        Arrival { after: self.after, user, class: self.users.class(user), process }
    }
}
