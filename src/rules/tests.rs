//! Rule files as operators write them: what good ones compile to, and what is said about wrong ones.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::rules::explain::explain;
use crate::rules::limit::RulePathStep;
use crate::rules::policy::{Algorithm, Charge, OnOutage, Scope};
use crate::rules::problem::Severity;

/// Collects the values that are left open.
#[derive(Default)]
struct Values(Vec<String>);

impl Identifier for Values {
    fn push(&mut self, value: &str) {
        self.0.push(value.to_owned());
    }
}

fn load_with(files: &[&str], options: Options) -> LoadResult {
    let sources: Vec<RuleText> = files
        .iter()
        .enumerate()
        .map(|(n, text)| RuleText { name: format!("{n}.yaml").into(), text: (*text).to_owned() })
        .collect();
    Ruleset::load(&sources, &options)
}

fn ruleset(text: &str) -> Ruleset {
    let loaded = load_with(&[text], Options::default());
    loaded.ruleset.unwrap_or_else(|| panic!("{:#?}", loaded.problems))
}

fn problems(files: &[&str], options: Options) -> Vec<String> {
    load_with(files, options)
        .problems
        .iter()
        .map(|it| format!("{}: {}: {}", it.place, it.severity, it.message))
        .collect()
}

fn entries(text: &str) -> Vec<DescriptorEntry<'_>> {
    text.split(',')
        .filter_map(|entry| entry.split_once('='))
        .map(|(key, value)| DescriptorEntry { key, value })
        .collect()
}

/// `rule id [open values]`, or `-`.
fn found(ruleset: &Ruleset, asked: &str) -> String {
    let mut values = Values::default();
    match ruleset.domain("d").unwrap().find(&entries(asked), &mut values) {
        Some(rule) => format!("{} {:?}", rule.id, values.0),
        None => "-".to_owned(),
    }
}

const TREE: &str = "
domain: d
descriptors:
  - key: path
    value: /exact
    rate_limit: {requests_per_unit: 1, unit: second}
  - {key: path, value: /white}
  - {key: path, value: /a*, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: path, value: /ab*, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: path, value: '*.png', share_threshold: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - key: path
    rate_limit: {requests_per_unit: 1, unit: second}
    descriptors:
      - {key: method, value: POST, rate_limit: {requests_per_unit: 1, unit: second}}
  - key: user
    value: bob
    descriptors:
      - {key: path, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: user, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: a_b, rate_limit: {requests_per_unit: 1, unit: second}}
";

#[test]
fn exact_beats_wildcard_beats_key_and_there_is_no_way_back() {
    let rules = ruleset(TREE);
    assert_eq!(found(&rules, "path=/exact"), "path=/exact []");
    assert_eq!(found(&rules, "path=/abc"), "path=/a* [\"/abc\"]", "the first declared wildcard");
    assert_eq!(found(&rules, "path=/x.png"), "path=*.png []", "shared");
    assert_eq!(found(&rules, "path=/other"), "path [\"/other\"]");
    assert_eq!(found(&rules, "path=/white"), "-", "a value without a limit is a white list");
    assert_eq!(found(&rules, "path="), "path [\"\"]");
    assert_eq!(found(&rules, "user=bob"), "-", "chosen, and without a limit of its own");
    assert_eq!(found(&rules, "user=alice"), "user [\"alice\"]");
    assert_eq!(found(&rules, "user=bob,path=/p"), "user=bob/path [\"/p\"]");
    assert_eq!(found(&rules, "user=alice,path=/p"), "-", "the key alone has nothing nested");
    assert_eq!(found(&rules, "path=/q,method=POST"), "path/method=POST [\"/q\"]");
    assert_eq!(found(&rules, "path=/q,method=GET"), "-");
    assert_eq!(found(&rules, "path=/a1,method=POST"), "-", "the wildcard has nothing nested");
    assert_eq!(found(&rules, "method=POST,path=/q"), "-", "order matters");
    assert_eq!(found(&rules, "PATH=/exact"), "-", "case matters");
    assert_eq!(found(&rules, "a=b"), "-", "keys and values are compared apart");
    assert_eq!(found(&rules, ""), "-");
}

#[test]
fn rule_ids_are_readable_and_never_the_same() {
    let rules = ruleset(
        "
domain: d
descriptors:
  - {key: path, value: /a, descriptors: [{key: b, rate_limit: {requests_per_unit: 1, unit: second}}]}
  - {key: path, value: /a/b, rate_limit: {requests_per_unit: 1, unit: second}}
",
    );
    assert_eq!(found(&rules, "path=/a,b=x"), "path=/a/b [\"x\"]");
    assert_eq!(found(&rules, "path=/a/b"), "path=%2Fa%2Fb []");
}

#[test]
fn a_sensitive_value_is_not_in_the_rule_id() {
    let rules = ruleset(
        "
domain: d
descriptors:
  - {key: k, value: hunter2, sensitive: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value: hunter3, sensitive: true, rate_limit: {requests_per_unit: 1, unit: second}}
",
    );
    let ids: Vec<String> = rules.domain("d").unwrap().rules().map(|rule| rule.id.to_string()).collect();
    assert!(ids.iter().all(|id| id.starts_with("k=#") && id.len() == 15), "{ids:?}");
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn every_field_of_a_limit_is_read() {
    let rules = ruleset(
        "
domain: d
descriptors:
  - key: k
    sensitive: true
    detailed_metric: yes
    metadata: {team: core, nested: {n: 1, list: [true, null, x]}}
    rate_limits:
      - {requests_per_unit: 1_000, unit: MINUTE, name: m, charge: always, class: cost, slack: 0.25}
      - {requests_per_unit: 5, window: 1h30m, algorithm: gcra, burst: 3, scope: local, on_outage: share}
",
    );
    let domain = rules.domain("d").unwrap();
    let rule = domain.rules().next().unwrap();
    let [first, second] = rule.limits() else { panic!() };
    assert_eq!((first.terms.limit, first.terms.window_ms, &*first.name), (1000, 60_000, "m"));
    assert_eq!((first.charge, first.policy.on_outage), (Charge::Always, OnOutage::Deny));
    assert_eq!(first.policy.slack_permille, Some(250));
    assert_eq!((second.terms.window_ms, second.terms.burst), (90 * 60_000, 3));
    assert_eq!((second.terms.algorithm, second.policy.scope), (Algorithm::Gcra, Some(Scope::Local)));
    assert!(
        !rule.rule_path[0].takes_value && domain.tree().sensitive_keys.contains_key("k"),
        "a sensitive value is not shown"
    );
    let metadata = serde_json::Value::Object((**rule.metadata.as_ref().unwrap()).clone());
    assert_eq!(metadata, serde_json::json!({"team": "core", "nested": {"n": 1.0, "list": [true, null, "x"]}}));
}

#[test]
fn anchors_and_merge_keys_work_as_in_the_go_service() {
    let rules = ruleset(
        "
domain: d
descriptors:
  - {key: a, rate_limit: &base {requests_per_unit: 5, unit: second}}
  - {key: b, rate_limit: {<<: *base, requests_per_unit: 7}}
  - {key: c, rate_limit: *base}
",
    );
    let limits: Vec<u32> = rules.domain("d").unwrap().rules().map(|rule| rule.limits()[0].terms.limit).collect();
    assert_eq!(limits, [5, 7, 5]);
}

#[test]
fn every_document_is_a_domain_and_all_errors_of_all_files_are_reported() {
    let rules = ruleset("domain: d\n---\ndomain: e\ndescriptors:\n---\n");
    assert_eq!(rules.domains().map(|domain| domain.name.to_string()).collect::<Vec<_>>(), ["d", "e"]);
    let said =
        problems(&["domain: ''\n---\nbad: [\n", "domain: x\ndescriptors:\n- kye: a\n- {}\n"], Options::default());
    let places: Vec<&str> = said.iter().map(|text| text.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["0.yaml:1:9", "0.yaml:3:6", "1.yaml:3:3", "1.yaml:4:3"], "{said:#?}");
}

#[test]
fn domains_merge_only_on_request_and_without_duplicates() {
    let (one, two) = ("domain: d\ndescriptors: [{key: a}]\n", "domain: d\ndescriptors: [{key: b}, {key: a}]\n");
    let said = problems(&[one, two], Options::default());
    assert!(
        said.iter().any(|text| text.contains("1.yaml:1:9: error: duplicate domain 'd' in config file")),
        "{said:?}"
    );
    let said = problems(&[one, two], Options { merge_domains: true, ..Options::default() });
    let errors: Vec<&String> = said.iter().filter(|text| text.contains(": error: ")).collect();
    assert_eq!(errors, ["1.yaml:2:25: error: duplicate descriptor composite key 'd.a'"]);
}

#[test]
fn lenient_loads_what_the_go_service_accepts_with_warnings() {
    let text = "
domain: d
descriptors:
  - key: a
    unit: second
    rate_limit: {requests_per_unit: 010, unit: second, shadow_mode: true, unit: minute}
  - {key: 'w*', rate_limit: {unlimited: true, requests_per_unit: 5}}
";
    assert!(load_with(&[text], Options::default()).ruleset.is_none());
    let loaded = load_with(&[text], Options { strictness: Strictness::Lenient, ..Options::default() });
    assert_eq!(
        loaded.problems.iter().filter(|it| it.severity == Severity::Warning).count(),
        6,
        "{:#?}",
        loaded.problems
    );
    let rules = loaded.ruleset.unwrap();
    let rule = rules.domain("d").unwrap().rules().next().unwrap();
    assert_eq!((rule.limits()[0].terms.limit, rule.limits()[0].terms.window_ms), (8, 60_000), "the last key wins");
}

#[test]
fn what_is_no_number_is_an_error_however_lenient() {
    let lenient = Options { strictness: Strictness::Lenient, ..Options::default() };
    let load = |limit: &str| {
        load_with(&[&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}, unit: second}}}}]\n")], lenient)
    };
    for nonsense in ["09", "-010", "0_9", "0777777777777", "08.5"] {
        let loaded = load(&format!("requests_per_unit: {nonsense}"));
        assert!(loaded.ruleset.is_none(), "{nonsense}: {:?}", loaded.problems);
    }
    assert!(load("requests_per_unit: 5, algorithm: gcra, burst: 00").ruleset.is_none(), "the least is 1");
    for (octal, meant) in [("0100", 64), ("0_7", 7), ("+010", 8), ("00", 0)] {
        let rules = load(&format!("requests_per_unit: {octal}")).ruleset.unwrap();
        assert_eq!(rules.domain("d").unwrap().rules().next().unwrap().limits()[0].terms.limit, meant, "{octal}");
    }
}

#[test]
fn a_number_beside_unlimited_is_worth_a_warning_and_a_unit_an_error() {
    let load = |limit: &str| {
        load_with(&[&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}]\n")], Options::default())
    };
    let loaded = load("unlimited: true, requests_per_unit: 1000");
    let said: Vec<String> = loaded.problems.iter().map(ToString::to_string).collect();
    assert!(said.len() == 1 && said[0].contains(": warning: should not specify requests_per_unit"), "{said:?}");
    assert!(loaded.ruleset.unwrap().domain("d").unwrap().rules().next().unwrap().is_unlimited());
    for refused in ["requests_per_unit: many", "requests_per_unit: 5, unit: second", "unit: second", "window: 5s"] {
        assert!(load(&format!("unlimited: true, {refused}")).ruleset.is_none(), "{refused}");
    }
}

#[test]
fn a_window_of_months_or_years_is_refused() {
    let load = |window: &str| {
        let limit = format!("requests_per_unit: 1, window: {window}");
        load_with(&[&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}]\n")], Options::default())
    };
    for window in ["5M", "1month", "2months", "1y", "1yr", "1year", "1h 5M"] {
        let loaded = load(window);
        assert!(loaded.ruleset.is_none(), "{window}");
        let said = loaded.problems[0].to_string();
        assert!(said.contains("depends on the calendar") && said.contains("write days: 30d"), "{said}");
    }
    for (window, ms) in [("5m", 300_000), ("5min", 300_000), ("1w", 604_800_000), ("30d", 2_592_000_000)] {
        let rules = load(window).ruleset.unwrap();
        assert_eq!(rules.domain("d").unwrap().rules().next().unwrap().limits()[0].terms.window_ms, ms, "{window}");
    }
}

/// The most bytes that a load holds at any time, besides the text.
fn held(text: &str) -> (LoadResult, u64) {
    let mut loaded = None;
    let measured = allocation_counter::measure(|| loaded = Some(load_with(&[text], Options::default())));
    (loaded.unwrap(), measured.bytes_max)
}

#[test]
fn aliases_do_not_multiply_problems() {
    let unknown: String = (0..900).map(|number| format!("unknown{number}: 1, ")).collect();
    let bomb = |aliases: usize| {
        let descriptors: String = (0..aliases).map(|number| format!("  - {{<<: *x, value: v{number}}}\n")).collect();
        format!("domain: d\ndescriptors:\n  - &x {{{unknown}key: k}}\n{descriptors}")
    };
    let (few, few_bytes) = held(&bomb(20));
    let (many, many_bytes) = held(&bomb(2000));
    for loaded in [few, many] {
        let errors = loaded.problems.iter().filter(|it| it.severity == Severity::Error).count();
        assert_eq!(errors, 900, "each once");
    }
    // Descriptors take some hundred bytes each, and each of 900 problems as many.
    assert!(many_bytes < few_bytes + 2000 * 10_000, "{many_bytes} against {few_bytes}");
}

#[test]
fn check_warns_of_what_loads_but_does_nothing() {
    let said = problems(
        &["
domain: d
descriptors:
  - {key: a, value: x*, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: a, value: xy*, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: b, value: '*', rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: b, rate_limit: {requests_per_unit: 1, unit: second, replaces: [{name: nobody}]}}
  - {key: c}
  - {key: e, shadow_mode: true, descriptors: [{key: f, rate_limit: {unit: second}}]}
  - {key: g, metadata: {on: x}, rate_limit: {requests_per_unit: 1, unit: second}}
"],
        Options::default(),
    );
    for expected in [
        "0.yaml:5:5: warning: the wildcard a=xy* is never reached: a=x* at 0.yaml:4:5",
        "0.yaml:7:5: warning: the rule b without a value is never reached",
        "0.yaml:7:81: warning: replaces 'nobody', but no limit of this domain has that name",
        "0.yaml:8:5: warning: the descriptor c limits nothing",
        "0.yaml:9:14: warning: shadow_mode does nothing here",
        "0.yaml:9:68: warning: the limit has no requests_per_unit",
        "0.yaml:10:25: warning: 'on' is a string here",
    ] {
        assert!(said.iter().any(|text| text.starts_with(expected)), "{expected} is not in {said:#?}");
    }
    assert_eq!(said.len(), 7, "{said:#?}");
}

#[test]
fn levels_beyond_what_requests_have_are_never_reached() {
    let mut text = "{key: k, rate_limit: {requests_per_unit: 1, unit: second}}".to_owned();
    (0..16).for_each(|_| text = format!("{{key: k, descriptors: [{text}]}}"));
    let said = problems(&[&format!("domain: d\ndescriptors: [{text}]\n")], Options::default());
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("it is the 17th level"), "{said:?}");
}

#[test]
fn messages_can_not_forge_lines() {
    let said = problems(&["domain: d\ndescriptors: [{key: \"a\\nb\\e[31m\"}]\n"], Options::default());
    assert!(said[0].contains("a\\nb\\u{1b}[31m"), "{said:?}");
}

/// CPU time of this thread, so that other load on the machine does not count. Where the system does not tell it, the
/// time that has passed.
fn spent(since: Instant) -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = schedstat.split(' ').next().and_then(|first| first.parse().ok()).filter(|time| *time > 0);
    nanoseconds.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

/// Neither many wildcards of one key nor many documents in one file cost the square of their number.
#[test]
fn ten_times_as_many_rules_do_not_take_a_hundred_times_as_long() {
    let began = Instant::now();
    let load = |count: usize| {
        let mut text = String::from("domain: d\ndescriptors:\n");
        for n in 0..count {
            let limit = "rate_limit: {requests_per_unit: 5, unit: minute}";
            text.push_str(&format!("  - {{key: k, value: 'v{n}*', {limit}}}\n"));
        }
        text.extend((0..count).map(|n| format!("---\ndomain: m{n}\n")));
        let started = spent(began);
        assert_eq!(ruleset(&text).rules_count(), count);
        spent(began) - started
    };
    // Linear is ten times as long, quadratic a hundred times. Neighbours who use up the caches can slow down one try,
    // not all.
    let is_linear = |_| {
        let (small, large) = (load(1500), load(15_000));
        println!("{large:?} against {small:?}");
        large < small * 40
    };
    assert!((0..5).any(is_linear));
}

#[test]
fn an_explanation_names_what_was_passed_over_and_why() {
    let rules = ruleset(TREE);
    let domain = rules.domain("d").unwrap();
    let asked = entries("path=/abc");
    let explanation = explain(domain, asked.clone());
    assert_eq!(&*explanation.rule.unwrap().id, "path=/a*");
    assert_eq!(explanation.identifier, ["/abc"]);
    let why = |path: &str| {
        let passed = &explanation.steps[0].passed_over;
        passed.iter().find(|it| it.path == path).unwrap_or_else(|| panic!("{passed:?}")).why.clone()
    };
    assert_eq!(why("path=/exact"), "another value");
    assert_eq!(why("path=/ab*"), "a wildcard declared before it matches");
    assert_eq!(why("path=*.png"), "the wildcard does not match");
    assert_eq!(why("path"), "a wildcard comes before the key alone");
    for (asked, outcome) in [
        ("path=/white", "has no rate_limit, so that what it matches is not limited"),
        ("user=bob", "has no rate_limit of its own, only nested descriptors"),
        ("user=alice,path=/x", "the descriptor has 2 entries, and user has no nested descriptors"),
        ("nothing=x", "the key nothing is not among those of this level (a_b, path, user)"),
        ("path=/q,method=GET", "no rule for the key method matches the value 'GET'"),
    ] {
        let asked = entries(asked);
        let explanation = explain(domain, asked.clone());
        assert!(explanation.rule.is_none() && explanation.outcome.contains(outcome), "{}", explanation.outcome);
    }
}

/// Small random trees over few keys and values, so that everything collides.
fn descriptors(depth: u32) -> BoxedStrategy<String> {
    let value = prop_oneof![
        3 => Just(String::new()),
        3 => "[xy]{1,2}".prop_map(|v| format!(", value: {v}")),
        2 => "[xy]{0,1}\\*[xy]{0,1}".prop_map(|v| format!(", value: '{v}'")),
    ];
    let limit = prop_oneof![Just(""), Just(", rate_limit: {requests_per_unit: 1, unit: second}")];
    let children = if depth == 0 { Just(String::new()).boxed() } else { descriptors(depth - 1) };
    let one = ("[ab]", value, limit, children)
        .prop_map(|(key, value, limit, children)| format!("{{key: {key}{value}{limit}{children}}}"));
    prop::collection::vec(one, 0..5)
        .prop_map(|all| if all.is_empty() { String::new() } else { format!(", descriptors: [{}]", all.join(", ")) })
        .boxed()
}

proptest! {
    #[test]
    fn explaining_agrees_with_matching(
        tree in descriptors(2),
        asked in prop::collection::vec(("[abc]", "[xy]{0,2}"), 0..4),
    ) {
        let loaded = load_with(&[&format!("{{domain: d{tree}}}")], Options::default());
        // Duplicates are refused; then there is nothing to compare.
        if let Some(rules) = loaded.ruleset {
            let asked: Vec<DescriptorEntry<'_>> = asked.iter().map(|(key, value)| DescriptorEntry { key, value }).collect();
            let domain = rules.domain("d").unwrap();
            let mut values = Values::default();
            let rule = domain.find(&asked, &mut values);
            let explanation = explain(domain, asked.clone());
            prop_assert_eq!(rule.map(|rule| &rule.id), explanation.rule.map(|rule| &rule.id));
            if rule.is_some() {
                prop_assert_eq!(values.0, explanation.identifier);
            }
        }
    }

    /// Whatever stands in a file, the answer is a ruleset or errors, never a panic.
    #[test]
    fn any_text_gets_an_answer(text in "[-a-z:{}\\[\\]\"'*&#|>%!\n\t ,0-9é]{0,200}") {
        let loaded = load_with(&[&text], Options::default());
        let has_error = loaded.problems.iter().any(|it| it.severity == Severity::Error);
        prop_assert_eq!(loaded.ruleset.is_none(), has_error);
    }

    #[test]
    fn any_rearranged_rule_file_gets_an_answer(
        cuts in prop::collection::vec((0usize..2000, 0usize..60), 0..6),
    ) {
        let mut text = TREE.to_owned();
        for (at, length) in cuts {
            let at = at % text.len().max(1);
            let end = (at + length).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                let cut: String = text.drain(at..end).collect();
                text.insert_str(text.len() / 2, &cut);
            }
        }
        load_with(&[&text], Options::default());
    }
}

#[test]
fn a_trail_says_which_values_metrics_name() {
    let rules = ruleset(
        "
domain: d
descriptors:
  - key: a
    value_to_metric: true
    descriptors:
      - {key: b, value: x, rate_limit: {requests_per_unit: 1, unit: second}}
      - {key: c, rate_limit: {requests_per_unit: 1, unit: second}}
      - {key: e, detailed_metric: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - key: p
    value: x*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - {key: q, value: y*, value_to_metric: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: s, value: hidden, sensitive: true, rate_limit: {requests_per_unit: 1, unit: second}}
",
    );
    let trails: Vec<String> = rules
        .domain("d")
        .unwrap()
        .rules()
        .map(|rule| {
            let step = |step: &RulePathStep| format!("{}{}", step.written, if step.takes_value { "=" } else { "" });
            rule.rule_path.iter().map(step).collect::<Vec<_>>().join(".")
        })
        .collect();
    assert_eq!(trails[..4], ["a=.b_x", "a=.c", "a=.e=", "p_x*.q_y*="]);
    assert!(trails[4].starts_with("s_#") && !trails[4].contains("hidden"), "{}", trails[4]);
}

#[test]
fn no_message_says_a_sensitive_value() {
    let loaded = load_with(
        &["
domain: d
descriptors:
  - {key: k, value: hush-1, sensitive: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value: hush-1, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value: 'hush-2*', rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value: 'hush-2*x', rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value: hush-3, sensitive: true, share_threshold: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value: hush-4, share_threshold: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value: 42.4242, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: k, value:hush-5, rate_limit: {requests_per_unit: 1, unit: second}}
  - key: other
    descriptors:
      - {key: k, value_to_metric: true, rate_limit: {requests_per_unit: 1, unit: second}}
"],
        Options::default(),
    );
    assert_eq!(loaded.problems.len(), 6, "{:?}", loaded.problems);
    for problem in &loaded.problems {
        let said = problem.to_string();
        assert!(!said.contains("hush") && !said.contains("4242"), "{said}");
    }
}
