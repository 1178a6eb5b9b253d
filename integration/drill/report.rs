//! What came of the drills: a table for people, JSON for programs.

use serde_json::{Value, json};

use crate::support::promise::{Promise, PromiseBound, Unit};

pub struct Report {
    pub drills: Vec<Ended>,
}

/// A drill that has ended: with figures, or because something was wrong whatever the machine does.
pub struct Ended {
    pub name: &'static str,
    pub promises: Result<Vec<Promise>, String>,
}

impl Report {
    pub fn is_kept(&self) -> bool {
        let is_kept = |all: &Vec<Promise>| !all.is_empty() && all.iter().all(Promise::is_kept);
        self.drills.iter().all(|drill| drill.promises.as_ref().is_ok_and(is_kept))
    }

    /// Drill, promise, bound, figure, and whether it is kept; columns as wide as they need to be.
    pub fn table(&self) -> String {
        let mut rows = vec![["drill", "promise", "bound", "figure", ""].map(str::to_owned)];
        for Ended { name, promises } in &self.drills {
            match promises {
                Ok(promises) => rows.extend(promises.iter().map(|promise| {
                    let kept = if promise.is_kept() { "kept" } else { "MISSED" };
                    let (bound, figure) = (promise.bound_text(), promise.figure_text());
                    [(*name).to_owned(), promise.what.clone(), bound, figure, kept.to_owned()]
                })),
                Err(error) => {
                    let first = error.lines().next().unwrap_or_default();
                    rows.push([name, first, "", "", "FAILED"].map(str::to_owned));
                }
            }
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 5] = std::array::from_fn(width);
        let line = |row: &[String; 5]| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        rows.iter().map(line).collect()
    }

    pub fn json(&self) -> Value {
        let promise = |promise: &Promise| {
            let (relation, bound) = match promise.bound {
                PromiseBound::AtMost(bound) => ("at_most", bound),
                PromiseBound::AtLeast(bound) => ("at_least", bound),
            };
            let unit = match promise.unit {
                Unit::Seconds => Some("s"),
                Unit::None => None,
            };
            let (what, figure, is_kept) = (&promise.what, promise.figure, promise.is_kept());
            json!({"promise": what, "relation": relation, "bound": bound, "figure": figure, "unit": unit, "kept": is_kept})
        };
        let drill = |ended: &Ended| match &ended.promises {
            Ok(all) => json!({"drill": ended.name, "promises": all.iter().map(promise).collect::<Vec<_>>()}),
            Err(error) => json!({"drill": ended.name, "error": error}),
        };
        json!({"kept": self.is_kept(), "drills": self.drills.iter().map(drill).collect::<Vec<_>>()})
    }
}
