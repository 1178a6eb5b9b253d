//! Which descriptors do the rules of a domain wait for? Whoever configures Envoy needs to know.

use crate::rules::Domain;
use crate::rules::limit::Rule;
use crate::rules::tree::Tree;

/// What an entry has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expect<'a> {
    Value(&'a str),
    Pattern(&'a str),
    Any,
}

/// The entries that lead to a rule, in their order.
#[derive(Clone, Debug)]
pub struct ReachingEntries<'a> {
    /// Each entry's key, and what its value has to be.
    pub entries: Vec<(&'a str, Expect<'a>)>,
    /// What the entries lead to.
    pub rule: &'a Rule,
}

/// One for each rule, in the order of declaration.
pub fn expected(domain: &Domain) -> Vec<ReachingEntries<'_>> {
    let mut found = Vec::new();
    descend(domain.tree(), Tree::ROOT, &mut Vec::new(), &mut found);
    found.sort_by_key(|expected| expected.rule.number);
    found
}

fn descend<'a>(
    tree: &'a Tree,
    level: u32,
    path: &mut Vec<(&'a str, Expect<'a>)>,
    found: &mut Vec<ReachingEntries<'a>>,
) {
    for (key, values) in &tree.levels[level as usize] {
        let exact = values.exact.iter().map(|(text, node)| match node.is_pattern {
            true => (Expect::Pattern(text), node),
            false => (Expect::Value(text), node),
        });
        for (expect, node) in exact.chain(values.any.iter().map(|node| (Expect::Any, node))) {
            path.push((key, expect));
            if let Some(rule) = node.rule {
                found.push(ReachingEntries { entries: path.clone(), rule: &tree.rules[rule.index()] });
            }
            if let Some(below) = node.level {
                descend(tree, below.get(), path, found);
            }
            path.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Options, RuleText, Ruleset};

    #[test]
    fn every_rule_is_expected_once_in_the_order_of_declaration() {
        let text = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1, unit: day}}
  - key: a
    value: x
    descriptors:
      - {key: b, value: y*, rate_limit: {requests_per_unit: 1, unit: day}}
      - {key: b, value: z, rate_limit: {requests_per_unit: 1, unit: day}}
  - {key: white, value: list}
";
        let sources = [RuleText { name: "f.yaml".into(), text: text.to_owned() }];
        let ruleset = Ruleset::load(&sources, &Options::default()).ruleset.expect("it is good");
        let expected: Vec<_> =
            expected(ruleset.domain("d").expect("it is there")).into_iter().map(|it| it.entries).collect();
        assert_eq!(
            expected,
            [
                vec![("a", Expect::Any)],
                vec![("a", Expect::Value("x")), ("b", Expect::Pattern("y*"))],
                vec![("a", Expect::Value("x")), ("b", Expect::Value("z"))],
            ]
        );
    }
}
