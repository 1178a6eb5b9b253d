//! Why a descriptor meets the rule it meets: the walk through the tree, step by step, with what was passed over.
//!
//! It walks with [`Tree::step`], as requests do, so that the explanation can't differ from the decision.

use serde::Serialize;

use crate::request::DescriptorEntry;
use crate::rules::Domain;
use crate::rules::limit::Rule;
use crate::rules::problem::FilePosition;
use crate::rules::tree::{Number, Tree, TreeNode, Via};
use crate::rules::wildcard::Patterns;

/// How many rules passed over are named for one entry. The rest is counted.
const PASSED_OVER_MAX: usize = 20;

/// One entry of the descriptor and what became of it.
#[derive(Debug, Serialize)]
pub(crate) struct MatchStep {
    /// `key=value` as asked.
    pub entry: String,
    /// The node that the entry leads to. `None` ends the walk.
    pub chosen: Option<Chosen>,
    /// What else stands below the key, with the reason; at most `PASSED_OVER_MAX`.
    pub passed_over: Vec<PassedOver>,
    /// How many more were passed over.
    pub passed_over_more: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct Chosen {
    /// The way down to the node, in the form of a rule id.
    pub path: String,
    /// Where its descriptor starts in the rule file.
    pub at: FilePosition,
    /// How the value meets it, in words.
    pub why: &'static str,
    /// Each value that leads here has a count of its own.
    pub is_counted_by_value: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct PassedOver {
    /// The way down to the node, in the form of a rule id.
    pub path: String,
    /// Where its descriptor starts in the rule file.
    pub at: FilePosition,
    /// Why the entry does not lead there, in words.
    pub why: String,
}

/// The whole walk.
#[derive(Debug)]
pub(crate) struct Explanation<'r> {
    /// Whose rules were walked through.
    pub domain: &'r str,
    /// All entries of the descriptor, even those that the walk did not reach.
    pub asked: Vec<DescriptorEntry<'r>>,
    /// One for each entry that was looked up.
    pub steps: Vec<MatchStep>,
    /// What the last entry leads to. `None` if nothing limits the descriptor.
    pub rule: Option<&'r Rule>,
    /// The values that are part of the key. Complete only if there is a rule.
    pub identifier: Vec<String>,
    /// Why there is no rule, or a sentence on the one there is.
    pub outcome: String,
}

/// Explains one descriptor.
pub(crate) fn explain<'r>(domain: &'r Domain, entries: Vec<DescriptorEntry<'r>>) -> Explanation<'r> {
    let tree = domain.tree();
    let mut explanation = Explanation {
        domain: &domain.name,
        asked: entries.clone(),
        steps: Vec::new(),
        rule: None,
        identifier: Vec::new(),
        outcome: String::new(),
    };
    let mut level = Some(Tree::ROOT);
    for (index, entry) in entries.iter().enumerate() {
        let Some(current) = level else {
            explanation.outcome = format!(
                "no rule: the descriptor has {} entries, and {} has no nested descriptors",
                entries.len(),
                last_path(&explanation)
            );
            return explanation;
        };
        let step = step(tree, current, entry);
        let node = tree.step(current, entry);
        explanation.steps.push(step);
        let Some((node, via)) = node else {
            explanation.outcome = format!("no rule: {}", why_nothing(tree, current, entry));
            return explanation;
        };
        if node.leaves_open(via) {
            explanation.identifier.push(entry.value.to_owned());
        }
        level = node.level.map(Number::get);
        if index + 1 == entries.len() {
            let rule = node.rule.map(|rule| &tree.rules[rule.index()]);
            let path = &tree.labels[node.number as usize].path;
            explanation.outcome = match (rule, node.level) {
                (Some(rule), _) => format!("rule {} at {}", rule.id, rule.at),
                (None, Some(_)) => format!("no rule: {path} has no rate_limit of its own, only nested descriptors"),
                (None, None) => format!("no rule: {path} has no rate_limit, so that what it matches is not limited"),
            };
            explanation.rule = rule;
        }
    }
    if entries.is_empty() {
        explanation.outcome = "no rule: the descriptor has no entries".into();
    }
    explanation
}

fn last_path(explanation: &Explanation<'_>) -> String {
    let chosen = explanation.steps.last().and_then(|step| step.chosen.as_ref());
    chosen.map_or_else(String::new, |chosen| chosen.path.clone())
}

fn why_nothing(tree: &Tree, level: u32, entry: &DescriptorEntry<'_>) -> String {
    let level = &tree.levels[level as usize];
    match level.get(entry.key) {
        Some(_) => format!("no rule for the key {} matches the value '{}'", entry.key, entry.value),
        None => {
            let keys: Vec<&str> = level.keys().map(|key| &**key).take(PASSED_OVER_MAX).collect();
            format!("the key {} is not among those of this level ({})", entry.key, keys.join(", "))
        }
    }
}

fn step(tree: &Tree, level: u32, entry: &DescriptorEntry<'_>) -> MatchStep {
    let mut step = MatchStep {
        entry: format!("{}={}", entry.key, entry.value),
        chosen: None,
        passed_over: Vec::new(),
        passed_over_more: 0,
    };
    let Some(values) = tree.levels[level as usize].get(entry.key) else { return step };
    let chosen = tree.step(level, entry);
    let mut pass_over = |node: u32, why: String| {
        if step.passed_over.len() == PASSED_OVER_MAX {
            step.passed_over_more += 1;
            return;
        }
        let label = &tree.labels[node as usize];
        step.passed_over.push(PassedOver { path: label.path.to_string(), at: label.at.clone(), why });
    };
    let chosen_node = chosen.map(|(node, _)| node.number);
    let mut exact: Vec<&TreeNode> = values.exact.values().collect();
    exact.sort_unstable_by_key(|node| node.number);
    for node in exact {
        if Some(node.number) != chosen_node && !node.is_pattern {
            pass_over(node.number, "another value".into());
        }
    }
    for (pattern, node) in
        tree.patterns(values).into_iter().flat_map(Patterns::iter).filter(|(_, node)| Some(node.number) != chosen_node)
    {
        let why = match (pattern.matches(entry.value), chosen) {
            (false, _) => "the wildcard does not match",
            (true, Some((_, Via::Exact))) => "an exact value comes before wildcards",
            (true, _) => "a wildcard declared before it matches",
        };
        pass_over(node.number, why.into());
    }
    if let Some(any) = values.any.filter(|any| Some(any.number) != chosen_node) {
        let why = match chosen {
            Some((_, Via::Exact)) => "an exact value comes before the key alone",
            _ => "a wildcard comes before the key alone",
        };
        pass_over(any.number, why.into());
    }
    step.chosen = chosen.map(|(node, via)| {
        let label = &tree.labels[node.number as usize];
        Chosen {
            path: label.path.to_string(),
            at: label.at.clone(),
            why: match via {
                Via::Exact => "the value is written in the rule",
                Via::Pattern => "the first declared wildcard that matches",
                Via::Any => "the key alone matches any value",
            },
            is_counted_by_value: node.leaves_open(via),
        }
    });
    step
}
