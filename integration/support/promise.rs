//! What Tidegate promises in figures, and what was measured: how soon, how fast, how exactly.
//!
//! A figure depends on the machine and on its neighbours, so a test prints its promises and asserts none of them. `make drill`
//! checks each by its bound.

use std::fmt;
use std::time::Duration;

/// A figure with its bound.
#[derive(Clone, Debug)]
#[must_use]
pub struct Promise {
    pub what: String,
    pub bound: Bound,
    pub figure: f64,
    pub unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    /// A count or a ratio, as the promise says.
    None,
}

impl Promise {
    /// The promise that something is over in time.
    pub fn within(what: impl Into<String>, bound: Duration, took: Duration) -> Promise {
        let (bound, figure) = (Bound::AtMost(bound.as_secs_f64()), took.as_secs_f64());
        Promise { what: what.into(), bound, figure, unit: Unit::Seconds }
    }

    pub fn at_most(what: impl Into<String>, bound: f64, figure: f64) -> Promise {
        Promise { what: what.into(), bound: Bound::AtMost(bound), figure, unit: Unit::None }
    }

    pub fn at_least(what: impl Into<String>, bound: f64, figure: f64) -> Promise {
        Promise { what: what.into(), bound: Bound::AtLeast(bound), figure, unit: Unit::None }
    }

    /// Whether the figure is within its bound. NaN never is.
    pub fn is_kept(&self) -> bool {
        match self.bound {
            Bound::AtMost(bound) => self.figure <= bound,
            Bound::AtLeast(bound) => self.figure >= bound,
        }
    }

    /// `at most 500 ms`.
    pub fn bound_text(&self) -> String {
        match self.bound {
            Bound::AtMost(bound) => format!("at most {}", self.unit.text(bound)),
            Bound::AtLeast(bound) => format!("at least {}", self.unit.text(bound)),
        }
    }

    pub fn figure_text(&self) -> String {
        self.unit.text(self.figure)
    }
}

impl Unit {
    fn text(self, figure: f64) -> String {
        match self {
            Unit::Seconds if figure < 1.0 => format!("{:.1} ms", figure * 1000.0),
            Unit::Seconds => format!("{figure:.2} s"),
            Unit::None if figure.fract() == 0.0 => format!("{figure:.0}"),
            Unit::None => format!("{figure:.4}"),
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = if self.is_kept() { "" } else { " (missed, see `make drill`)" };
        write!(f, "{}: {}, {}{kept}", self.what, self.figure_text(), self.bound_text())
    }
}

/// Prints promises to the output of a test.
pub fn print(promises: &[Promise]) {
    promises.iter().for_each(|promise| println!("{promise}"));
}

#[test]
fn a_promise_is_kept_up_to_its_bound() {
    let opens = |took_ms| Promise::within("it opens", Duration::from_millis(500), Duration::from_millis(took_ms));
    assert!(opens(500).is_kept() && !opens(501).is_kept());
    assert_eq!(opens(20).to_string(), "it opens: 20.0 ms, at most 500.0 ms");
    let share = Promise::at_least("a share", 0.9, 0.8999);
    assert_eq!(share.to_string(), "a share: 0.8999, at least 0.9000 (missed, see `make drill`)");
    assert!(!Promise::at_most("no number", 1.0, f64::NAN).is_kept());
    assert!(!Promise::at_least("no number", 1.0, f64::NAN).is_kept());
}
