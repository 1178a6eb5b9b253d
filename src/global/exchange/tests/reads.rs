//! What is read, and when: what changes, and beside it everything or the rows of some rules, as rarely as possible.

use super::*;

/// The rules that a reading of some rules is of.
fn is_of_rules(reading: &ReadScope) -> bool {
    matches!(reading, ReadScope::Rules { .. })
}

/// Imports second by second until a pass begins, for at most so long, and says what that is and when.
fn next_pass(process: &mut Process, rows: &Rows, seconds: u64) -> Option<(ReadScope, u64)> {
    (1..=seconds).find_map(|second| {
        let reading = process.import(rows);
        (!matches!(reading, ReadScope::Since { .. })).then_some((reading, second))
    })
}

/// From where what has changed is read.
fn since(reading: &ReadScope) -> u64 {
    let ReadScope::Since { ms } = reading else { panic!("{reading:?}") };
    *ms
}

impl Process {
    /// A reading that gets no answer in its time.
    fn fail(&mut self) -> ReadScope {
        self.pass(1000);
        let (reading, _) = self.exchange.reading(self.now);
        self.pass(2000);
        self.exchange.not_imported(&reading, self.now);
        reading
    }

    fn full_reads(&self) -> u64 {
        count(&self.exchange.counts.full_reads)
    }
}

#[test]
fn a_failed_reading_has_the_next_one_look_further_back_and_leads_to_no_full_one() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    assert_eq!(process.import(&rows), ALL);
    assert!(matches!(process.import(&rows), ReadScope::Since { .. }));
    let heard_ms = process.now.wall_ms;
    let failed: Vec<u64> = (0..3).map(|_| since(&process.fail())).collect();
    assert_eq!(failed, [heard_ms - 5000; 3], "it begins where the last one has ended");
    rows.commit("b", &[row_of_b("x", 95, process.now)], heard_ms + 1000);
    // A statement that was dated before the failure and is committed some time after the first reading that succeeds.
    let late_ms = heard_ms - 4000;
    assert_eq!(since(&process.import(&rows)), heard_ms - 5000);
    assert!(!process.ask("x", 6));
    rows.commit("b", &[row_of_b("y", 95, process.now)], late_ms);
    let looks: Vec<u64> = (0..20).map(|_| since(&process.import(&rows))).collect();
    let back = looks.iter().filter(|ms| **ms == heard_ms - 5000).count();
    assert_eq!(back, 1, "once more: {looks:?}");
    assert!(!process.ask("y", 6));
    assert_eq!(process.full_reads(), 1);
}

#[test]
fn a_process_that_was_cut_off_for_long_follows_what_changes_and_reads_everything_later() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    assert!(process.ask("x", 1) && process.ask("y", 1));
    assert_eq!(process.import(&rows), ALL);
    let mut failed = 0;
    while failed < 40 {
        process.fail();
        failed += 1;
    }
    // Long ago, and just now.
    rows.commit("b", &[row_of_b("x", 95, process.now)], process.now.wall_ms - 70_000);
    rows.commit("b", &[row_of_b("z", 95, process.now)], process.now.wall_ms);
    let failed_ms = process.now.wall_ms;
    assert_eq!(since(&process.import(&rows)), failed_ms - 5000, "what was told since it was heard of last");
    assert!(!process.ask("z", 6));
    // What is asked for is looked up, so nobody waits.
    assert!(process.ask("x", 1));
    process.seek(&rows);
    assert!(!process.ask("x", 4), "2 here and 95 there");
    let (reading, seconds) = next_pass(&mut process, &rows, 40).expect("everything is read");
    assert_eq!((reading, process.full_reads()), (ALL, 2));
    assert!(seconds <= 31, "{seconds}");
    // It is the only one, and then nothing is looked up any more.
    assert!(process.ask("new", 1));
    assert_eq!(process.seek(&rows), 0);
    assert!(next_pass(&mut process, &rows, 500).is_none());
}

#[test]
fn a_pass_that_fails_is_tried_again_some_time_later_from_where_it_was() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &ten_of_b(process.now), process.now.wall_ms);
    assert_eq!(process.import_part(&rows, 4), ALL);
    process.pass(30_000);
    let reading = process.fail();
    assert!(matches!(reading, ReadScope::All { from: Some(_) }));
    assert!(matches!(process.import_part(&rows, 10), ReadScope::Since { .. }));
    let (again, seconds) = next_pass(&mut process, &rows, 40).unwrap();
    assert_eq!(again, reading);
    assert!(seconds <= 30, "{seconds}");
}

#[test]
fn a_process_that_starts_reads_at_once_until_it_has() {
    let mut process = Process::new(100, rules(HOUR));
    for _ in 0..5 {
        assert_eq!(process.fail(), ALL);
    }
    assert_eq!(process.import(&Rows::default()), ALL);
}

#[test]
fn a_full_reading_that_is_asked_for_during_another_one_follows_it() {
    let mut process = Process::new(100, rules(HOUR));
    let rows = Rows::default();
    process.import(&rows);
    process.exchange.doubt();
    let (reading, hearing) = process.exchange.reading(process.now);
    process.exchange.doubt();
    process.exchange.imported(hearing, &reading, process.now.wall_ms, process.now);
    assert_eq!(process.import(&rows), ALL);
}

#[test]
fn rules_that_say_the_same_have_nothing_read() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &[row_of_b("x", 95, process.now)], process.now.wall_ms);
    process.import(&rows);
    for limit in [HOUR, "rate_limit: {requests_per_unit: 200, unit: hour}", HOUR] {
        process.reload(rules(limit));
        assert!(next_pass(&mut process, &rows, 60).is_none(), "{limit}");
        assert!(process.ask("new", 0));
        assert_eq!(process.seek(&rows), 0, "nothing is missing");
    }
    assert!(!process.ask("x", 6));
    assert_eq!((process.full_reads(), count(&process.exchange.counts.rule_reads)), (1, 0));
}

/// Rules `k` and `o`.
fn both() -> Ruleset {
    let text = format!("{{domain: d, descriptors: [{{key: k, {HOUR}}}, {{key: o, {HOUR}}}]}}");
    Ruleset::load(&[RuleText { name: "t".into(), text }], &Options::default()).ruleset.unwrap()
}

#[test]
fn of_a_rule_that_becomes_known_its_rows_are_read_and_no_others() {
    let other = "{domain: d, descriptors: [{key: o, rate_limit: {requests_per_unit: 100, unit: hour}}]}";
    let other = Ruleset::load(&[RuleText { name: "t".into(), text: other.into() }], &Options::default());
    let mut process = Process::new(100, other.ruleset.unwrap());
    let mut rows = Rows::default();
    let mut foreign = row_of_b("x", 95, process.now);
    foreign.cell.namespace = (*b"o").into();
    let all = [row_of_b("x", 95, process.now), row_of_b("y", 95, process.now), foreign];
    rows.commit("b", &all, process.now.wall_ms);
    process.import(&rows);
    process.pass(10_000);
    process.import(&rows);
    let before = count(&process.exchange.counts.imported_rows);
    process.reload(both());
    // Whoever asks meanwhile does not wait for it.
    assert!(process.ask("x", 1));
    process.seek(&rows);
    assert!(!process.ask("x", 5), "1 here and 95 there");
    let (reading, seconds) = next_pass(&mut process, &rows, 40).unwrap();
    assert!(is_of_rules(&reading) && seconds <= 31, "{reading:?} after {seconds} s");
    assert!(!process.ask("y", 6));
    let read = count(&process.exchange.counts.imported_rows) - before;
    assert_eq!(read, 1 + 2, "one was looked up");
    assert_eq!((process.full_reads(), count(&process.exchange.counts.rule_reads)), (1, 1));
    assert!(process.ask("new", 1));
    assert_eq!(process.seek(&rows), 0);
}

#[test]
fn a_rule_that_comes_back_before_it_was_read_is_read_once() {
    let mut process = Process::new(100, rules(HOUR));
    let rows = Rows::default();
    process.import(&rows);
    for _ in 0..3 {
        process.reload(both());
        process.reload(rules(HOUR));
        assert!(process.ask("x", 1));
        assert_eq!(process.seek(&rows), 0, "nothing is missing while it is gone");
    }
    process.reload(both());
    assert!(is_of_rules(&next_pass(&mut process, &rows, 40).unwrap().0));
    assert!(next_pass(&mut process, &rows, 500).is_none());
    assert_eq!(count(&process.exchange.counts.rule_reads), 1);
}

#[test]
fn a_reading_of_rules_that_is_cut_off_goes_on_where_it_was() {
    let mut process = Process::new(100, rules(&format!("{HOUR}, value: other")));
    let mut rows = Rows::default();
    rows.commit("b", &ten_of_b(process.now), process.now.wall_ms);
    process.import(&rows);
    process.reload(rules(HOUR));
    let mut parts = Vec::new();
    for _ in 0..150 {
        process.pass(1000);
        let (reading, mut hearing) = process.exchange.reading(process.now);
        let read = rows.read(&reading, process.now.wall_ms);
        let ReadScope::Rules { from, .. } = &reading else {
            read.into_iter().for_each(|row| process.exchange.hear(&mut hearing, row, process.now));
            process.exchange.imported(hearing, &reading, process.now.wall_ms, process.now);
            continue;
        };
        parts.push(from.clone().map(|from| from.identifier));
        read.iter().take(6).for_each(|row| process.exchange.hear(&mut hearing, row.clone(), process.now));
        match read.len() > 6 {
            true => process.exchange.partly_imported(hearing, &reading, process.now.wall_ms, process.now),
            false => process.exchange.imported(hearing, &reading, process.now.wall_ms, process.now),
        };
    }
    assert_eq!(parts, [None, Some((*b"\x015").into())]);
    (0..10).for_each(|n| assert!(!process.ask(&n.to_string(), 6), "{n}"));
}

#[test]
fn another_server_behind_the_name_is_followed_from_its_clock_on_and_read_later() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    assert!(process.ask("x", 60));
    process.publish(&mut rows, StatementOutcome::Done);
    process.import(&rows);
    // It lacks what the one before had.
    rows = Rows::default();
    let behind = |now: Now| now.wall_ms - 60_000;
    process.pass(1000);
    let (reading, hearing) = process.exchange.reading(process.now);
    process.exchange.imported(hearing, &reading, behind(process.now), process.now);
    rows.commit("b", &[row_of_b("y", 95, process.now)], behind(process.now));
    let mut seconds = 0;
    loop {
        process.pass(1000);
        let (reading, mut hearing) = process.exchange.reading(process.now);
        let read = rows.read(&reading, process.now.wall_ms);
        read.into_iter().for_each(|row| process.exchange.hear(&mut hearing, row, process.now));
        process.exchange.imported(hearing, &reading, behind(process.now), process.now);
        if seconds == 0 {
            assert!(matches!(reading, ReadScope::Since { .. }) && !process.ask("y", 6), "{reading:?}");
        }
        seconds += 1;
        if reading == ALL {
            break;
        }
    }
    assert!(seconds <= 31, "{seconds}");
    assert_eq!((process.publish(&mut rows, StatementOutcome::Done), rows.total("a").hits), (1, 60));
    assert!(next_pass(&mut process, &rows, 500).is_none());
}

/// Names of one digit, so that their order is that of the numbers.
fn ten_of_b(now: Now) -> Vec<OwnRow> {
    (0..10).map(|n| row_of_b(&n.to_string(), 95, now)).collect()
}

#[test]
fn a_table_that_is_too_large_to_be_read_at_once_is_followed() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &[row_of_b("x", 95, process.now), row_of_b("y", 95, process.now)], process.now.wall_ms);
    assert_eq!(process.import_part(&rows, 1), ALL);
    assert!(!process.ask("x", 6) && process.ask("y", 1), "what was heard counts");
    process.pass(20_000);
    rows.commit("b", &[row_of_b("y", 99, process.now)], process.now.wall_ms);
    assert!(matches!(process.import(&rows), ReadScope::Since { .. }));
    assert!(!process.ask("y", 1));
}

#[test]
fn a_table_of_which_only_the_beginning_was_ever_read_is_read_to_its_end() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &ten_of_b(process.now), process.now.wall_ms);
    (0..10).for_each(|n| assert!(process.ask(&n.to_string(), 1)));
    let mut parts = Vec::new();
    for _ in 0..150 {
        if let ReadScope::All { from } = process.import_part(&rows, 4) {
            parts.push(from.map(|from| from.identifier));
        }
    }
    // Each part begins with the cell that the one before ended in: there may be more rows of it.
    let expected = [None, Some((*b"\x013").into()), Some((*b"\x016").into())];
    assert_eq!(parts, expected, "and then not again for a while");
    (0..10).for_each(|n| assert!(!process.ask(&n.to_string(), 5), "{n}: 1 here and 95 there"));
}

#[test]
fn what_changes_between_the_parts_of_a_full_reading_is_heard() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &ten_of_b(process.now), process.now.wall_ms);
    assert_eq!(process.import_part(&rows, 4), ALL);
    // The first row changes after its part was read, and no import succeeds until the next part is due.
    rows.commit("b", &[row_of_b("0", 99, process.now)], process.now.wall_ms);
    process.pass(30_000);
    assert!(matches!(process.import_part(&rows, 10), ReadScope::All { from: Some(_) }));
    assert!(process.ask("0", 2), "95 are known");
    assert!(matches!(process.import(&rows), ReadScope::Since { .. }));
    assert!(!process.ask("0", 1), "2 here and 99 there");
}

#[test]
fn what_the_table_has_lost_is_told_again_after_the_last_part() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    assert!(process.ask("x", 60));
    process.publish(&mut rows, StatementOutcome::Done);
    process.import(&rows);
    rows = Rows::default();
    rows.commit("b", &ten_of_b(process.now), process.now.wall_ms);
    process.exchange.doubt();
    assert_eq!(process.import_part(&rows, 6), ALL);
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 0, "it may be in the part that was not read");
    process.pass(30_000);
    assert!(matches!(process.import_part(&rows, 6), ReadScope::All { from: Some(_) }));
    assert_eq!(process.publish(&mut rows, StatementOutcome::Done), 1);
    assert_eq!(rows.total("a").hits, 60);
}

#[test]
fn a_full_reading_in_parts_is_begun_anew_when_nobody_knows_what_has_changed() {
    let mut process = Process::new(100, rules(HOUR));
    let mut rows = Rows::default();
    rows.commit("b", &ten_of_b(process.now), process.now.wall_ms);
    assert_eq!(process.import_part(&rows, 4), ALL);
    process.pass(61_000);
    assert!(matches!(process.import_part(&rows, 4), ReadScope::Since { .. }), "it was away for too long");
    let part =
        (0..40).map(|_| process.import_part(&rows, 4)).find(|reading| !matches!(reading, ReadScope::Since { .. }));
    assert_eq!(part, Some(ALL));
    process.exchange.doubt();
    assert_eq!(process.import_part(&rows, 4), ALL, "the table may have lost rows");
}
