//! The client's own count of every user's requests and of those that were admitted. It shows how far a limit was exceeded,
//! and whether a user was denied without reason.
//!
//! A request counts as asked from the moment it is sent, and as admitted from the moment its answer comes. The process decides
//! in between, so neither moment makes a process look worse than it is.

/// The hits of a user in a window and the one before it.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    sequence: u64,
    current: u32,
    previous: u32,
    /// The most that ever counted against the limit, by the formula of the sliding window.
    effective_max: u32,
    /// The most hits of a fixed window.
    window_max: u32,
}

impl Count {
    fn add(&mut self, now_ms: u64, window_ms: u64) {
        let sequence = now_ms / window_ms;
        if sequence > self.sequence {
            self.previous = if sequence == self.sequence + 1 { self.current } else { 0 };
            self.current = 0;
            self.sequence = sequence;
        }
        self.current += 1;
        let left_ms = window_ms - now_ms % window_ms;
        let weighed = u64::from(self.previous) * left_ms / window_ms;
        self.effective_max = self.effective_max.max(self.current + weighed as u32);
        self.window_max = self.window_max.max(self.current);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    asked: Count,
    admitted: Count,
    denied: u64,
}

pub struct Ledger {
    limit: u32,
    window_ms: u64,
    accounts: Vec<Account>,
}

impl Ledger {
    pub fn new(limit: u32, window_ms: u64, users: usize) -> Ledger {
        Ledger { limit, window_ms, accounts: vec![Account::default(); users] }
    }

    pub fn asked(&mut self, user: usize, now_ms: u64) {
        self.accounts[user].asked.add(now_ms, self.window_ms);
    }

    pub fn answered(&mut self, user: usize, now_ms: u64, is_over: bool) {
        let account = &mut self.accounts[user];
        match is_over {
            true => account.denied += 1,
            false => account.admitted.add(now_ms, self.window_ms),
        }
    }

    /// The most that a user was given in a fixed window, in limits.
    pub fn worst_window(&self) -> f64 {
        self.worst(|admitted| admitted.window_max)
    }

    /// The most that counted against the limit of a user at any time, in limits.
    pub fn worst_effective(&self) -> f64 {
        self.worst(|admitted| admitted.effective_max)
    }

    fn worst(&self, figure: impl Fn(&Count) -> u32) -> f64 {
        let worst = self.accounts.iter().map(|account| figure(&account.admitted)).max();
        f64::from(worst.unwrap_or(0)) / f64::from(self.limit)
    }

    /// Denials of users who would have stayed below their limit, had all that they asked for been admitted.
    pub fn denied_wrongly(&self) -> u64 {
        let stayed_below = self.accounts.iter().filter(|account| account.asked.effective_max < self.limit);
        stayed_below.map(|account| account.denied).sum()
    }
}
