//! EXTRA_TAGS against the labels that a process really has.

use std::collections::BTreeSet;

use tidegate::observe::tags::Tags;

use crate::support::harness::{Service, answer, ask_one};

const RULES: &str = "
domain: d
descriptors:
  - key: a
    rate_limit: {requests_per_unit: 5, unit: hour}
    descriptors:
      - {key: b, rate_limit: {requests_per_unit: 5, unit: hour}}
";

/// The names of the labels in a line, which stand before `=\"`.
fn names(line: &str) -> Vec<&str> {
    let parts: Vec<&str> = line.split("=\"").collect();
    parts[..parts.len() - 1].iter().filter_map(|part| part.rsplit(['{', ',']).next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_label_of_a_scrape_can_be_set_twice() {
    // Nobody has to answer there: every metric is written all the same.
    let everything = [
        ("REDIS_URL", "127.0.0.1:1"),
        ("STRICT_REDIS_URL", "127.0.0.1:1"),
        ("MYSQL_URL", "mysql://u:p@127.0.0.1:1/d"),
        ("REGION", "eu"),
        ("TIDEGATE_REGIONS", "eu,us"),
        ("EXTRA_TAGS", "stage:prod"),
    ];
    let service = Service::start_with(RULES, &[], &everything);
    let mut client = service.client().await;
    answer(&mut client, ask_one("a=x,b=y")).await;
    let page = service.page("/metrics");
    let mut all = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let names = names(line);
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len(), "{line}");
        assert!(distinct.contains("stage"), "{line}");
        all.extend(distinct);
    }
    for expected in ["breaker", "class", "code", "key2", "layer", "le", "operation", "policy", "reason", "turn"] {
        assert!(all.contains(expected), "no {expected} in {all:?}");
    }
    for name in all.into_iter().filter(|name| *name != "stage") {
        assert!(format!("{name}:x").parse::<Tags>().is_err(), "{name} would be there twice");
    }
}
