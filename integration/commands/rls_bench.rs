//! The parts of `benches/rls` that only calculate and draw. A bench has no tests of its own that anybody would run.

#[path = "../../benches/rls/figures.rs"]
#[allow(dead_code)] // The bench uses the rest.
mod figures;
#[path = "../../benches/rls/plot.rs"]
mod plot;

use figures::{Bound, Figure, Run, Spread};
use plot::{Bar, Group, draw};

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

fn groups() -> Vec<Group> {
    let bar = |server: &str, requests_per_s, server_us| Bar {
        server: server.into(),
        is_ours: server == "tidegate",
        requests_per_s,
        requests_ratio: Some(requests_per_s / 100_000.0),
        server_us,
        server_us_ratio: None,
    };
    let bars =
        vec![bar("tonic", 100_000.0, Some(16.0)), bar("tidegate", 210_000.0, Some(7.0)), bar("a<b & c", 1.0, None)];
    vec![Group { title: "one hot key".into(), bars }]
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
    let svg = draw(&groups(), "2 cores");
    assert_eq!(open_elements(&svg), Ok(Vec::new()), "{svg}");
    assert!(svg.contains(">a&lt;b &amp; c</text>"), "names are text: {svg}");
    assert_eq!(svg, draw(&groups(), "2 cores"));
    assert_eq!(svg.matches("<rect").count(), 5, "a bar for each figure that is known");
    assert!(svg.contains(">210k · 2.10x</text>"), "{svg}");
}

#[test]
fn the_longest_bar_has_the_largest_figure_and_stays_inside() {
    let svg = draw(&groups(), "");
    let widths: Vec<u32> = svg
        .lines()
        .filter(|line| line.starts_with("<rect"))
        .map(|line| line.split(" width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
        .collect();
    // Requests and CPU of tonic, those of tidegate, and requests of the third.
    assert_eq!(widths, [107, 225, 225, 98, 0]);
}
