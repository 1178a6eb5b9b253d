//! From rule files to the tree that requests are matched against.
//!
//! Checks what takes more than one descriptor to see: duplicates, domains spread over files, rule ids.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::rules::file::{DescriptorFile, DomainFile, LimitFile, composite};
use crate::rules::limit::{
    Demand, Limit, Rule, RulePathStep, Space, Terms, escaped_rule_step, in_message, rule_step, shown,
};
use crate::rules::policy::Policy;
use crate::rules::problem::{FilePosition, Problems};
use crate::rules::tree::{KeysByName, Label, Number, Tree, TreeNode, Values};
use crate::rules::wildcard::{Pattern, Patterns};
use crate::rules::{Domain, OVERRIDE_RULE_ID, Options};

/// Builds the domains of a load. Problems are reported; the result is good only if none of them is an error.
pub(crate) fn compile(
    files: Vec<DomainFile>,
    options: &Options,
    problems: &mut Problems,
) -> BTreeMap<Arc<str>, Domain> {
    let mut merged: BTreeMap<String, Vec<DomainFile>> = BTreeMap::new();
    for file in files {
        match merged.entry(file.domain.value.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(vec![file]);
            }
            Entry::Occupied(mut occupied) => {
                if !options.merge_domains {
                    let first = &occupied.get()[0];
                    let message = format!("duplicate domain '{}' in config file", file.domain.value);
                    let help = format!(
                        "the first is at {}:{}: put both into one document, or set MERGE_DOMAIN_CONFIG=true",
                        first.file, first.domain.at.line
                    );
                    problems.error(&file.file, file.domain.at, message, help);
                }
                occupied.get_mut().push(file);
            }
        }
    }
    merged
        .into_iter()
        .zip(0..)
        .map(|((name, files), number)| {
            let name: Arc<str> = name.into();
            let mut compiler =
                Compiler { domain: &name, options, tree: Tree::default(), problems, ids: HashSet::new(), id_bytes: 0 };
            let descriptors: Vec<(&Arc<str>, &DescriptorFile)> =
                files.iter().flat_map(|file| file.descriptors.iter().map(|it| (&file.file, it))).collect();
            for (file, descriptor) in &descriptors {
                gather_sensitive(file, descriptor, &mut compiler.tree.sensitive_keys);
            }
            compiler.level(&descriptors, &Path::default());
            compiler.tree.open();
            let override_space = Space::new(&name, OVERRIDE_RULE_ID);
            let domain = Domain { number, name: name.clone(), tree: compiler.tree, override_space };
            (name, domain)
        })
        .collect()
}

fn gather_sensitive(file: &Arc<str>, descriptor: &DescriptorFile, keys: &mut HashMap<Box<str>, FilePosition>) {
    if descriptor.sensitive {
        let place = FilePosition { file: file.clone(), position: descriptor.at };
        keys.entry(descriptor.key.value.as_str().into()).or_insert(place);
    }
    descriptor.descriptors.iter().for_each(|child| gather_sensitive(file, child, keys));
}

struct Compiler<'c> {
    domain: &'c str,
    options: &'c Options,
    tree: Tree,
    problems: &'c mut Problems,
    ids: HashSet<String>,
    /// The length of all rule ids of the domain together.
    id_bytes: usize,
}

/// The most bytes of rule ids in a domain. Ids repeat what is above them, so that deep trees of long names come to much
/// more than their files.
const ID_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The way down to a level.
#[derive(Default)]
struct Path {
    /// As a rule id.
    id: String,
    /// As envoyproxy/ratelimit writes it in its messages, with a dot at the end.
    composite_key: String,
    steps: Vec<PathStep>,
}

/// A level of the way, with what decides how metrics name it.
#[derive(Clone)]
struct PathStep {
    key: Arc<str>,
    written: Arc<str>,
    /// Requests bring different values here, each has its own count, and they may be shown.
    has_open_value: bool,
    value_to_metric: bool,
}

impl PathStep {
    /// `shown` is the value as it may be seen.
    fn new(descriptor: &DescriptorFile, shown: Option<&str>, is_sensitive: bool) -> PathStep {
        let key = descriptor.key.value.as_str();
        let is_open = descriptor.value.is_none() || (descriptor.is_pattern() && !descriptor.share_threshold);
        PathStep {
            key: key.into(),
            written: composite(key, shown).into(),
            has_open_value: is_open && !is_sensitive,
            value_to_metric: descriptor.value_to_metric,
        }
    }
}

/// The children of one key while they are gathered.
#[derive(Default)]
struct KeyChildren<'f> {
    values: Values,
    patterns: Vec<(Pattern, TreeNode)>,
    /// Where each value is declared; `None` is the key alone.
    places: Vec<(Option<&'f str>, FilePosition)>,
}

impl Compiler<'_> {
    /// Compiles the descriptors of one level and returns its index. `path` is the way down to it.
    fn level(&mut self, descriptors: &[(&Arc<str>, &DescriptorFile)], path: &Path) -> Number {
        let index = self.tree.levels.len();
        self.tree.levels.push(KeysByName::default());
        let mut keys: BTreeMap<&str, KeyChildren<'_>> = BTreeMap::new();
        let mut seen: HashMap<(&str, Option<&str>), FilePosition> = HashMap::new();
        for &(file, descriptor) in descriptors {
            let key = descriptor.key.value.as_str();
            let value = descriptor.value.as_ref().map(|value| value.value.as_str());
            let place = FilePosition { file: file.clone(), position: descriptor.at };
            if let Some(first) = seen.get(&(key, value)) {
                let composite = composite(key, self.shown(descriptor).as_deref());
                self.problems.error(
                    file,
                    descriptor.at,
                    format!("duplicate descriptor composite key '{}.{}{composite}'", self.domain, path.composite_key),
                    format!("the first is at {first}: join the two, rate_limits takes several limits"),
                );
            }
            seen.insert((key, value), place.clone());
            if descriptor.share_threshold && !descriptor.is_pattern() && !key.contains('*') {
                let composite = composite(key, value.map(|value| in_message(value, self.is_sensitive(key))));
                self.problems.error(
                    file,
                    descriptor.share_threshold_at,
                    format!(
                        "share_threshold can only be used with wildcard values (containing '*'), but found key \
                         '{composite}'"
                    ),
                    format!("write value: \"*\" beside key: {key}, or remove share_threshold"),
                );
            }
            let node = self.node(file, descriptor, path);
            let gathered = keys.entry(key).or_default();
            gathered.places.push((value, place));
            match value {
                None => gathered.values.any = Some(node),
                Some(value) => {
                    gathered.values.exact.insert(value.into(), node);
                    gathered.patterns.extend(Pattern::new(value).map(|pattern| (pattern, node)));
                }
            }
        }
        let level = keys.into_iter().map(|(key, gathered)| {
            let KeyChildren { mut values, patterns, places } = gathered;
            if !patterns.is_empty() {
                let patterns = Patterns::new(patterns);
                let is_sensitive = self.tree.sensitive_keys.contains_key(key);
                warn_of_shadowed((key, is_sensitive), &patterns, &places, self.problems);
                values.patterns = Some(Number::new(self.tree.patterns.len()));
                self.tree.patterns.push(patterns);
            }
            (key.into(), values)
        });
        let level: KeysByName = level.collect();
        self.tree.levels[index] = level;
        Number::new(index)
    }

    fn node(&mut self, file: &Arc<str>, descriptor: &DescriptorFile, path: &Path) -> TreeNode {
        let shown = self.shown(descriptor);
        let id = self.rule_id(path, &descriptor.key.value, shown.as_deref());
        let was_bounded = self.id_bytes <= ID_BYTES_MAX;
        self.id_bytes += id.len();
        if self.id_bytes > ID_BYTES_MAX {
            if was_bounded {
                let message = format!("the rule ids of domain '{}' have more than {ID_BYTES_MAX} bytes", self.domain);
                self.problems.error(file, descriptor.at, message, "nest less deeply, or shorten keys and values");
            }
            return self.label(file, descriptor, "");
        }
        let mut steps = path.steps.clone();
        let is_sensitive = self.is_sensitive(&descriptor.key.value);
        steps.push(PathStep::new(descriptor, shown.as_deref(), is_sensitive));
        let rule = self.rule(file, descriptor, &id, &steps);
        let mut node = TreeNode { rule, ..self.label(file, descriptor, &id) };
        if !descriptor.descriptors.is_empty() {
            let children: Vec<_> = descriptor.descriptors.iter().map(|child| (file, child)).collect();
            let composite = composite(&descriptor.key.value, shown.as_deref());
            let path = Path { id, composite_key: format!("{}{composite}.", path.composite_key), steps };
            node.level = Some(self.level(&children, &path));
        }
        node
    }

    /// A key that is sensitive anywhere in the domain is so everywhere: a request may bring it in any place.
    fn is_sensitive(&self, key: &str) -> bool {
        self.tree.sensitive_keys.contains_key(key)
    }

    /// The value as it is shown in rule ids, metrics and messages.
    fn shown(&self, descriptor: &DescriptorFile) -> Option<String> {
        let value = descriptor.value.as_ref()?;
        Some(shown(&value.value, self.is_sensitive(&descriptor.key.value), &self.options.digest_key))
    }

    /// The readable path, unless a value with a slash makes it look like another rule's.
    fn rule_id(&mut self, path: &Path, key: &str, value: Option<&str>) -> String {
        let below = |step: String| if path.id.is_empty() { step } else { format!("{}/{step}", path.id) };
        let mut id = below(rule_step(key, value));
        if self.ids.contains(&id) {
            id = below(escaped_rule_step(key, value));
        }
        while !self.ids.insert(id.clone()) {
            id.push('%');
        }
        id
    }

    /// Makes a node that leads nowhere yet, and its label.
    fn label(&mut self, file: &Arc<str>, descriptor: &DescriptorFile, path: &str) -> TreeNode {
        let at = FilePosition { file: file.clone(), position: descriptor.at };
        self.tree.labels.push(Label { path: path.into(), at });
        TreeNode {
            number: (self.tree.labels.len() - 1) as u32,
            rule: None,
            level: None,
            is_pattern: descriptor.is_pattern(),
            is_shared: descriptor.share_threshold,
        }
    }

    fn rule(&mut self, file: &Arc<str>, descriptor: &DescriptorFile, id: &str, steps: &[PathStep]) -> Option<Number> {
        let first = descriptor.limits.first()?;
        let demand = match &first.terms {
            None => Demand::Unlimited { name: name(first), replaces: replaces(first) },
            Some(_) => Demand::Limits(descriptor.limits.iter().filter_map(limit).collect()),
        };
        let rule_path = steps.iter().map(|step| RulePathStep {
            key: step.key.clone(),
            written: step.written.clone(),
            takes_value: step.has_open_value && (descriptor.detailed_metric || step.value_to_metric),
        });
        let number = Number::new(self.tree.rules.len());
        self.tree.rules.push(Rule {
            number: number.get(),
            id: id.into(),
            space: Space::new(self.domain, id),
            demand,
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            rule_path: rule_path.collect(),
            metadata: descriptor.metadata.clone().map(Arc::new),
            at: FilePosition { file: file.clone(), position: descriptor.at },
        });
        Some(number)
    }
}

fn name(limit: &LimitFile) -> Arc<str> {
    limit.name.as_ref().map_or("", |name| name.value.as_str()).into()
}

fn replaces(limit: &LimitFile) -> Vec<Arc<str>> {
    limit.replaces.iter().map(|name| name.value.as_str().into()).collect()
}

fn limit(file: &LimitFile) -> Option<Limit> {
    let terms = file.terms.as_ref()?;
    let limit = terms.requests_per_unit;
    Some(Limit {
        terms: Terms {
            limit,
            window_ms: terms.window_ms,
            algorithm: terms.algorithm,
            // A limit of zero denies everything, a burst too.
            burst: terms.burst.filter(|_| terms.algorithm.is_bucket() && limit > 0).unwrap_or(limit),
        },
        name: name(file),
        replaces: replaces(file),
        charge: terms.charge,
        policy: Policy::resolve(terms.algorithm, terms.class, terms.scope, terms.on_outage, terms.slack_permille),
    })
}

/// Warns of wildcards behind one that matches all that they match, and of keys alone beside a `*`: neither is ever
/// reached.
fn warn_of_shadowed(
    (key, is_sensitive): (&str, bool),
    all: &Patterns,
    places: &[(Option<&str>, FilePosition)],
    problems: &mut Problems,
) {
    let shown = |pattern: &Pattern| in_message(pattern.text(), is_sensitive).to_owned();
    let places: HashMap<Option<&str>, &FilePosition> = places.iter().map(|(value, place)| (*value, place)).collect();
    let place_of = |wanted: Option<&str>| places.get(&wanted).copied();
    let patterns: Vec<&Pattern> = all.iter().map(|(pattern, _)| pattern).collect();
    for (index, pattern) in patterns.iter().enumerate() {
        // A pattern that matches another's text, stars and all, matches everything that the other does.
        let Some(winner) = all.position(pattern.text()).filter(|winner| *winner < index) else { continue };
        let (Some(place), Some(first)) = (place_of(Some(pattern.text())), place_of(Some(patterns[winner].text())))
        else {
            continue;
        };
        problems.warning(
            &place.file,
            place.position,
            format!(
                "the wildcard {key}={} is never reached: {key}={} at {first} is declared before it and matches all that it does",
                shown(pattern),
                shown(patterns[winner])
            ),
            "declare the narrower wildcard first",
        );
    }
    let catch_all = patterns.iter().find(|pattern| pattern.text().bytes().all(|byte| byte == b'*'));
    if let (Some(pattern), Some(place)) = (catch_all, place_of(None)) {
        problems.warning(
            &place.file,
            place.position,
            format!("the rule {key} without a value is never reached: {key}={} matches every value", shown(pattern)),
            "remove one of the two",
        );
    }
}
