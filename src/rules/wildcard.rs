//! The wildcard values of one key at one level: which of them, the first declared, matches a value?
//!
//! `*` stands for any number of characters, anywhere and as often as you like. A few patterns are tried in turn. Many
//! are found through one pass of an automaton over the value: each pattern is filed under the literal that sets it apart
//! best, so that only patterns whose literal occurs are tried at all.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};

/// Up to here, trying each pattern beats the automaton.
const TRY_EACH_MAX: usize = 8;

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
        let (prefix, suffix) = (&self.text[..self.first_star], &self.text[self.last_star + 1..]);
        let Some(rest) = value.strip_prefix(prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(suffix) else { return false };
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

    fn literals(&self) -> impl Iterator<Item = &str> {
        self.text.split('*').filter(|literal| !literal.is_empty())
    }
}

/// Patterns in the order of their declaration, each with what it leads to.
#[derive(Debug, Default)]
pub struct Patterns {
    patterns: Vec<(Pattern, u32)>,
    finder: Option<Finder>,
}

#[derive(Debug)]
struct Finder {
    literals: AhoCorasick,
    /// By literal: the patterns filed under it, in order.
    filed: Vec<Vec<u32>>,
    /// The first pattern without any literal: it matches everything.
    catch_all: Option<u32>,
}

impl Patterns {
    pub fn new(patterns: Vec<(Pattern, u32)>) -> Patterns {
        let finder = if patterns.len() > TRY_EACH_MAX { Finder::new(&patterns) } else { None };
        Patterns { patterns, finder }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, u32)> {
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
    pub fn find(&self, value: &str) -> Option<u32> {
        if self.patterns.is_empty() {
            return None;
        }
        self.position(value).map(|position| self.patterns[position].1)
    }
}

impl Finder {
    /// `None` if the automaton can't be built (it would be too large); then each pattern is tried.
    fn new(patterns: &[(Pattern, u32)]) -> Option<Finder> {
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for (pattern, _) in patterns {
            for literal in pattern.literals() {
                *uses.entry(literal).or_default() += 1;
            }
        }
        let mut ids: HashMap<&str, usize> = HashMap::new();
        let mut literals: Vec<&str> = Vec::new();
        let mut filed: Vec<Vec<u32>> = Vec::new();
        let mut catch_all = None;
        for (index, (pattern, _)) in patterns.iter().enumerate() {
            let index = u32::try_from(index).ok()?;
            // The literal that fewest patterns share, then the longest.
            let literal = pattern.literals().min_by_key(|literal| (uses[literal], usize::MAX - literal.len()));
            let Some(literal) = literal else {
                catch_all = catch_all.or(Some(index));
                continue;
            };
            let id = *ids.entry(literal).or_insert_with(|| {
                literals.push(literal);
                filed.push(Vec::new());
                literals.len() - 1
            });
            filed[id].push(index);
        }
        let literals = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&literals).ok()?;
        Some(Finder { literals, filed, catch_all })
    }

    fn position(&self, patterns: &[(Pattern, u32)], value: &str) -> Option<usize> {
        let mut best = self.catch_all;
        for found in self.literals.find_overlapping_iter(value) {
            for &candidate in &self.filed[found.pattern().as_usize()] {
                if best.is_some_and(|best| candidate >= best) {
                    break;
                }
                if patterns[candidate as usize].0.matches(value) {
                    best = Some(candidate);
                    break;
                }
            }
        }
        best.map(|position| position as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            texts.iter().enumerate().map(|(n, text)| (Pattern::new(text).unwrap(), n as u32)).collect();
        let patterns = Patterns::new(patterns);
        assert_eq!(patterns.find("tenant-7-x"), Some(7));
        assert_eq!(patterns.find("tenant-70-x"), Some(50), "the catch-all was declared before");
        assert_eq!(patterns.find("other"), Some(50));
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
                texts.iter().enumerate().map(|(n, text)| (Pattern::new(text).unwrap(), n as u32)).collect();
            let expected = texts.iter().position(|text| naive(text.as_bytes(), value.as_bytes()));
            prop_assert_eq!(Patterns::new(patterns).position(&value), expected);
        }
    }
}
