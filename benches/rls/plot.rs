//! A chart of requests per second and CPU per request, as SVG.
//!
//! It has no background, and its greys can be read on white and on black: pages show it in light and dark themes, and an image
//! does not know in which one it is.

use std::fmt::Write;

/// A scenario: its bars are drawn one below the other.
pub struct Group {
    pub title: String,
    pub bars: Vec<Bar>,
}

/// One server. Its ratios are to the server that all are compared with.
pub struct Bar {
    pub server: String,
    pub is_ours: bool,
    pub requests_per_s: f64,
    pub requests_ratio: Option<f64>,
    pub server_us: Option<f64>,
    pub server_us_ratio: Option<f64>,
}

const WIDTH: u32 = 900;
const MARGIN: u32 = 10;
const NAMES: u32 = 220;
/// The width of each of the two columns of bars, and of its part where labels stand beside the longest bar.
const COLUMN: u32 = 335;
const LABEL: u32 = 110;
const LINE: u32 = 22;
const BAR: u32 = 14;
const GROUP_GAP: u32 = 14;

const TEXT: &str = "#6e7781";
const OURS: &str = "#1f883d";
const OTHERS: &str = "#8c959f";

/// Draws the chart. Equal figures always give equal bytes.
pub fn draw(groups: &[Group], footer: &str) -> String {
    let lines: u32 = groups.iter().map(|group| 1 + group.bars.len() as u32).sum();
    let height = 2 * MARGIN + 2 * LINE + lines * LINE + GROUP_GAP * (1 + groups.len() as u32);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"{TEXT}\">\n"
    );
    let mut y = MARGIN + LINE;
    let columns = [MARGIN + NAMES, MARGIN + NAMES + COLUMN];
    text(&mut svg, columns[0], y, true, "requests/s: longer is better");
    text(&mut svg, columns[1], y, true, "server CPU µs/request: shorter is better");
    let bars = || groups.iter().flat_map(|group| &group.bars);
    let requests_max = bars().map(|bar| bar.requests_per_s).fold(0.0, f64::max);
    let server_us_max = bars().filter_map(|bar| bar.server_us).fold(0.0, f64::max);
    for group in groups {
        y += GROUP_GAP + LINE;
        text(&mut svg, MARGIN, y, true, &group.title);
        for bar in &group.bars {
            y += LINE;
            text(&mut svg, MARGIN, y, bar.is_ours, &bar.server);
            let label = labelled(&format!("{:.0}k", bar.requests_per_s / 1e3), bar.requests_ratio);
            bar_with_label(&mut svg, (columns[0], y), bar.requests_per_s / requests_max, bar.is_ours, &label);
            if let Some(micros) = bar.server_us {
                let label = labelled(&format!("{micros:.1}"), bar.server_us_ratio);
                bar_with_label(&mut svg, (columns[1], y), micros / server_us_max, bar.is_ours, &label);
            }
        }
    }
    text(&mut svg, MARGIN, y + LINE + GROUP_GAP, false, footer);
    svg + "</svg>\n"
}

fn labelled(figure: &str, ratio: Option<f64>) -> String {
    ratio.map_or_else(|| figure.to_owned(), |ratio| format!("{figure} · {ratio:.2}x"))
}

fn bar_with_label(svg: &mut String, (x, y): (u32, u32), share: f64, is_ours: bool, label: &str) {
    let width = (share * f64::from(COLUMN - LABEL)).round() as u32;
    let (top, fill) = (y - BAR + 2, if is_ours { OURS } else { OTHERS });
    // Writing to a string can't fail.
    let _ = writeln!(svg, "<rect x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{BAR}\" rx=\"2\" fill=\"{fill}\"/>");
    text(svg, x + width + 6, y, is_ours, label);
}

fn text(svg: &mut String, x: u32, y: u32, is_bold: bool, words: &str) {
    let weight = if is_bold { " font-weight=\"600\"" } else { "" };
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\"{weight}>{words}</text>");
}
