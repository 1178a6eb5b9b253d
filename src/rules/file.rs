//! A rule file as written: typed, every value with its position, checked as far as one descriptor alone allows.
//!
//! `compile.rs` checks what takes several descriptors or files to see (duplicates, merging).

use std::sync::Arc;
use std::time::Duration;

use crate::request::{DOMAIN_BYTES_MAX, KEY_BYTES_MAX, Unit, VALUE_BYTES_MAX};
use crate::rules::fields::{DESCRIPTOR, LIMIT, Located, MapFields, ProblemSink, REPLACES, ROOT};
use crate::rules::limit::{WINDOW_MS_MAX, WINDOW_MS_MIN};
use crate::rules::metadata;
use crate::rules::policy::{Algorithm, Charge, Class, OnOutage, Scope};
use crate::rules::problem::{Position, Problems};
use crate::rules::scalar::excerpt;
use crate::rules::yaml::{self, YamlNode};

/// The most limits on one descriptor. Each takes a counter per key.
pub(crate) const LIMITS_PER_RULE_MAX: usize = 8;

/// One document: a domain and its descriptors.
#[derive(Debug)]
pub(crate) struct DomainFile {
    /// The name of the text that the document is in. One text may hold several documents.
    pub file: Arc<str>,
    /// Never empty. A second document of this name is an error, unless domains are merged.
    pub domain: Located<String>,
    /// The first level, in the order of declaration. Broken descriptors are reported and left out.
    pub descriptors: Vec<DescriptorFile>,
}

#[derive(Debug)]
pub(crate) struct DescriptorFile {
    /// Where the descriptor starts. Its rule is shown with this place.
    pub at: Position,
    /// Nothing was written below the key: no limits and no nested descriptors, not even broken ones.
    pub is_bare: bool,
    /// The key of an entry that Envoy sends; never empty.
    pub key: Located<String>,
    /// `None` matches any value; with a `*` it is a pattern.
    pub value: Option<Located<String>>,
    /// All apply at once. Empty if this descriptor limits nothing itself.
    pub limits: Vec<LimitFile>,
    /// The next level.
    pub descriptors: Vec<DescriptorFile>,
    /// The limits count and report, but never deny. Not inherited.
    pub shadow_mode: bool,
    /// The limits deny only together with all other quota descriptors of the request. Not inherited.
    pub quota_mode: bool,
    /// Metrics of this rule name every open value on the way to it. Not inherited.
    pub detailed_metric: bool,
    /// Metrics of this rule and of those below name the value at this level, if it is open.
    pub value_to_metric: bool,
    /// All values that the wildcard matches share one count. An error unless the value is a wildcard.
    pub share_threshold: bool,
    /// Where `share_threshold` is written, or the descriptor if it is not.
    pub share_threshold_at: Position,
    /// Values of this key are shown only as digests, anywhere in the domain.
    pub sensitive: bool,
    /// Returned with requests that the rule lets pass. `None` if absent or broken.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

impl DescriptorFile {
    pub(crate) fn is_pattern(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.value.contains('*'))
    }
}

#[derive(Debug)]
pub(crate) struct LimitFile {
    /// Where the map of the limit starts.
    pub at: Position,
    /// What Envoy is told as the limit's name, and `replaces` refers to. `None` if absent or empty.
    pub name: Option<Located<String>>,
    /// Names of limits that are dropped from the same request. The limit's own name is refused.
    pub replaces: Vec<Located<String>>,
    /// `None` is unlimited.
    pub terms: Option<TermsFile>,
}

#[derive(Debug)]
pub(crate) struct TermsFile {
    /// Hits per window. 0 denies everything; so does a missing number, with a warning.
    pub requests_per_unit: u32,
    /// From `unit` or `window`, within `WINDOW_MS_MIN` and `WINDOW_MS_MAX`.
    pub window_ms: u64,
    /// Where the value of `unit` or `window` stands.
    pub window_at: Position,
    /// `Algorithm::DEFAULT` if absent.
    pub algorithm: Algorithm,
    /// How many hits a fresh key admits at once; at least 1, for `gcra` only. `None` is the limit.
    pub burst: Option<u32>,
    /// As written. `None` leaves it to the class and the algorithm.
    pub scope: Option<Scope>,
    /// Thousandths of the limit that may be admitted before the origin knows. `None` takes the setting, or 0 for a
    /// split limit.
    pub slack_permille: Option<u16>,
    /// As written. `None` leaves it to the class.
    pub on_outage: Option<OnOutage>,
    /// `None` is treated like `comfort`.
    pub class: Option<Class>,
    /// `auto` if absent.
    pub charge: Charge,
}

/// Reads every document of a file.
pub(crate) fn read(file: &Arc<str>, text: &str, problems: &mut Problems) -> Vec<DomainFile> {
    let problems_before = problems.count();
    let documents = yaml::documents(file, text, problems);
    let is_readable = problems.count() == problems_before;
    let mut report = ProblemSink::new(file, problems);
    if is_readable && documents.iter().all(|document| document.is_null()) {
        let at = Position { line: 1, column: 1 };
        report.error(at, "config file cannot have empty domain", "write domain: NAME and a list of descriptors");
    }
    // A stray `---` leaves a document with nothing in it.
    documents.iter().filter(|document| !document.is_null()).filter_map(|node| domain(node, &mut report)).collect()
}

fn domain(node: &YamlNode, report: &mut ProblemSink<'_>) -> Option<DomainFile> {
    let fields = MapFields::read(node, ROOT, report)?;
    let domain = fields.string("domain", report);
    let is_spoilt = fields.is_spoilt("domain", domain.as_ref());
    let at = domain.as_ref().map(|domain| domain.at).or(fields.key_at("domain")).unwrap_or(fields.at);
    let domain = domain.filter(|domain| !domain.value.is_empty());
    if domain.is_none() && !is_spoilt {
        report.error(at, "config file cannot have empty domain", "write domain: NAME, as Envoy's filter has it");
    }
    if let Some(domain) = &domain {
        check_length("domain", domain, DOMAIN_BYTES_MAX, report);
    }
    let descriptors = descriptors(&fields, report);
    let file = report.file().clone();
    domain.map(|domain| DomainFile { file, domain, descriptors })
}

fn check_length(what: &str, text: &Located<String>, max: usize, report: &mut ProblemSink<'_>) {
    if text.value.len() > max {
        report.error(
            text.at,
            format!("{what} has {} bytes, requests may have at most {max}", text.value.len()),
            format!("shorten the {what}"),
        );
    }
}

fn descriptors(fields: &MapFields, report: &mut ProblemSink<'_>) -> Vec<DescriptorFile> {
    fields.list("descriptors", report).iter().filter_map(|node| descriptor(node, report)).collect()
}

fn descriptor(node: &YamlNode, report: &mut ProblemSink<'_>) -> Option<DescriptorFile> {
    if node.as_scalar().is_some() || matches!(node.kind, yaml::NodeKind::List(_)) {
        report.error(
            node.at,
            format!("config error, yaml file contains list of type other than map: {}", node.describe()),
            "write a descriptor as - key: NAME",
        );
        return None;
    }
    let fields = MapFields::read(node, DESCRIPTOR, report)?;
    let key = key(&fields, report);
    let value = fields.string("value", report);
    let is_value_spoilt = fields.is_spoilt("value", value.as_ref());
    let value = value.filter(|value| !value.value.is_empty());
    if let Some(value) = &value {
        check_length("value", value, VALUE_BYTES_MAX, report);
    }
    let descriptor = DescriptorFile {
        at: fields.at,
        is_bare: !["rate_limit", "rate_limits", "descriptors"].iter().any(|key| fields.mentions(key)),
        key: key.clone().unwrap_or(Located { value: String::new(), at: fields.at }),
        limits: limits(&fields, report),
        descriptors: descriptors(&fields, report),
        shadow_mode: fields.boolean("shadow_mode", report),
        quota_mode: fields.boolean("quota_mode", report),
        detailed_metric: fields.boolean("detailed_metric", report),
        value_to_metric: fields.boolean("value_to_metric", report),
        share_threshold: fields.boolean("share_threshold", report),
        share_threshold_at: fields.key_at("share_threshold").unwrap_or(fields.at),
        sensitive: fields.boolean("sensitive", report),
        metadata: fields.node("metadata").and_then(|node| metadata::read(node, report)),
        value,
    };
    key?;
    if is_value_spoilt {
        // Without its value it would be another rule, and look like a duplicate of its siblings.
        return None;
    }
    if descriptor.limits.is_empty() {
        warn_of_idle_flags(&fields, &descriptor, report);
    }
    Some(descriptor)
}

/// Flags that act on the limit of the same descriptor do nothing where there is none.
fn warn_of_idle_flags(fields: &MapFields, descriptor: &DescriptorFile, report: &mut ProblemSink<'_>) {
    if fields.mentions("rate_limit") || fields.mentions("rate_limits") {
        return;
    }
    for (flag, is_set) in [
        ("shadow_mode", descriptor.shadow_mode),
        ("quota_mode", descriptor.quota_mode),
        ("detailed_metric", descriptor.detailed_metric),
        ("metadata", descriptor.metadata.is_some()),
    ] {
        if is_set {
            report.warning(
                fields.key_at(flag).unwrap_or(fields.at),
                format!(
                    "{flag} does nothing here: this descriptor has no rate_limit, and the nested ones do not inherit it"
                ),
                format!("move {flag} beside the rate_limit that it is meant for"),
            );
        }
    }
}

fn key(fields: &MapFields, report: &mut ProblemSink<'_>) -> Option<Located<String>> {
    let key = fields.string("key", report);
    if fields.is_spoilt("key", key.as_ref()) {
        return None;
    }
    let at = key.as_ref().map(|key| key.at).or(fields.key_at("key")).unwrap_or(fields.at);
    let Some(key) = key.filter(|key| !key.value.is_empty()) else {
        report.error(at, "descriptor has empty key", "write key: NAME, the descriptor key that Envoy sends");
        return None;
    };
    check_length("key", &key, KEY_BYTES_MAX, report);
    if key.value.contains('*') {
        report.tolerable(
            key.at,
            format!("the key '{}' contains '*', but only values can be patterns", excerpt(&key.value)),
            "write the whole key, and the pattern as value: \"…*\"",
        );
    }
    Some(key)
}

/// How envoyproxy/ratelimit writes a descriptor in its messages.
pub(crate) fn composite(key: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{key}_{value}"),
        None => key.to_owned(),
    }
}

fn limits(fields: &MapFields, report: &mut ProblemSink<'_>) -> Vec<LimitFile> {
    if let (Some(_), Some(at)) = (fields.node("rate_limit"), fields.key_at("rate_limits")) {
        report.error(
            at,
            "both rate_limit and rate_limits are given",
            "put all limits into rate_limits, or keep only rate_limit",
        );
    }
    let several = fields.list("rate_limits", report);
    if several.len() > LIMITS_PER_RULE_MAX {
        report.error(
            several[LIMITS_PER_RULE_MAX].at,
            format!("rate_limits has {} limits, at most {LIMITS_PER_RULE_MAX} are allowed", several.len()),
            "keep the limits that matter",
        );
    }
    if fields
        .node("rate_limits")
        .is_some_and(|node| matches!(&node.kind, yaml::NodeKind::List(items) if items.is_empty()))
    {
        report.warning(
            fields.key_at("rate_limits").unwrap_or(fields.at),
            "rate_limits is empty: this descriptor limits nothing",
            "write at least one limit, or remove rate_limits",
        );
    }
    let one = fields.node("rate_limit").map(AsRef::as_ref);
    let nodes = one.into_iter().chain(several.iter().map(AsRef::as_ref));
    let limits: Vec<LimitFile> = nodes.filter_map(|node| limit(node, report)).collect();
    if limits.len() > 1
        && let Some(unlimited) = limits.iter().find(|limit| limit.terms.is_none())
    {
        report.error(
            unlimited.at,
            "unlimited: true stands beside other limits",
            "keep either unlimited: true or the other limits",
        );
    }
    if one.is_none() {
        report_twins(&limits, report);
    }
    limits
}

/// Two limits with the same window would be two counts of the same key.
fn report_twins(limits: &[LimitFile], report: &mut ProblemSink<'_>) {
    for (index, limit) in limits.iter().enumerate() {
        let Some(terms) = &limit.terms else { continue };
        let has_same_window =
            |other: &&LimitFile| other.terms.as_ref().is_some_and(|other| other.window_ms == terms.window_ms);
        if let Some(twin) = limits[..index].iter().find(has_same_window) {
            report.error(
                terms.window_at,
                format!("two limits of this descriptor have the same window, the other is at line {}", twin.at.line),
                "keep the smaller one, or change a window",
            );
        }
    }
}

fn limit(node: &YamlNode, report: &mut ProblemSink<'_>) -> Option<LimitFile> {
    let fields = MapFields::read(node, LIMIT, report)?;
    let name = fields.string("name", report).filter(|name| !name.value.is_empty());
    let replaces = replaces(&fields, name.as_ref(), report);
    let terms = if fields.boolean_or_spoilt("unlimited", report)? {
        check_unlimited(&fields, report);
        None
    } else {
        Some(terms(&fields, report)?)
    };
    Some(LimitFile { at: fields.at, name, replaces, terms })
}

fn replaces(fields: &MapFields, own: Option<&Located<String>>, report: &mut ProblemSink<'_>) -> Vec<Located<String>> {
    let mut names = Vec::new();
    for node in fields.list("replaces", report) {
        let Some(entry) = MapFields::read(node, REPLACES, report) else { continue };
        let name = entry.string("name", report);
        match name {
            Some(name) if name.value.is_empty() => empty_replaces(name.at, report),
            None if entry.node("name").is_none() => empty_replaces(entry.at, report),
            None => {}
            Some(name) if own.is_some_and(|own| own.value == name.value) => report.error(
                name.at,
                "replaces should not contain name of same descriptor",
                "name another limit, or remove the entry",
            ),
            Some(name) => names.push(name),
        }
    }
    names
}

fn empty_replaces(at: Position, report: &mut ProblemSink<'_>) {
    report.error(at, "should not have an empty replaces entry", "write - name: NAME of the limit to replace");
}

fn check_unlimited(fields: &MapFields, report: &mut ProblemSink<'_>) {
    let help = "remove it, or remove unlimited: true";
    if let Some(unit) = fields.string("unit", report) {
        let message = "should not specify rate limit unit when unlimited";
        match Unit::from_word(&unit.value) {
            Some(_) => report.error(unit.at, message, help),
            None => report.tolerable(unit.at, message, help),
        }
    }
    // envoyproxy/ratelimit also accepts the number and ignores it.
    if let Some(number) = fields.number("requests_per_unit", 0, report) {
        report.warning(number.at, "should not specify requests_per_unit when unlimited", help);
    }
    for key in ["window", "algorithm", "burst", "scope", "slack", "on_outage", "class", "charge"] {
        if let Some(node) = fields.node(key) {
            report.error(node.at, format!("should not specify {key} when unlimited"), help);
        }
    }
}

fn terms(fields: &MapFields, report: &mut ProblemSink<'_>) -> Option<TermsFile> {
    let requests_per_unit = fields.number("requests_per_unit", 0, report);
    if fields.node("requests_per_unit").is_none() && !fields.is_misspelt("requests_per_unit") {
        report.warning(
            fields.at,
            "the limit has no requests_per_unit, which means 0: every request is denied",
            "write requests_per_unit: N (0 to deny on purpose)",
        );
    }
    let window = window(fields, report);
    let algorithm = fields.word::<Algorithm>("algorithm", report);
    let is_algorithm_spoilt = fields.is_spoilt("algorithm", algorithm.as_ref());
    let algorithm = algorithm.map_or(Algorithm::DEFAULT, |it| it.value);
    let burst = fields.number("burst", 1, report);
    if let Some(burst) = &burst
        && !algorithm.is_bucket()
        && !is_algorithm_spoilt
    {
        report.error(
            burst.at,
            format!("burst has no meaning for {algorithm}"),
            "write algorithm: gcra beside it, or remove burst",
        );
    }
    if let (Some(burst), Some(number)) = (&burst, &requests_per_unit)
        && number.value == 0
    {
        report.error(burst.at, "burst has no meaning for a limit of 0, which denies everything", "remove burst");
    }
    let scope = fields.word::<Scope>("scope", report);
    if let Some(scope) = &scope
        && scope.value == Scope::Global
        && algorithm.widest_scope().is_some()
    {
        report.error(
            scope.at,
            format!("{algorithm} can't be counted across regions"),
            "write scope: regional, or algorithm: sliding_window",
        );
    }
    let slack_permille = fields.permille("slack", report);
    let on_outage = fields.word::<OnOutage>("on_outage", report).map(|it| it.value);
    let class = fields.word::<Class>("class", report).map(|it| it.value);
    let charge = fields.word::<Charge>("charge", report).map_or(Charge::Auto, |it| it.value);
    let window = window?;
    Some(TermsFile {
        requests_per_unit: requests_per_unit.map_or(0, |number| number.value),
        window_ms: window.value,
        window_at: window.at,
        algorithm,
        burst: burst.map(|burst| burst.value),
        scope: scope.map(|scope| scope.value),
        slack_permille,
        on_outage,
        class,
        charge,
    })
}

/// The window, from `unit` or from `window`.
fn window(fields: &MapFields, report: &mut ProblemSink<'_>) -> Option<Located<u64>> {
    const UNIT_HELP: &str =
        "write unit: second, minute, hour, day, week, month or year; or window: 15m for any other length";
    const WINDOW_HELP: &str = "write a duration from 1s to 366d, such as 90s, 15m, 1h30m or 30d";
    if !fields.mentions("window") || (fields.node("window").is_none() && fields.mentions("unit")) {
        let unit = fields.choice("unit", UNIT_HELP, report);
        if fields.is_spoilt("unit", unit.as_ref()) {
            return None;
        }
        let at = unit.as_ref().map(|unit| unit.at).or(fields.key_at("unit")).unwrap_or(fields.at);
        let text = unit.map_or_else(String::new, |unit| unit.value);
        let Some(unit) = Unit::from_word(&text) else {
            report.error(at, format!("invalid rate limit unit '{}'", excerpt(&text)), UNIT_HELP);
            return None;
        };
        return Some(Located { value: unit.window_ms(), at });
    }
    if let Some(at) = fields.key_at("unit").filter(|_| fields.node("unit").is_some()) {
        report.error(at, "both unit and window are given", "keep one of the two");
    }
    if fields.node("window").is_none() {
        let at = fields.key_at("window").unwrap_or(fields.at);
        if !fields.is_misspelt("window") {
            report.error(at, "window is empty", WINDOW_HELP);
        }
        return None;
    }
    let text = fields.choice("window", WINDOW_HELP, report)?;
    if let Some(unit) = calendar_unit(&text.value) {
        report.error(
            text.at,
            format!("window '{}' has the unit {unit}, whose length depends on the calendar", excerpt(&text.value)),
            "write days: 30d as unit: month has them, 365d as unit: year; minutes are written as m, as in 15m",
        );
        return None;
    }
    let Ok(duration) = text.value.parse::<humantime::Duration>() else {
        report.error(text.at, format!("window '{}' is not a duration", excerpt(&text.value)), WINDOW_HELP);
        return None;
    };
    let duration: Duration = duration.into();
    let window_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if !(WINDOW_MS_MIN..=WINDOW_MS_MAX).contains(&window_ms) {
        report.error(text.at, format!("window '{}' is out of range", excerpt(&text.value)), WINDOW_HELP);
        return None;
    }
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        report.error(text.at, format!("window '{}' is not whole milliseconds", excerpt(&text.value)), WINDOW_HELP);
        return None;
    }
    Some(Located { value: window_ms, at: text.at })
}

/// Finds a unit of months or years in a duration. humantime takes the mean length of the calendar's, but a month is 30
/// days here and a year 365.
fn calendar_unit(text: &str) -> Option<&str> {
    let mut units = text.split(|c: char| !c.is_alphabetic());
    units.find(|unit| matches!(*unit, "M" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years"))
}
