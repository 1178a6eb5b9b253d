//! The wildcard values of one key at one level: which of them, the first declared, matches a value?
//!
//! `*` stands for any number of characters, anywhere and as often as you like. A few patterns are tried in turn. Of many,
//! each is filed under the literal that sets it apart best, so that only patterns whose literal occurs are tried at all:
//! literals at an end of the value are looked up by their length, those in between found in one pass of an automaton.

use std::collections::{HashMap, HashSet};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::rules::tree::{Map, Node};

/// Up to here, trying each pattern beats the automaton.
const TRY_EACH_MAX: usize = 8;

/// Literals up to this length together are compiled into the fastest automaton.
const DFA_BYTES_MAX: usize = 64 * 1024;

/// A value with at least one `*`.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    first_star: usize,
    last_star: usize,
}

impl Pattern {
    /// `None` if there is no `*` in the text.
    pub fn new(text: &str) -> Option<Pattern> {
        Some(Pattern { text: text.into(), first_star: text.find('*')?, last_star: text.rfind('*')? })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The prefix and the suffix are anchored; what stands between two stars is found from left to right, each time at
    /// the first place, which leaves the most for the rest.
    pub fn matches(&self, value: &str) -> bool {
        let Some(rest) = value.strip_prefix(self.prefix()) else { return false };
        let Some(mut rest) = rest.strip_suffix(self.suffix()) else { return false };
        if self.first_star == self.last_star {
            return true;
        }
        for middle in self.text[self.first_star + 1..self.last_star].split('*') {
            match rest.find(middle) {
                Some(at) => rest = &rest[at + middle.len()..],
                None => return false,
            }
        }
        true
    }

    fn prefix(&self) -> &str {
        &self.text[..self.first_star]
    }

    fn suffix(&self) -> &str {
        &self.text[self.last_star + 1..]
    }

    fn literals(&self) -> impl Iterator<Item = &str> {
        self.text.split('*').filter(|literal| !literal.is_empty())
    }
}

/// Patterns in the order of their declaration, each with what it leads to.
#[derive(Debug, Default)]
pub struct Patterns {
    patterns: Vec<(Pattern, Node)>,
    finder: Option<Finder>,
}

/// Each pattern is filed once: under its prefix, its suffix, or a literal in between.
#[derive(Debug)]
struct Finder {
    prefixes: Anchored,
    suffixes: Anchored,
    middles: Option<Middles>,
    /// The first pattern without any literal: it matches everything.
    catch_all: Option<u32>,
}

/// Patterns by a literal at one end of the value. Few lengths, so few lookups.
#[derive(Debug, Default)]
struct Anchored {
    lengths: Vec<usize>,
    filed: Map<Vec<u32>>,
}

/// Patterns by a literal somewhere inside the value, found in one pass of an automaton.
#[derive(Debug)]
struct Middles {
    literals: AhoCorasick,
    /// By literal: the patterns filed under it, in order.
    filed: Vec<Vec<u32>>,
}

impl Patterns {
    pub fn new(patterns: Vec<(Pattern, Node)>) -> Patterns {
        let finder = if patterns.len() > TRY_EACH_MAX { Finder::new(&patterns) } else { None };
        Patterns { patterns, finder }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, Node)> {
        self.patterns.iter().map(|(pattern, target)| (pattern, *target))
    }

    /// The position of the first declared pattern that matches.
    pub fn position(&self, value: &str) -> Option<usize> {
        match &self.finder {
            Some(finder) => finder.position(&self.patterns, value),
            None => self.patterns.iter().position(|(pattern, _)| pattern.matches(value)),
        }
    }

    /// What the first declared pattern that matches leads to.
    pub fn find(&self, value: &str) -> Option<Node> {
        if self.patterns.is_empty() {
            return None;
        }
        self.position(value).map(|position| self.patterns[position].1)
    }
}

impl Anchored {
    /// More lengths than this cost more than the automaton.
    const LENGTHS_MAX: usize = 8;

    fn file(&mut self, literal: &str, pattern: u32) {
        if !self.lengths.contains(&literal.len()) {
            self.lengths.push(literal.len());
        }
        self.filed.entry(literal.into()).or_default().push(pattern);
    }

    fn find<'v>(&self, cut: impl Fn(usize) -> Option<&'v str>, mut try_each: impl FnMut(&[u32])) {
        for literal in self.lengths.iter().filter_map(|length| cut(*length)) {
            if let Some(filed) = self.filed.get(literal) {
                try_each(filed);
            }
        }
    }
}

impl Finder {
    /// `None` if the automaton can't be built (it would be too large); then each pattern is tried.
    fn new(patterns: &[(Pattern, Node)]) -> Option<Finder> {
        let mut uses: HashMap<&str, usize> = HashMap::new();
        let mut ends: [HashSet<usize>; 2] = Default::default();
        for (pattern, _) in patterns {
            pattern.literals().for_each(|literal| *uses.entry(literal).or_default() += 1);
            ends[0].insert(pattern.prefix().len());
            ends[1].insert(pattern.suffix().len());
        }
        let is_filed_by_end = ends.map(|lengths| lengths.len() <= Anchored::LENGTHS_MAX);
        let mut finder =
            Finder { prefixes: Anchored::default(), suffixes: Anchored::default(), middles: None, catch_all: None };
        let mut ids: HashMap<&str, usize> = HashMap::new();
        let mut literals: Vec<&str> = Vec::new();
        let mut filed: Vec<Vec<u32>> = Vec::new();
        for (index, (pattern, _)) in patterns.iter().enumerate() {
            let index = u32::try_from(index).ok()?;
            // The literal that fewest patterns share, then the longest.
            let literal = pattern.literals().min_by_key(|literal| (uses[literal], usize::MAX - literal.len()));
            let Some(literal) = literal else {
                finder.catch_all = finder.catch_all.or(Some(index));
                continue;
            };
            if is_filed_by_end[0] && uses.get(pattern.prefix()) == Some(&uses[literal]) {
                finder.prefixes.file(pattern.prefix(), index);
            } else if is_filed_by_end[1] && uses.get(pattern.suffix()) == Some(&uses[literal]) {
                finder.suffixes.file(pattern.suffix(), index);
            } else {
                let id = *ids.entry(literal).or_insert_with(|| {
                    literals.push(literal);
                    filed.push(Vec::new());
                    literals.len() - 1
                });
                filed[id].push(index);
            }
        }
        if !literals.is_empty() {
            // A DFA takes one step a byte, but some hundred bytes for each byte of the literals.
            let is_small = literals.iter().map(|literal| literal.len()).sum::<usize>() <= DFA_BYTES_MAX;
            let kind = is_small.then_some(AhoCorasickKind::DFA);
            let literals = AhoCorasick::builder().match_kind(MatchKind::Standard).kind(kind).build(&literals).ok()?;
            finder.middles = Some(Middles { literals, filed });
        }
        Some(finder)
    }

    fn position(&self, patterns: &[(Pattern, Node)], value: &str) -> Option<usize> {
        let mut best = self.catch_all;
        let mut try_each = |filed: &[u32]| {
            for &candidate in filed {
                if best.is_some_and(|best| candidate >= best) {
                    break;
                }
                if patterns[candidate as usize].0.matches(value) {
                    best = Some(candidate);
                    break;
                }
            }
        };
        self.prefixes.find(|length| value.get(..length), &mut try_each);
        self.suffixes.find(|length| value.get(value.len().checked_sub(length)?..), &mut try_each);
        if let Some(middles) = &self.middles {
            for found in middles.literals.find_overlapping_iter(value) {
                try_each(&middles.filed[found.pattern().as_usize()]);
            }
        }
        best.map(|position| position as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(number: usize) -> Node {
        Node { number: number as u32, rule: None, level: None, is_pattern: true, is_shared: false }
    }

    fn matches(pattern: &str, value: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(value)
    }

    #[test]
    fn stars_match_any_number_of_characters() {
        assert!(matches("*", ""));
        assert!(matches("foo*", "foo"));
        assert!(matches("foo*bar", "foobar"));
        assert!(!matches("foo*bar", "fobar"));
        assert!(!matches("aba*aba", "aba"), "prefix and suffix do not overlap");
        assert!(matches("/api/*/users/*", "/api/v1/users/7"));
        assert!(matches("*a*b*", "xxaxxbxx"));
        assert!(!matches("*a*b*", "xxbxxaxx"));
        assert!(matches("a**b", "ab"));
    }

    #[test]
    fn the_first_declared_of_many_wins() {
        let mut texts: Vec<String> = (0..100).map(|n| format!("tenant-{n}-*")).collect();
        texts.insert(50, "*".into());
        let patterns: Vec<_> =
            texts.iter().enumerate().map(|(n, text)| (Pattern::new(text).unwrap(), node(n))).collect();
        let patterns = Patterns::new(patterns);
        assert_eq!(patterns.position("tenant-7-x"), Some(7));
        assert_eq!(patterns.find("tenant-70-x").map(|node| node.number), Some(50), "the catch-all was declared before");
        assert_eq!(patterns.position("other"), Some(50));
    }

    /// The slow way, straight from the definition.
    fn naive(pattern: &[u8], value: &[u8]) -> bool {
        match (pattern, value) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => naive(rest, value) || (!value.is_empty() && naive(pattern, &value[1..])),
            ([p, rest @ ..], [v, others @ ..]) if p == v => naive(rest, others),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_definition(
            texts in prop::collection::vec("[ab]{0,3}\\*[ab*]{0,5}", 1..40),
            value in "[ab]{0,8}",
        ) {
            let patterns: Vec<_> =
                texts.iter().enumerate().map(|(n, text)| (Pattern::new(text).unwrap(), node(n))).collect();
            let expected = texts.iter().position(|text| naive(text.as_bytes(), value.as_bytes()));
            prop_assert_eq!(Patterns::new(patterns).position(&value), expected);
        }
    }
}
