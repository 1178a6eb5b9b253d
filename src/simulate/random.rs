//! Where chance comes from: one seed, so that a run can be repeated by anyone, on any machine, in any later version.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// How a table hashes. It is fixed, so that the table gives up the same keys at its cap in every run.
    pub fn hasher(&mut self) -> ahash::RandomState {
        ahash::RandomState::with_seeds(self.number(), self.number(), self.number(), self.number())
    }

    /// A number from 0 up to the bound, without the bound itself.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound.max(1))) >> 64) as u64
    }

    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from).saturating_add(1))
    }

    /// True as many times in a thousand as `share` says.
    pub fn permille(&mut self, share: u64) -> bool {
        self.below(1000) < share
    }
}
