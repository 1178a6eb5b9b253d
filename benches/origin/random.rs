//! Numbers that are the same in every run.

pub struct Random(pub u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    /// So many numbers below `below`, none twice.
    pub fn some(&mut self, count: usize, below: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = Vec::with_capacity(count);
        while numbers.len() < count {
            let number = self.below(below);
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        numbers
    }
}
