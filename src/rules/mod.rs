//! Which limit: rule files, compiled into an immutable set that requests are matched against.
//!
//! Pure: text in, ruleset and problems out. The way through: [`yaml`] (positions) -> [`fields`] and [`file`] (what was
//! written) -> [`compile`] (the [`tree`]) -> [`Ruleset::domain`] and [`Domain::find`] on every request.

mod affix_trie;
pub(crate) mod compile;
pub(crate) mod explain;
pub(crate) mod explain_text;
pub(crate) mod fields;
pub(crate) mod file;
pub mod limit;
pub(crate) mod lint;
pub(crate) mod lookup;
pub(crate) mod metadata;
pub mod policy;
pub(crate) mod problem;
pub mod reachable;
pub(crate) mod scalar;
#[cfg(test)]
mod tests;
pub mod tree;
pub(crate) mod wildcard;
pub(crate) mod yaml;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::request::DescriptorEntry;
use crate::rules::limit::{DigestKey, Rule, Space};
use crate::rules::problem::{Problem, Problems, Strictness};
use crate::rules::tree::{Identifier, Map, Tree};

/// The rule id of request overrides that no rule matches.
pub const OVERRIDE_RULE_ID: &str = "override";

/// Rules as text, from a file or from a management server.
#[derive(Clone, Debug)]
pub struct RuleText {
    /// What problems in the text are reported under: the file's path, or `xds:` and the name of the server's resource.
    pub name: Arc<str>,
    /// One or several YAML documents, not parsed yet.
    pub text: String,
}

/// How files are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether files that envoyproxy/ratelimit loads without doing what they say are refused.
    pub strictness: Strictness,
    /// A domain may be spread over several documents. If not, the second one is an error.
    pub merge_domains: bool,
    /// Keys the digests that stand for sensitive values in rule ids, metrics and messages.
    pub digest_key: DigestKey,
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// Its place among the domains in the order of their names, from 0.
    pub number: u32,
    /// As the rule file has it and as requests name it.
    pub name: Arc<str>,
    tree: Tree,
    /// Names the keys of request overrides that no rule matches.
    pub override_space: Space,
}

impl Domain {
    /// Finds the rule that the entries lead to, and pushes the values that it leaves open to `identifier`.
    pub fn find(&self, entries: &[DescriptorEntry<'_>], identifier: &mut impl Identifier) -> Option<&Rule> {
        self.tree.find(entries, identifier)
    }

    /// Every rule, in the order of declaration.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.tree.rules.iter()
    }

    /// Whether the values of some keys leave the process only as keyed digests.
    pub fn has_sensitive_keys(&self) -> bool {
        !self.tree.sensitive_keys.is_empty()
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }
}

/// Everything that a load produced. Immutable: a reload makes a new one.
#[derive(Debug)]
pub struct Ruleset {
    domains: Map<Domain>,
}

/// The outcome of reading rule files.
#[derive(Debug)]
pub struct LoadResult {
    /// `None` if any problem is an error.
    pub ruleset: Option<Ruleset>,
    /// Errors and warnings. There may be warnings even if the rules are good.
    pub problems: Vec<Problem>,
}

impl Ruleset {
    /// Reads the files as a whole: either all of them are good, or none is used.
    pub fn load(sources: &[RuleText], options: &Options) -> LoadResult {
        let mut problems = Problems::new(options.strictness);
        let mut files = Vec::new();
        for source in sources {
            files.extend(file::read(&source.name, &source.text, &mut problems));
        }
        lint::lint(&files, &mut problems);
        let domains = compile::compile(files, options, &mut problems);
        let ruleset = (!problems.has_errors()).then(|| Ruleset::new(domains));
        LoadResult { ruleset, problems: problems.into_sorted() }
    }

    fn new(domains: BTreeMap<Arc<str>, Domain>) -> Ruleset {
        Ruleset { domains: domains.into_iter().map(|(name, domain)| ((&*name).into(), domain)).collect() }
    }

    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// The domains in the order of their names.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        let mut domains: Vec<&Domain> = self.domains.values().collect();
        domains.sort_by(|a, b| a.name.cmp(&b.name));
        domains.into_iter()
    }

    pub fn shortest_window_ms(&self) -> Option<u64> {
        let rules = self.domains.values().flat_map(Domain::rules);
        rules.flat_map(Rule::limits).map(|limit| limit.terms.window_ms).min()
    }

    pub fn rules_count(&self) -> usize {
        self.domains.values().map(|domain| domain.tree.rules.len()).sum()
    }
}
