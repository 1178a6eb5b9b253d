//! The matching tree of one domain: which rule does a descriptor's list of entries lead to?
//!
//! One level per entry. At each level an exact value beats wildcards, the first declared wildcard beats the key alone,
//! and there is no way back: a choice stands, even if it has no rule below. Only the last entry's limit counts. On the
//! way, the values that the rules leave open are collected: they make up the identifier.
//!
//! The levels are for people. Requests find their way by two tables over all levels, one of keys and one of values, so
//! that a step costs the same in a small and in a large tree.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::request::DescriptorEntry;
use crate::rules::limit::Rule;
use crate::rules::lookup::{Lookup, LookupEntry};
use crate::rules::problem::FilePosition;
use crate::rules::wildcard::Patterns;

pub(crate) type Map<V> = HashMap<Box<str>, V, ahash::RandomState>;

/// Collects the values that a rule leaves open. The one that makes keys prefixes each with its length, so that no two
/// lists of values look alike.
pub trait Identifier {
    fn push(&mut self, value: &str);
}

/// An index into a list. An optional one takes no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(NonZeroU32);

impl Number {
    pub fn new(place: usize) -> Number {
        Number(NonZeroU32::MIN.saturating_add(u32::try_from(place).unwrap_or(u32::MAX)))
    }

    pub fn get(self) -> u32 {
        self.0.get() - 1
    }

    pub fn index(self) -> usize {
        self.get() as usize
    }
}

/// A descriptor's place in the tree. Small, and stored in the tables that lead to it.
#[derive(Clone, Copy, Debug)]
pub struct TreeNode {
    /// Its index in `Tree::labels`.
    pub number: u32,
    /// Its rule's index in `Tree::rules`; `None` if it limits nothing itself.
    pub rule: Option<Number>,
    /// The index in `Tree::levels` of the level below it, if there is one.
    pub level: Option<Number>,
    /// Its value has a `*`.
    pub is_pattern: bool,
    /// All values that the pattern matches share one count.
    pub is_shared: bool,
}

/// The children below one key.
#[derive(Debug, Default)]
pub struct Values {
    /// By value, the texts of patterns included: a value that literally is a pattern's text means that pattern.
    pub exact: BTreeMap<Box<str>, TreeNode>,
    /// The index in `Tree::patterns` of its wildcards, if it has any.
    pub patterns: Option<Number>,
    /// The key alone, which any value matches.
    pub any: Option<TreeNode>,
}

/// One level: its keys, and the children below each.
pub type KeysByName = BTreeMap<Box<str>, Values>;

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
    /// Where its descriptor starts in the rule file.
    pub at: FilePosition,
}

#[derive(Debug, Default)]
pub struct Tree {
    /// By node.
    pub labels: Vec<Label>,
    /// The first is [`Tree::ROOT`].
    pub levels: Vec<KeysByName>,
    /// The wildcards of one key at one level each.
    pub patterns: Vec<Patterns>,
    /// In the order of declaration.
    pub rules: Vec<Rule>,
    /// Keys whose values are shown to nobody, wherever they stand: a request may bring them in a place that no rule
    /// foresees. Each with the place of the first descriptor that says so.
    pub sensitive_keys: HashMap<Box<str>, FilePosition>,
    ways: Ways,
}

/// How requests find their way through the levels.
#[derive(Debug, Default)]
struct Ways {
    hashing: ahash::RandomState,
    /// By level and key.
    keys: Lookup<LevelKey, 30>,
    /// By key and value.
    values: Lookup<TreeNode, 38>,
}

/// A key of a level.
#[derive(Clone, Copy, Debug)]
struct LevelKey {
    /// The scope that its values have in `Ways::values`; `None` if it has no values.
    values: Option<Number>,
    patterns: Option<Number>,
    any: Option<TreeNode>,
}

impl Tree {
    /// The level of the first entry, which is always there.
    pub const ROOT: u32 = 0;

    /// Builds the tables that requests are looked up in. To be called once, when all levels are there.
    pub fn open(&mut self) {
        self.ways = Ways::new(&self.levels);
    }

    /// The wildcards below a key, in the order of declaration.
    pub fn patterns(&self, values: &Values) -> Option<&Patterns> {
        values.patterns.map(|patterns| &self.patterns[patterns.index()])
    }

    /// The child of a level that an entry leads to.
    #[inline]
    pub fn step(&self, level: u32, entry: &DescriptorEntry<'_>) -> Option<(TreeNode, Via)> {
        let ways = &self.ways;
        let hash = ways.hash_key(level, entry.key);
        let key = ways.keys.find(level, entry.key, hash)?;
        if let Some(values) = key.values
            && let Some(&node) = ways.values.find(values.get(), entry.value, ways.hash_value(hash, entry.value))
        {
            return Some((node, Via::Exact));
        }
        if let Some(patterns) = key.patterns
            && let Some(node) = self.patterns[patterns.index()].find(entry.value)
        {
            return Some((node, Via::Pattern));
        }
        Some((key.any?, Via::Any))
    }

    /// The rule that the entries lead to. The identifier is complete only if there is one.
    pub fn find(&self, entries: &[DescriptorEntry<'_>], identifier: &mut impl Identifier) -> Option<&Rule> {
        let (last, path) = entries.split_last()?;
        let mut level = Tree::ROOT;
        for entry in path {
            let (node, via) = self.step(level, entry)?;
            if node.leaves_open(via) {
                identifier.push(entry.value);
            }
            level = node.level?.get();
        }
        let (node, via) = self.step(level, last)?;
        if node.leaves_open(via) {
            identifier.push(last.value);
        }
        node.rule.map(|rule| &self.rules[rule.index()])
    }
}

impl Ways {
    fn new(levels: &[KeysByName]) -> Ways {
        loop {
            // Only two equal hashes of 64 bits need another try.
            if let Some(ways) = Ways::hashed(levels, ahash::RandomState::new()) {
                return ways;
            }
        }
    }

    fn hashed(levels: &[KeysByName], hashing: ahash::RandomState) -> Option<Ways> {
        let mut ways = Ways { hashing, ..Ways::default() };
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for (number, level) in (0..).zip(levels) {
            for (text, below) in level {
                let hash = ways.hash_key(number, text);
                let scope = Number::new(keys.len());
                for (value, &node) in &below.exact {
                    let hash = ways.hash_value(hash, value);
                    values.push(LookupEntry { scope: scope.get(), text: value, hash, target: node });
                }
                let target = LevelKey {
                    values: (!below.exact.is_empty()).then_some(scope),
                    patterns: below.patterns,
                    any: below.any,
                };
                keys.push(LookupEntry { scope: number, text, hash, target });
            }
        }
        ways.keys = Lookup::new(&keys)?;
        ways.values = Lookup::new(&values)?;
        Some(ways)
    }

    #[inline]
    fn hash_key(&self, level: u32, key: &str) -> u64 {
        let mut hasher = self.hashing.build_hasher();
        hasher.write_u32(level);
        hasher.write(key.as_bytes());
        hasher.finish()
    }

    /// Uses the key's hash, not its number, so that neither hash has to wait for a lookup.
    #[inline]
    fn hash_value(&self, key_hash: u64, value: &str) -> u64 {
        let mut hasher = self.hashing.build_hasher();
        hasher.write(value.as_bytes());
        hasher.finish() ^ key_hash.rotate_left(32)
    }
}

impl TreeNode {
    /// Whether each value that leads here has a count of its own.
    pub fn leaves_open(&self, via: Via) -> bool {
        match via {
            Via::Exact => self.is_pattern && !self.is_shared,
            Via::Pattern => !self.is_shared,
            Via::Any => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step reads one cache line of a table.
    #[test]
    fn a_node_is_small() {
        assert_eq!(size_of::<Option<TreeNode>>(), 16);
        assert_eq!(size_of::<LevelKey>(), 24);
    }
}
