//! The matching tree of one domain: which rule does a descriptor's list of entries lead to?
//!
//! One level per entry. At each level an exact value beats wildcards, the first declared wildcard beats the key alone,
//! and there is no way back: what was chosen is chosen, even if it has no rule below. Only the last entry's limit counts.
//! On the way, the values that the rules leave open are collected: they make up the identifier.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::request::Entry;
use crate::rules::limit::Rule;
use crate::rules::problem::Place;
use crate::rules::wildcard::Patterns;

pub(crate) type Map<V> = HashMap<Box<str>, V, ahash::RandomState>;

/// The values that a rule leaves open, each prefixed with its length, so that no two lists of values look alike.
pub trait Identifier {
    fn push(&mut self, value: &str);
}

/// Somewhere in the tree. Small, and kept where the way to it is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Into `Tree::labels`.
    pub number: u32,
    /// Into `Tree::rules`.
    pub rule: Option<u32>,
    /// Into `Tree::levels`.
    pub level: Option<u32>,
    pub is_pattern: bool,
    /// All values that the pattern matches share one count.
    pub is_shared: bool,
}

/// The children below one key.
#[derive(Debug, Default)]
pub struct Values {
    /// By value, the texts of patterns included: a value that literally is a pattern's text means that pattern.
    pub exact: Map<Node>,
    pub patterns: Patterns,
    /// The key alone, any value.
    pub any: Option<Node>,
}

pub type Level = Map<Values>;

/// How a node was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Exact,
    Pattern,
    Any,
}

/// What a node is called and where it is written: for people, so kept apart from the nodes.
#[derive(Clone, Debug)]
pub struct Label {
    /// The path down to the node, in the form of a rule id.
    pub path: Arc<str>,
    pub at: Place,
}

#[derive(Debug, Default)]
pub struct Tree {
    /// By node.
    pub labels: Vec<Label>,
    pub levels: Vec<Level>,
    pub rules: Vec<Rule>,
    /// Keys whose values are shown to nobody, wherever they stand: a request may bring them in a place that no rule
    /// foresees.
    pub sensitive_keys: HashSet<Box<str>>,
}

impl Tree {
    /// The level of the first entry, which is always there.
    pub const ROOT: u32 = 0;

    /// The child of a level that an entry leads to.
    pub fn step(&self, level: u32, entry: &Entry<'_>) -> Option<(Node, Via)> {
        let values = self.levels[level as usize].get(entry.key)?;
        if let Some(&node) = values.exact.get(entry.value) {
            return Some((node, Via::Exact));
        }
        match values.patterns.find(entry.value) {
            Some(node) => Some((node, Via::Pattern)),
            None => Some((values.any?, Via::Any)),
        }
    }

    /// The rule that the entries lead to. The identifier is complete only if there is one.
    pub fn find(&self, entries: &[Entry<'_>], identifier: &mut impl Identifier) -> Option<&Rule> {
        let (last, path) = entries.split_last()?;
        let mut level = Tree::ROOT;
        for entry in path {
            let (node, via) = self.step(level, entry)?;
            if node.leaves_open(via) {
                identifier.push(entry.value);
            }
            level = node.level?;
        }
        let (node, via) = self.step(level, last)?;
        if node.leaves_open(via) {
            identifier.push(last.value);
        }
        node.rule.map(|rule| &self.rules[rule as usize])
    }
}

impl Node {
    /// Whether each value that leads here has a count of its own.
    pub fn leaves_open(&self, via: Via) -> bool {
        match via {
            Via::Exact => self.is_pattern && !self.is_shared,
            Via::Pattern => !self.is_shared,
            Via::Any => true,
        }
    }
}
