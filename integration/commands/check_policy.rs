//! `tidegate check --show-policy` as operators type it, on the rules that come along and on others.

use serde_json::{Value, json};

use crate::support::harness::{rule_file, run, tidegate};

/// The columns of a row of the table, apart by two spaces or more.
fn columns(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// The row of a rule in the domain `policy`.
fn row<'l>(table: &'l str, rule: &str) -> Vec<&'l str> {
    let rows = table.lines().map(columns).filter(|row| row.first() == Some(&"policy") && row.get(1) == Some(&rule));
    let [row] = <[Vec<&str>; 1]>::try_from(rows.collect::<Vec<_>>()).expect("one row");
    row[2..].to_vec()
}

#[test]
fn the_policies_of_the_examples_are_shown_as_their_comments_say() {
    let ran = run(&mut tidegate(&["check", "--rules", "config", "--show-policy"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let text = &ran.stdout;
    let head = ["domain", "rule", "limit", "algorithm", "class", "scope", "on_outage", "slack"];
    assert_eq!(columns(text.lines().next().unwrap()), head, "{text}");
    let of = |rule: &str| row(text, rule);
    let login = ["5 per minute", "exact_window", "security", "strict (class)", "deny (class)", "-"];
    assert_eq!(of("login_ip"), login, "{text}");
    assert_eq!(of("tier=free")[2..5], ["cost", "widest (class)", "deny (class)"]);
    assert_eq!(of("tier=paid")[2..5], ["cost", "widest (class)", "allow"]);
    assert_eq!(of("page_user")[2..5], ["comfort", "widest (class)", "local (class)"]);
    assert_eq!(of("search_user")[2..6], ["-", "regional", "share", "0.05"]);
    assert_eq!(of("sms_sender")[2..6], ["-", "split", "deny", "0"]);
    assert_eq!(of("upload_client")[2..5], ["-", "local", "local"]);

    // Those without a policy of their own, and those that are no plain limit.
    let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {text}"));
    let unlimited = columns(line("unlimited"));
    assert_eq!(unlimited[1..4], ["plan_override=internal", "unlimited", "-"]);
    assert_eq!(unlimited.last(), Some(&"replaces plan"));
    assert!(line("user_agent").ends_with("shadow_mode: never denies"), "{text}");
    assert!(line("quota_user").ends_with("quota_mode"), "{text}");
    assert!(line("(plan)").ends_with("replaced by plan_override=internal"), "{text}");
    assert_eq!(columns(line("(quarter_hour)"))[2..6], ["1000 per 15m (quarter_hour)", "sliding_window", "-", "widest"]);
    assert_eq!(columns(line("webhook_target"))[2..6], ["10 per second, burst 5", "gcra", "-", "regional (algorithm)"]);

    let widest = line("widest: ");
    for part in ["global with MYSQL_URL", "regional with REDIS_URL", "otherwise local"] {
        assert!(widest.contains(part), "{widest}");
    }
    let without = run(&mut tidegate(&["check", "--rules", "config"])).stdout;
    assert!(text.ends_with(&format!("\n{without}")), "the verdict comes last, as without the table: {text}");
}

#[test]
fn programs_get_the_same_facts() {
    let ran = run(&mut tidegate(&["check", "--rules", "config", "--show-policy", "--output", "json"]));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let policies = document["policies"].as_array().expect("an array");
    let of = |rule: &str| policies.iter().find(|it| it["rule"] == rule).unwrap_or_else(|| panic!("{rule}: {document}"));
    let login = of("login_ip");
    assert_eq!((&login["domain"], &login["class"]), (&json!("policy"), &json!("security")));
    assert_eq!((&login["scope"], &login["scope_from"]), (&json!("strict"), &json!("class")));
    assert_eq!((&login["on_outage"], &login["on_outage_from"]), (&json!("deny"), &json!("class")));
    assert_eq!((&login["requests_per_unit"], &login["window_ms"]), (&json!(5), &json!(60_000)));
    let paid = of("tier=paid");
    assert_eq!((&paid["on_outage"], &paid["on_outage_from"]), (&json!("allow"), &json!("written")));
    let search = of("search_user");
    assert_eq!((&search["slack"], &search["class"], &login["slack"]), (&json!(0.05), &Value::Null, &Value::Null));
    assert_eq!(
        (&of("remote_address")["scope"], &of("remote_address")["scope_from"]),
        (&json!("widest"), &json!("default"))
    );
    let unlimited = of("plan_override=internal");
    assert_eq!((&unlimited["unlimited"], &unlimited["scope"]), (&json!(true), &Value::Null));
    assert_eq!(
        (&unlimited["replaces"], &of("plan")["replaced_by"]),
        (&json!(["plan"]), &json!(["plan_override=internal"]))
    );

    let plain = run(&mut tidegate(&["check", "--rules", "config", "--output", "json"]));
    let plain: Value = serde_json::from_str(&plain.stdout).expect("JSON");
    assert_eq!(plain.get("policies"), None, "only when it is asked for");
}

#[test]
fn rules_that_do_not_load_have_problems_and_no_table() {
    const RULES: &str = "\
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1, unit: minute, class: security}}
  - {key: b, rate_limit: {requests_per_unit: 1, unit: minute, scope: galactic}}
";
    let (_directory, file) = rule_file(RULES);
    let ran = run(&mut tidegate(&["check", "--rules", &file, "--show-policy"]));
    let plain = run(&mut tidegate(&["check", "--rules", &file]));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("galactic"), "{}", ran.stdout);
    assert_eq!(ran.stdout, plain.stdout);
    let ran = run(&mut tidegate(&["check", "--rules", &file, "--show-policy", "--output", "json"]));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((ran.code, &document["policies"]), (Some(1), &json!([])));

    // Warnings do not keep it from being shown.
    let (_directory, file) = rule_file("domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: minute}}\n");
    let ran = run(&mut tidegate(&["check", "--rules", &file, "--show-policy"]));
    assert_eq!(ran.code, Some(0));
    let warning = ran.stdout.find("warning: ").expect("a warning");
    assert!(warning < ran.stdout.find("0 per minute").expect("a table"), "{}", ran.stdout);
}

#[test]
fn a_number_of_processes_shows_which_limits_ask_redis_for_every_request() {
    const RULES: &str = "\
domain: policy
descriptors:
  - key: ip
    rate_limits:
      - {requests_per_unit: 10, unit: second}
      - {requests_per_unit: 1000, unit: minute}
  - {key: wide, rate_limit: {requests_per_unit: 10, unit: second, slack: 0.3}}
  - {key: tiny, rate_limit: {requests_per_unit: 2, unit: second}}
  - {key: never, rate_limit: {requests_per_unit: 100, unit: second, slack: 0}}
  - {key: part, rate_limit: {requests_per_unit: 100, unit: second, scope: split}}
  - {key: exact, rate_limit: {requests_per_unit: 100, unit: second, scope: strict}}
  - {key: bucket, rate_limit: {requests_per_unit: 10, unit: second, algorithm: gcra, burst: 60}}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 10, unit: second}}
  - {key: here, rate_limit: {requests_per_unit: 10, unit: second, scope: local}}
";
    let (_directory, file) = rule_file(RULES);
    let checked = |flags: &[&str]| run(tidegate(&["check", "--rules", &file]).args(flags));
    let text = checked(&["--show-policy", "--processes", "3"]).stdout;
    assert_eq!(columns(text.lines().next().unwrap()).last(), Some(&"decided by"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("policy")).collect();
    let decided = [
        "asks Redis: slack 10 % of 10 over 3 processes is below one hit; slack >= 0.3 opens it",
        "memory, up to 33 pending a process",
        "memory, up to 1 pending a process",
        "asks Redis: slack 10 % of 2 over 3 processes is below one hit; no slack opens 2 over 3 processes",
        "asks Redis: the slack is 0; slack >= 0.03 opens it",
        "asks Redis: the slack is 0; slack >= 0.03 opens it",
        "asks Redis: strict",
        "memory, up to 2 pending a process",
        "memory",
        "memory",
    ];
    assert_eq!(rows.len(), decided.len(), "{text}");
    for (row, decided) in rows.iter().zip(decided) {
        assert!(columns(row).contains(&decided), "no '{decided}' in {row}");
    }
    assert_eq!(checked(&["--processes", "3"]).stdout, text, "who asks for a fleet asks for the table");
    let more = checked(&["--processes", "3", "--slack", "0.5"]).stdout;
    assert!(more.lines().any(|line| columns(line).contains(&"memory, up to 1 pending a process")), "{more}");

    let ran = checked(&["--processes", "3", "--output", "json"]);
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let first = &document["policies"][0]["decided_by"];
    assert_eq!((&first["by"], &first["is_closed"]), (&json!("origin"), &json!(true)), "{first}");
    assert_eq!((&first["credit"], &first["opening_slack"]), (&json!(0), &json!(0.3)), "{first}");
    assert_eq!(document["policies"][1]["decided_by"]["credit"], json!(33));

    let without = checked(&["--show-policy"]).stdout;
    assert!(!without.contains("decided by") && without.contains("--processes N says"), "{without}");
    assert_eq!(checked(&["--processes", "0"]).code, Some(2), "there is at least one");

    let explained = |flags: &[&str]| {
        run(tidegate(&["explain", "--rules", &file, "--domain", "policy", "ip=1.2.3.4"]).args(flags)).stdout
    };
    let text = explained(&["--processes", "3"]);
    assert!(text.contains("10 per second, decided by: asks Redis: slack 10 % of 10 over 3"), "{text}");
    assert!(text.contains("1000 per minute, decided by: memory, up to 33 pending a process"), "{text}");
    assert!(!explained(&[]).contains("decided by"));
    let document: Value = serde_json::from_str(&explained(&["--processes", "3", "--output", "json"])).expect("JSON");
    assert_eq!(document[0]["decided_by"][0]["opening_slack"], json!(0.3), "{document}");
}
