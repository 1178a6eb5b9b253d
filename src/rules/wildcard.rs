//! The wildcard values of one key at one level: which is the first declared that matches a value?
//!
//! `*` stands for any number of characters, anywhere and as often as you like. A few patterns are tried in turn. If
//! there are many, each is filed under a literal that few of them share, and only patterns whose literal occurs are
//! tried. Literals at an end of the value are found by one descent of a tree. Literals in between are found by one
//! descent from each place where they may begin, or in one pass of an automaton.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind, PatternID, dfa::DFA};
use smallvec::SmallVec;

use crate::rules::affix_trie::{End, Ends};
use crate::rules::tree::TreeNode;

/// Up to this many patterns, trying each is faster than looking for literals.
const TRY_EACH_MAX: usize = 8;

/// An end that no more patterns than this share is preferred to a literal between two stars: finding that takes the
/// whole value, which costs more than trying a few patterns.
const SHARED_END_MAX: usize = 4;

/// In values up to this length, literals between two stars are sought from each place where one may begin. That is
/// twice as fast as the automaton, but its time may grow with the product of both lengths; the automaton's never grows
/// with more than the value's.
const SEEK_BYTES_MAX: usize = 64;

/// If all literals together are no longer than this, they are compiled into the fastest automaton, which takes some
/// hundred bytes for each byte of them.
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

    /// The prefix and the suffix are anchored. Literals between two stars are sought from left to right, each at its
    /// first place, which leaves the most for the rest.
    pub fn matches(&self, value: &str) -> bool {
        let Some(rest) = value.strip_prefix(self.prefix()) else { return false };
        let Some(mut rest) = rest.strip_suffix(self.suffix()) else { return false };
        if self.first_star == self.last_star {
            return true;
        }
        for middle in self.between().split('*') {
            match rest.find(middle) {
                Some(at) => rest = &rest[at + middle.len()..],
                None => return false,
            }
        }
        true
    }

    /// For a pattern with one literal between two stars, which stands at `at`: do the prefix and the suffix match
    /// around it?
    fn matches_around(&self, value: &str, at: &Range<usize>) -> bool {
        let (prefix, suffix) = (self.prefix(), self.suffix());
        let has_room = prefix.len() <= at.start && at.end + suffix.len() <= value.len();
        has_room && value.starts_with(prefix) && value.ends_with(suffix)
    }

    fn prefix(&self) -> &str {
        &self.text[..self.first_star]
    }

    fn suffix(&self) -> &str {
        &self.text[self.last_star + 1..]
    }

    /// What stands between the first and the last star.
    fn between(&self) -> &str {
        self.text.get(self.first_star + 1..self.last_star).unwrap_or_default()
    }

    fn literals(&self) -> impl Iterator<Item = &str> {
        self.text.split('*').filter(|literal| !literal.is_empty())
    }
}

/// Patterns in the order of their declaration, each with what it leads to.
#[derive(Debug, Default)]
pub struct Patterns {
    patterns: Vec<(Pattern, TreeNode)>,
    /// `None` if the patterns are tried in turn.
    finder: Option<Finder>,
}

/// Each pattern is filed once: under its prefix, its suffix, or a literal in between.
#[derive(Debug)]
struct Finder {
    prefixes: Ends<PatternEntry>,
    suffixes: Ends<PatternEntry>,
    middles: Option<Middles>,
    /// The first pattern without any literal: it matches everything.
    catch_all: Option<u32>,
}

/// The patterns under one literal, in the order of their declaration.
type PatternEntry = SmallVec<[Candidate; 2]>;

/// A pattern filed under a literal, and what is left to check when that literal occurs.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    pattern: u32,
    rest: Rest,
}

/// What has to match besides the literal.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    /// The literal stands between two stars; the prefix and the suffix are still to be checked.
    Ends,
    /// Something else: the whole pattern is tried.
    Everything,
}

/// Patterns by a literal somewhere inside the value.
#[derive(Debug)]
struct Middles {
    /// Whether a literal begins with this byte.
    first_bytes: Box<[bool; 256]>,
    /// Every literal has at least this many bytes before it in a value that its pattern matches.
    before_bytes_min: usize,
    /// From the first byte of a literal to the end of such a value there are at least this many bytes.
    from_bytes_min: usize,
    /// Leads to the literals that begin at a place: each by its index in `filed`.
    begun: Ends<usize>,
    /// The literals, for longer values.
    literals: Literals,
    /// The patterns under each literal, by its index.
    filed: Vec<PatternEntry>,
    /// Some patterns are tried as a whole (`Rest::Everything`).
    has_everything: bool,
}

/// Literals that have been met in a value, one bit each.
type LiteralSet = SmallVec<[u64; 16]>;

/// How those literals are found in longer values.
#[derive(Debug)]
enum Literals {
    /// One step for each byte.
    Few(DFA),
    /// Several steps for each byte, in less memory.
    Many(NFA),
}

impl Patterns {
    pub fn new(patterns: Vec<(Pattern, TreeNode)>) -> Patterns {
        let finder = if patterns.len() > TRY_EACH_MAX { Finder::new(&patterns) } else { None };
        Patterns { patterns, finder }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, TreeNode)> {
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
    pub fn find(&self, value: &str) -> Option<TreeNode> {
        self.position(value).map(|position| self.patterns[position].1)
    }
}

/// Gathers patterns under the literals that they are filed under, in the order of declaration.
#[derive(Default)]
struct PatternIndex<'p> {
    prefixes: BTreeMap<&'p str, PatternEntry>,
    suffixes: BTreeMap<&'p str, PatternEntry>,
    middles: BTreeMap<&'p str, PatternEntry>,
    catch_all: Option<u32>,
}

impl<'p> PatternIndex<'p> {
    fn file(&mut self, pattern: &'p Pattern, number: u32, uses: &HashMap<&str, usize>) {
        let Some(choice) = choose(pattern, uses) else {
            self.catch_all = self.catch_all.or(Some(number));
            return;
        };
        let (file, literal) = match choice {
            FiledUnder::Prefix => (&mut self.prefixes, pattern.prefix()),
            FiledUnder::Suffix => (&mut self.suffixes, pattern.suffix()),
            FiledUnder::Middle(literal) => (&mut self.middles, literal),
        };
        let rest = match choice {
            _ if pattern.literals().count() == 1 => Rest::Nothing,
            FiledUnder::Middle(literal) if pattern.between() == literal => Rest::Ends,
            _ => Rest::Everything,
        };
        file.entry(literal).or_default().push(Candidate { pattern: number, rest });
    }
}

/// The literal that a pattern is filed under.
#[derive(Clone, Copy)]
enum FiledUnder<'p> {
    Prefix,
    Suffix,
    Middle(&'p str),
}

/// An end that few patterns share, otherwise the literal that fewest share. `None` if there is no literal.
fn choose<'p>(pattern: &'p Pattern, uses: &HashMap<&str, usize>) -> Option<FiledUnder<'p>> {
    let uses = |literal: &str| uses.get(literal).copied().unwrap_or_default();
    // Of two that are as rare, the longer tells more values apart.
    let rarity = |literal: &str| (uses(literal), usize::MAX - literal.len());
    let rarest = pattern.literals().min_by_key(|literal| rarity(literal))?;
    let ends = [(pattern.prefix(), FiledUnder::Prefix), (pattern.suffix(), FiledUnder::Suffix)];
    let end = ends.into_iter().filter(|(end, _)| !end.is_empty()).min_by_key(|(end, _)| rarity(end));
    match end.filter(|(end, _)| uses(end) <= SHARED_END_MAX.max(uses(rarest))) {
        Some((_, choice)) => Some(choice),
        None => Some(FiledUnder::Middle(rarest)),
    }
}

impl Finder {
    /// `None` if the automaton can't be built (it would be too large); then each pattern is tried.
    fn new(patterns: &[(Pattern, TreeNode)]) -> Option<Finder> {
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for (pattern, _) in patterns {
            pattern.literals().for_each(|literal| *uses.entry(literal).or_default() += 1);
        }
        let mut files = PatternIndex::default();
        for (index, (pattern, _)) in patterns.iter().enumerate() {
            files.file(pattern, u32::try_from(index).ok()?, &uses);
        }
        let PatternIndex { prefixes, suffixes, middles, catch_all } = files;
        Some(Finder {
            prefixes: Ends::new(End::Front, prefixes),
            suffixes: Ends::new(End::Back, suffixes),
            middles: if middles.is_empty() { None } else { Some(Middles::new(middles, patterns)?) },
            catch_all,
        })
    }

    fn position(&self, patterns: &[(Pattern, TreeNode)], value: &str) -> Option<usize> {
        let mut best = self.catch_all;
        // `at` is where the literal stands, if it is not at an end. A pattern that is tried as a whole is tried only
        // where its literal stands first.
        let mut try_each = |filed: &PatternEntry, at: Range<usize>, is_first: bool| {
            let before = |candidate: &&Candidate| best.is_none_or(|best| candidate.pattern < best);
            let matches = |candidate: &&Candidate| match (candidate.rest, &patterns[candidate.pattern as usize].0) {
                (Rest::Nothing, _) => true,
                (Rest::Ends, pattern) => pattern.matches_around(value, &at),
                (Rest::Everything, pattern) => is_first && pattern.matches(value),
            };
            best = filed.iter().take_while(before).find(matches).map(|it| it.pattern).or(best);
        };
        self.prefixes.find(value.as_bytes()).for_each(|(filed, _)| try_each(filed, 0..0, true));
        self.suffixes.find(value.as_bytes()).for_each(|(filed, _)| try_each(filed, 0..0, true));
        if let Some(middles) = &self.middles {
            middles.find(value, try_each);
        }
        best.map(|position| position as usize)
    }
}

impl Middles {
    /// `None` if the automaton would be too large.
    fn new(filed: BTreeMap<&str, PatternEntry>, patterns: &[(Pattern, TreeNode)]) -> Option<Middles> {
        let pattern = |candidate: &Candidate| &patterns[candidate.pattern as usize].0;
        let before = |filed: &PatternEntry| filed.iter().map(|it| pattern(it).prefix().len()).min().unwrap_or_default();
        let behind = |filed: &PatternEntry| filed.iter().map(|it| pattern(it).suffix().len()).min().unwrap_or_default();
        let before_bytes_min = filed.values().map(before).min().unwrap_or_default();
        let from_bytes_min = filed.iter().map(|(it, filed)| it.len() + behind(filed)).min().unwrap_or_default();
        let (literals, filed): (Vec<&str>, Vec<PatternEntry>) = filed.into_iter().unzip();
        let mut first_bytes = Box::new([false; 256]);
        literals.iter().filter_map(|literal| literal.bytes().next()).for_each(|it| first_bytes[usize::from(it)] = true);
        let begun = Ends::new(End::Front, literals.iter().copied().zip(0..));
        let is_small = literals.iter().map(|literal| literal.len()).sum::<usize>() <= DFA_BYTES_MAX;
        // Values are short: looking ahead for where a literal may begin costs more than it saves.
        let literals = if is_small {
            Literals::Few(DFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(&literals).ok()?)
        } else {
            Literals::Many(NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(&literals).ok()?)
        };
        let has_everything = filed.iter().flatten().any(|candidate| matches!(candidate.rest, Rest::Everything));
        Some(Middles { first_bytes, before_bytes_min, from_bytes_min, begun, literals, filed, has_everything })
    }

    fn find(&self, value: &str, mut try_each: impl FnMut(&PatternEntry, Range<usize>, bool)) {
        // Trying a whole pattern wherever its literal stands would take the square of the value's length.
        let mut met = LiteralSet::new();
        if self.has_everything {
            met.resize(self.filed.len().div_ceil(64), 0);
        }
        let mut is_first = |literal: usize| match met.get_mut(literal / 64) {
            Some(bits) => {
                let bit = 1 << (literal % 64);
                let is_first = *bits & bit == 0;
                *bits |= bit;
                is_first
            }
            None => true,
        };
        let mut found = |literal: usize, at: Range<usize>| {
            if let Some(filed) = self.filed.get(literal) {
                try_each(filed, at, is_first(literal));
            }
        };
        match &self.literals {
            _ if value.len() <= SEEK_BYTES_MAX => self.seek(value.as_bytes(), found),
            Literals::Few(automaton) => scan(automaton, value, |literal, at| found(literal.as_usize(), at)),
            Literals::Many(automaton) => scan(automaton, value, |literal, at| found(literal.as_usize(), at)),
        }
    }

    /// Finds every literal from each place where one may begin, except where no pattern leaves it room.
    fn seek(&self, value: &[u8], mut found: impl FnMut(usize, Range<usize>)) {
        let starts = (value.len() + 1).saturating_sub(self.from_bytes_min);
        for (start, byte) in value.iter().enumerate().take(starts).skip(self.before_bytes_min) {
            if self.first_bytes[usize::from(*byte)] {
                let begun = self.begun.find(&value[start..]);
                begun.for_each(|(literal, length)| found(*literal, start..start + length));
            }
        }
    }
}

/// Finds every literal wherever it occurs, in one pass.
fn scan(automaton: &impl Automaton, value: &str, mut found: impl FnMut(PatternID, Range<usize>)) {
    let Ok(mut state) = automaton.start_state(Anchored::No) else { return };
    for (end, byte) in (1..).zip(value.bytes()) {
        state = automaton.next_state(Anchored::No, state, byte);
        if automaton.is_special(state) && automaton.is_match(state) {
            for at in 0..automaton.match_len(state) {
                let literal = automaton.match_pattern(state, at);
                found(literal, end - automaton.pattern_len(literal)..end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(number: usize) -> TreeNode {
        TreeNode { number: number as u32, rule: None, level: None, is_pattern: true, is_shared: false }
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

    /// Found by a review: a pattern was tried anew wherever its literal stood, which took a third of a second here.
    #[test]
    fn a_literal_that_stands_everywhere_is_tried_once() {
        let mut texts: Vec<String> = (0..8).map(|n| format!("/v{n}/*")).collect();
        texts.push("*a*b*".into());
        let patterns = texts.iter().enumerate().map(|(n, text)| (Pattern::new(text).unwrap(), node(n))).collect();
        let patterns = Patterns::new(patterns);
        let Some(middles) = patterns.finder.as_ref().and_then(|finder| finder.middles.as_ref()) else {
            panic!("it is filed under a literal in between")
        };
        for length in [50, 16_000] {
            let value = "a".repeat(length);
            let (mut times, mut first_times) = (0, 0);
            middles.find(&value, |_, _, is_first| {
                times += 1;
                first_times += usize::from(is_first);
            });
            assert_eq!((times, first_times), (length, 1));
            assert_eq!(patterns.position(&value), None);
            assert_eq!(patterns.position(&format!("{value}b")), Some(8));
        }
    }

    /// The slow way, straight from the definition: which beginnings of the value does the pattern so far match?
    fn naive(pattern: &[u8], value: &[u8]) -> bool {
        let mut matched = vec![true];
        matched.resize(value.len() + 1, false);
        for &expected in pattern {
            let before = matched.clone();
            for at in 0..=value.len() {
                matched[at] = match expected {
                    b'*' => before[..=at].contains(&true),
                    _ => at > 0 && before[at - 1] && value[at - 1] == expected,
                };
            }
        }
        matched[value.len()]
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_definition(
            texts in prop::collection::vec("[ab]{0,3}\\*[ab*]{0,5}", 1..40),
            value in "[ab]{0,8}",
            // Longer values are searched by other means.
            repeated in prop_oneof![Just(1), Just(10)],
        ) {
            let value = value.repeat(repeated);
            let patterns: Vec<_> =
                texts.iter().enumerate().map(|(n, text)| (Pattern::new(text).unwrap(), node(n))).collect();
            let expected = texts.iter().position(|text| naive(text.as_bytes(), value.as_bytes()));
            prop_assert_eq!(Patterns::new(patterns).position(&value), expected);
        }
    }
}
