//! `tidegate gen`: what it prints, a real Envoy takes, and with it every rule is reached.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tidegate::cli::generate::plan::{GatewayPlan, Wishes};
use tidegate::cli::generate::source::ValueSource;
use tidegate::request::DescriptorEntry;
use tidegate::rules::reachable::{Expect, ReachingEntries, expected};
use tidegate::rules::tree::Identifier;
use tidegate::rules::{Domain, Options, Ruleset};
use tidegate::sources::files::{self, Location};

use crate::support::envoy_proxy::Envoy;
use crate::support::harness::{PATIENCE, Ran, Service, http_over, rule_file, run, tidegate, until};
use crate::support::upstream::Upstream;

fn generated(args: &[&str]) -> Ran {
    run(&mut tidegate(&[&["gen"], args].concat()))
}

fn printed(args: &[&str]) -> String {
    let ran = generated(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{args:?}");
    ran.stdout
}

/// A request that has what leads to a rule, and whatever the other rules say.
#[derive(Debug, Default)]
struct Ask {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
}

impl Ask {
    fn for_rule(expected: &ReachingEntries<'_>, plan: &GatewayPlan) -> Ask {
        let mut ask = Ask { method: "GET".into(), path: "/".into(), ..Ask::default() };
        for (key, expect) in &expected.entries {
            let value = match expect {
                Expect::Value(value) => (*value).to_owned(),
                Expect::Pattern(pattern) => pattern.replace('*', "some"),
                Expect::Any => "any".to_owned(),
            };
            match &plan.sources[*key] {
                ValueSource::Path if *expect != Expect::Any => ask.path = value,
                ValueSource::Header { name } if name == ":method" => ask.method = value,
                ValueSource::Header { name } if !name.starts_with(':') => ask.headers.push((name.clone(), value)),
                ValueSource::Query { name } => ask.query = format!("{name}={value}"),
                ValueSource::Address if *expect != Expect::Any => ask.headers.push(("x-forwarded-for".into(), value)),
                ValueSource::Cel { .. } | ValueSource::Metadata { .. } => ask.headers.push(("x-of-user".into(), value)),
                // What every request has.
                _ => {}
            }
        }
        ask
    }

    fn send(&self, envoy: &Envoy) {
        let headers: Vec<(&str, &str)> = self.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        // A client that varies its query gets no other count.
        let path = format!("{}?v=1&{}", self.path, self.query);
        let answer = http_over(envoy.connect(), &self.method, &path, &headers, "");
        assert!([200, 429].contains(&answer.status), "{self:?}: {answer:?}");
    }
}

/// Only which rule it is matters here.
struct Nobody;

impl Identifier for Nobody {
    fn push(&mut self, _: &str) {}
}

/// The rules that the descriptors of an access log meet.
fn reached(domain: &Domain, log: &str) -> BTreeSet<String> {
    let mut rules = BTreeSet::new();
    for line in log.lines() {
        let descriptors: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for descriptor in descriptors.as_array().expect("a list") {
            let texts = descriptor["entries"].as_array().expect("a list").iter();
            let pairs: Vec<(&str, &str)> =
                texts.map(|text| text.as_str().and_then(|text| text.split_once('=')).expect("key=value")).collect();
            let entries: Vec<DescriptorEntry<'_>> =
                pairs.iter().map(|(key, value)| DescriptorEntry { key, value }).collect();
            rules.extend(domain.find(&entries, &mut Nobody).map(|rule| rule.id.to_string()));
            let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
            let is_expected =
                |it: &ReachingEntries<'_>| it.entries.iter().map(|(key, _)| *key).eq(keys.iter().copied());
            assert!(expected(domain).iter().any(is_expected), "no rule waits for {keys:?}");
        }
    }
    rules
}

/// Generates a bootstrap, runs it, asks for every rule, and looks at what Envoy sent. `more` goes before the filter.
fn assert_reaches_every_rule(rules: &Path, name: &str, maps: &[&str], more: &str) {
    let loaded = files::load(&Location::Path(rules.to_owned()), &Options::default());
    let ruleset: Ruleset = loaded.ruleset.expect("the rules are good");
    let domain = ruleset.domain(name).expect("the domain is there");
    let sources = maps.iter().map(|map| ValueSource::read(map).unwrap()).collect();
    let plan = GatewayPlan::new(domain, Wishes { sources, ..Wishes::default() }).unwrap();

    let upstream = Upstream::start();
    let rules = rules.to_str().expect("a path of ASCII");
    let service = Service::of({
        let mut command = tidegate(&["serve", "--rules", rules, "--port", "0", "--grpc-port", "0", "--host"]);
        command.args(["127.0.0.1", "--grpc-host", "127.0.0.1"]).env("RESPONSE_DYNAMIC_METADATA", "true");
        command
    });
    let [to_service, to_upstream] = [service.grpc, upstream.address].map(|address| address.to_string());
    let mut args = vec!["envoy", "--rules", rules, "--domain", name, "--bootstrap", "--timeout", "10s"];
    args.extend(["--service", &to_service, "--upstream", &to_upstream, "--listen", "0", "--trusted-hops", "1"]);
    args.extend(maps.iter().flat_map(|map| ["--map", map]));
    let text = printed(&args);
    Envoy::validate(&text).unwrap_or_else(|said| panic!("{said}\n{text}"));

    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let access_log = format!(
        "stat_prefix: front
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {}
              log_format: {{text_format_source: {{inline_string: \"%DYNAMIC_METADATA(envoy.filters.http.ratelimit:descriptors)%\\n\"}}}}",
        log.display()
    );
    let watched = text.replace("stat_prefix: front", &access_log);
    let watched = watched.replace("          http_filters:\n", &format!("          http_filters:\n{more}"));
    let envoy = Envoy::start(&watched);
    let all = expected(domain);
    all.iter().for_each(|it| Ask::for_rule(it, &plan).send(&envoy));
    let lines = until(PATIENCE, "every request is in the log", || {
        let lines = std::fs::read_to_string(&log).ok()?;
        (lines.lines().count() == all.len()).then_some(lines)
    });
    let wanted: BTreeSet<String> = all.iter().map(|it| it.rule.id.to_string()).collect();
    assert_eq!(reached(domain, &lines), wanted);
}

#[test]
fn every_rule_of_the_examples_is_reached() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    assert_reaches_every_rule(&config, "edge", &[], "");
    assert_reaches_every_rule(&config, "api", &["api_key=header:x-api-key"], "");
    assert_reaches_every_rule(&config, "policy", &["login_ip=address", "tier=value"], "");
}

#[test]
fn every_source_of_a_value_works() {
    const LIMIT: &str = "rate_limit: {requests_per_unit: 100, unit: hour}";
    let rules = format!(
        "
domain: d
descriptors:
  - {{key: masked_remote_address, {LIMIT}}}
  - {{key: remote_address, value: 203.0.113.9, {LIMIT}}}
  - {{key: client, value: 203.0.113.8, {LIMIT}}}
  - {{key: host, {LIMIT}, descriptors: [{{key: verb, value: PUT, {LIMIT}}}]}}
  - {{key: page, value: '7', {LIMIT}}}
  - {{key: user, value: alice, {LIMIT}}}
  - {{key: team, value: bob, {LIMIT}}}
  - {{key: destination_cluster, value: upstream, {LIMIT}}}
  - {{key: source_cluster, {LIMIT}}}
  - {{key: generic_key, value: 'a: {{b}} #', {LIMIT}}}
  - {{key: area, value: shop, descriptors: [{{key: path, value: /shop/*, {LIMIT}}}]}}
  - {{key: area, value: blog, {LIMIT}}}
"
    );
    let (_directory, file) = rule_file(&rules);
    let maps = [
        "client=address",
        "verb=method",
        "page=query:p",
        "user=cel:request.headers['x-of-user']",
        "team=metadata:of.test:team",
        "area=value",
    ];
    let metadata = "          - name: envoy.filters.http.header_to_metadata
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules:
              - {header: x-of-user, on_header_present: {metadata_namespace: of.test, key: team, type: STRING}}
";
    assert_reaches_every_rule(Path::new(&file), "d", &maps, metadata);
}

#[test]
fn no_text_of_a_rule_is_taken_for_something_else() {
    let evil = "x\\n- actions: [{generic_key: {descriptor_value: evil}}]\\n#\\u2028\\r\\e";
    let limit = "rate_limit: {requests_per_unit: 1, unit: day, class: cost}";
    let words = ["yes", "on", "Y", "0644", "1_000", "%REQ(x)%", "{{", "ä"];
    let rules: String = words
        .iter()
        .chain([&evil])
        .map(|word| format!("  - {{key: generic_key, value: \"{word}\", {limit}}}\n"))
        .collect();
    let (_directory, file) = rule_file(&format!("domain: \"d\\n#\"\ndescriptors:\n{rules}"));
    let args = ["envoy", "--rules", &file, "--domain", "d\n#", "--bootstrap"];
    let text = printed(&args);
    Envoy::validate(&text).unwrap_or_else(|said| panic!("{said}\n{text}"));
    let json: Value = serde_json::from_str(&printed(&[&args[..], &["--output", "json"]].concat())).unwrap();
    assert_eq!(serde_yaml::from_str::<Value>(&text).unwrap(), json);
    let host = &json["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
        ["virtual_hosts"][0];
    let limits = host["rate_limits"].as_array().expect("a list");
    assert_eq!(limits.len(), words.len() + 1, "{limits:#?}");
    for (word, limit) in words.iter().zip(limits) {
        assert_eq!(limit["actions"][0]["generic_key"]["descriptor_value"], *word);
    }
}

#[test]
fn json_says_the_same() {
    for target in ["envoy", "istio"] {
        let args = [target, "--domain", "edge"];
        let text = printed(&args);
        let json: Value = serde_json::from_str(&printed(&[&args[..], &["--output", "json"]].concat())).unwrap();
        let documents: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
            .map(|document| serde::Deserialize::deserialize(document).unwrap())
            .collect();
        match documents.as_slice() {
            [document] => assert_eq!(&json, document),
            documents => assert_eq!(json["items"].as_array().unwrap(), documents),
        }
    }
}

#[test]
fn what_can_not_be_generated_is_said() {
    let (_directory, file) = rule_file(
        "domain: d\ndescriptors:\n  - {key: header_match, value: x, rate_limit: {requests_per_unit: 1, unit: day}}\n",
    );
    for (args, part) in [
        (&["envoy", "--rules", &file, "--domain", "d"][..], "rules.yaml:3:5: nobody but you knows"),
        (&["envoy", "--rules", &file, "--domain", "e"], "no domain 'e' in the rules: there are d"),
        (&["envoy", "--domain", "edge", "--map", "path=cookie:x"], "'cookie:x' is no source"),
        (&["envoy", "--domain", "edge", "--map", "nobody=path"], "--map nobody: no rule"),
        (&["envoy", "--domain", "edge", "--map", "path=path", "--map", "path=host"], "--map path is given twice"),
        (&["envoy", "--domain", "edge", "--service", "here"], "HOST:PORT or unix:/PATH"),
        (&["envoy", "--domain", "edge", "--listen", "80"], "--bootstrap"),
        (&["istio", "--domain", "edge", "--context", "sidecar"], "--selector app=NAME"),
        (&["istio", "--domain", "edge", "--service", "unix:/a"], "--service HOST:PORT"),
        (&["istio", "--domain", "edge", "--selector", "app"], "LABEL=VALUE"),
    ] {
        let ran = generated(args);
        assert!(ran.code != Some(0) && ran.stderr.contains(part), "{args:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}
