//! The bound that a figure should keep.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub fn is_met(self, figure: f64) -> bool {
        match self {
            Bound::AtLeast(least) => figure >= least,
            Bound::AtMost(most) => figure <= most,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(out, ">= {least}"),
            Bound::AtMost(most) => write!(out, "<= {most}"),
        }
    }
}
