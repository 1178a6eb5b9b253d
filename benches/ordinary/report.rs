//! The figures for people, as a table and as a chart.

use crate::figures::Figures;
use crate::machine::{cores, cpu_model};
use crate::plot::{Bar, Chart, Group, Row};

const TITLE: usize = 44;
const COLUMN: usize = 26;

/// Fleets that got the requests of one limit, side by side.
pub fn print(fleets: &[Figures]) {
    let Some(first) = fleets.first() else { return };
    println!("\n{}", title(first));
    println!(
        "  {} users, {} of them above their limit; {:.0} requests/s, {} measured",
        first.users,
        first.users_above,
        first.requests_per_s(),
        first.requests
    );
    print_row("", fleets.iter().map(|fleet| format!("{} processes", fleet.processes)));
    for (at, line) in first.lines.iter().enumerate() {
        print_row(line.title, fleets.iter().map(|fleet| fleet.lines[at].describe()));
    }
    for fleet in fleets.iter().filter(|fleet| fleet.outages > 0) {
        println!("  {} processes: Redis took too long for {} requests", fleet.processes, fleet.outages);
    }
}

fn print_row(title: &str, cells: impl Iterator<Item = String>) {
    println!("  {title:TITLE$}{}", cells.map(|cell| format!("{cell:>COLUMN$}")).collect::<String>());
}

fn title(fleet: &Figures) -> String {
    let seconds = fleet.window.as_secs();
    let window = if seconds == 60 { "a minute".to_owned() } else { format!("in {seconds} s") };
    format!("a limit of {} {window}", fleet.limit)
}

pub fn chart(fleets: &[Figures]) -> Chart {
    let rates: Vec<String> = fleets.iter().map(|fleet| format!("{:.0}", fleet.requests_per_s())).collect();
    let footer = format!("{}, {} cores; {} requests/s", cpu_model(), cores(), rates.join(", "));
    let heads = ["requests that wait for Redis".into(), "CPU of Redis, µs/request: shorter is better".into()];
    Chart { heads, groups: fleets.iter().map(group).collect(), footer }
}

fn group(fleet: &Figures) -> Group {
    let bar = |name: &str, digits: usize, unit: &str| {
        let figure = fleet.line(name)?.figure?;
        Some(Bar { figure, label: format!("{figure:.digits$}{unit}") })
    };
    let waits = |name| bar(name, 1, " %");
    let row = |name: &str, is_ours, bars| Row { name: name.into(), is_ours, bars };
    let all = Some(Bar { figure: 100.0, label: "100 %".into() });
    let rows = vec![
        row("tidegate", true, [waits("waited"), bar("redis_us", 1, "")]),
        row("users below half of the limit", true, [waits("waited_below_half"), None]),
        row("from half up to the limit", true, [waits("waited_from_half"), None]),
        row("above the limit", true, [waits("waited_above"), None]),
        row("INCRBY and EXPIRE", false, [all, bar("increments_us", 1, "")]),
    ];
    Group { title: format!("{} processes, {}", fleet.processes, title(fleet)), rows }
}
