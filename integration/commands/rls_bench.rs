//! The parts of `benches/rls` that only calculate and draw. A bench has no tests of its own that anybody would run.

#[path = "../../benches/rls/bound.rs"]
mod bound;
#[path = "../../benches/rls/figures.rs"]
#[allow(dead_code)] // The bench uses the rest.
mod figures;
#[path = "../../benches/rls/plot.rs"]
mod plot;

use bound::Bound;
use figures::{Figure, Run, Spread};
use plot::{Bar, Chart, Group, Row, draw};

fn runs(requests_per_s: &[f64]) -> Vec<Run> {
    requests_per_s.iter().map(|&requests_per_s| Run { requests_per_s, ..Run::default() }).collect()
}

#[test]
fn a_median_is_the_middle_whatever_the_order() {
    let spread = |values: &[f64]| Spread::of(values.iter().copied().map(Some));
    assert_eq!(spread(&[9.0, 1.0, 3.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
    assert_eq!(spread(&[4.0, 10.0, 1.0, 2.0]), Some(Spread { median: 3.0, min: 1.0, max: 10.0 }));
    assert_eq!(spread(&[]), None);
    assert_eq!(Spread::of([Some(1.0), None].into_iter()), None, "one unknown figure makes all of them unknown");
}

/// The medians of both sides are 20 and 40; but whoever was asked at the same time was half as fast, twice out of three.
#[test]
fn ratios_are_those_of_the_same_round() {
    let (fast, slow) = (runs(&[20.0, 100.0, 10.0]), runs(&[10.0, 50.0, 40.0]));
    let ratios = Spread::of_ratios(&fast, &slow, Figure::RequestsPerS);
    assert_eq!(ratios, Some(Spread { median: 2.0, min: 0.25, max: 2.0 }));
    assert_eq!(Spread::of_ratios(&fast, &slow, Figure::ServerUs), None, "nobody knows the CPU");
    assert_eq!(Spread::of_ratios(&fast, &runs(&[0.0, 1.0, 1.0]), Figure::RequestsPerS), None);
}

#[test]
fn a_bound_holds_at_its_edge() {
    for (bound, met, missed) in [(Bound::AtLeast(2.0), 2.0, 1.99), (Bound::AtMost(0.5), 0.5, 0.51)] {
        assert!(bound.is_met(met) && !bound.is_met(missed), "{bound}");
    }
}

fn chart() -> Chart {
    let bar = |figure: f64| Bar { figure, label: format!("{figure} & <more>") };
    let row = |name: &str, requests_per_s, server_us: Option<f64>| Row {
        name: name.into(),
        is_ours: name == "tidegate",
        bars: [Some(bar(requests_per_s)), server_us.map(bar)],
    };
    let rows =
        vec![row("tonic", 100_000.0, Some(16.0)), row("tidegate", 210_000.0, Some(7.0)), row("a<b & c", 1.0, None)];
    let groups = vec![Group { title: "one hot key".into(), rows }];
    Chart { heads: ["requests/s".into(), "server CPU".into()], groups, footer: "2 cores".into() }
}

/// The names of elements that are open at the end, or an error where one is closed that is not the last opened.
fn open_elements(svg: &str) -> Result<Vec<&str>, String> {
    let mut open = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, _) = part.split_once('>').ok_or_else(|| format!("no end of <{part}"))?;
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    Ok(open)
}

#[test]
fn a_chart_is_well_formed_and_always_the_same() {
    let svg = draw(&chart());
    assert_eq!(open_elements(&svg), Ok(Vec::new()), "{svg}");
    assert!(svg.contains(">a&lt;b &amp; c</text>"), "names are text: {svg}");
    assert_eq!(svg, draw(&chart()));
    assert_eq!(svg.matches("<rect").count(), 5, "a bar for each figure that is known");
    assert!(svg.contains(">210000 &amp; &lt;more&gt;</text>"), "labels are text: {svg}");
}

#[test]
fn the_longest_bar_has_the_largest_figure_and_stays_inside() {
    let svg = draw(&chart());
    let widths: Vec<u32> = svg
        .lines()
        .filter(|line| line.starts_with("<rect"))
        .map(|line| line.split(" width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
        .collect();
    // Requests and CPU of tonic, those of tidegate, and requests of the third.
    assert_eq!(widths, [107, 225, 225, 98, 0]);
}

#[test]
fn where_all_figures_are_0_no_bar_has_a_length() {
    let mut chart = chart();
    for bar in chart.groups.iter_mut().flat_map(|group| &mut group.rows).flat_map(|row| &mut row.bars).flatten() {
        bar.figure = 0.0;
    }
    assert_eq!(draw(&chart).matches(" width=\"0\"").count(), 5);
}
