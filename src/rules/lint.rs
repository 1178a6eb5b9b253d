//! The warnings of `tidegate check` and of the start: rules that load but probably do not do what they seem to. Also
//! two refusals, of rules that would not hold where they are to run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::request::Bounds;
use crate::rules::file::{DescriptorFile, DomainFile};
use crate::rules::limit::Rule;
use crate::rules::policy::Scope;
use crate::rules::problem::{Problem, Problems, Severity};
use crate::rules::scalar::excerpt;
use crate::rules::{Domain, LoadResult};

/// Warns of what the files as written show.
pub(crate) fn lint(files: &[DomainFile], problems: &mut Problems) {
    // A limit is replaced only in its own domain, but a merged domain may be spread over files.
    let mut names_of: HashMap<&str, HashSet<&str>> = HashMap::new();
    for file in files {
        names_of.entry(&file.domain.value).or_default().extend(file.descriptors.iter().flat_map(names));
    }
    // Names may be missing only because their limits are broken.
    let is_complete = !problems.has_errors();
    for file in files {
        let names = names_of.get(file.domain.value.as_str()).filter(|_| is_complete);
        for descriptor in &file.descriptors {
            descriptor_lint(&file.file, descriptor, 1, names, problems);
        }
    }
}

fn names(descriptor: &DescriptorFile) -> Vec<&str> {
    let own = descriptor.limits.iter().filter_map(|limit| limit.name.as_ref()).map(|name| name.value.as_str());
    own.chain(descriptor.descriptors.iter().flat_map(names)).collect()
}

fn descriptor_lint(
    file: &Arc<str>,
    descriptor: &DescriptorFile,
    depth: usize,
    names: Option<&HashSet<&str>>,
    problems: &mut Problems,
) {
    let entries_max = Bounds::default().entries_max;
    if depth == entries_max + 1 {
        problems.warning(
            file,
            descriptor.at,
            format!("this descriptor is never reached: it is the {depth}th level, and descriptors have at most {entries_max} entries"),
            "nest less deeply, or raise --max-entries",
        );
    }
    if descriptor.is_bare && descriptor.value.is_none() {
        problems.warning(
            file,
            descriptor.at,
            format!(
                "the descriptor {} limits nothing: it has neither a rate_limit nor nested descriptors",
                descriptor.key.value
            ),
            "write a rate_limit, or remove the descriptor",
        );
    }
    for name in descriptor.limits.iter().flat_map(|limit| &limit.replaces) {
        if names.is_some_and(|names| !names.contains(name.value.as_str())) {
            problems.warning(
                file,
                name.at,
                format!("replaces '{}', but no limit of this domain has that name", name.value),
                "give the limit to replace a name: field, or correct the name here",
            );
        }
    }
    for child in &descriptor.descriptors {
        descriptor_lint(file, child, depth + 1, names, problems);
    }
}

/// Refuses rules with sensitive keys, whose values would leave the process and could be guessed from their digests.
///
/// Whether a limit counts by such a key does not matter: if a domain has one, the secret goes into the names of all its
/// keys.
pub(crate) fn refuse_sensitive(loaded: &mut LoadResult) {
    let Some(ruleset) = &loaded.ruleset else { return };
    let places = ruleset.domains().flat_map(|domain| &domain.tree().sensitive_keys);
    let Some((key, place)) = places.min_by_key(|(_, place)| *place) else { return };
    loaded.problems.push(Problem {
        place: place.clone(),
        severity: Severity::Error,
        message: format!("{} is sensitive, and counts are shared without a secret to hide its values", excerpt(key)),
        help: "name a file with --secret-file (TIDEGATE_SECRET_FILE), the same for all processes".into(),
    });
    loaded.ruleset = None;
}

/// Refuses strict rules where several regions have no owner that all of them could ask.
pub(crate) fn refuse_strict(loaded: &mut LoadResult) {
    let Some(ruleset) = &loaded.ruleset else { return };
    let is_strict = |rule: &&Rule| rule.limits().iter().any(|limit| limit.policy.scope == Some(Scope::Strict));
    let Some(rule) = ruleset.domains().flat_map(Domain::rules).find(is_strict) else { return };
    loaded.problems.push(Problem {
        place: rule.at.clone(),
        severity: Severity::Error,
        message: format!("rule {} is strict, and no Redis is named that all regions ask", rule.id),
        help: "name it with --strict-redis-url (STRICT_REDIS_URL), the same in all regions, or write another scope:"
            .into(),
    });
    loaded.ruleset = None;
}
