//! A chart with two columns of bars, as SVG.
//!
//! It has no background, and its greys can be read on white and on black: pages show it in light and dark themes, and an image
//! does not know in which one it is.

use std::fmt::Write;

pub struct Chart {
    /// The words above the columns.
    pub heads: [String; 2],
    /// From top to bottom.
    pub groups: Vec<Group>,
    /// A line about all figures.
    pub footer: String,
}

/// A scenario: its bars are drawn one below the other.
pub struct Group {
    /// The words above its rows.
    pub title: String,
    /// From top to bottom.
    pub rows: Vec<Row>,
}

/// One server, with a bar in each column where its figure is known.
pub struct Row {
    /// The words before its bars.
    pub name: String,
    /// Ours stand out.
    pub is_ours: bool,
    /// One for each column.
    pub bars: [Option<Bar>; 2],
}

/// The largest figure of a column has the longest bar.
pub struct Bar {
    /// Its length, in whatever unit the column has.
    pub figure: f64,
    /// The words beside it.
    pub label: String,
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
pub fn draw(chart: &Chart) -> String {
    let Chart { heads, groups, footer } = chart;
    let lines: u32 = groups.iter().map(|group| 1 + group.rows.len() as u32).sum();
    let height = 2 * MARGIN + 2 * LINE + lines * LINE + GROUP_GAP * (1 + groups.len() as u32);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"{TEXT}\">\n"
    );
    let mut y = MARGIN + LINE;
    let columns = [0, 1].map(|column| (column as usize, MARGIN + NAMES + column * COLUMN));
    columns.iter().for_each(|(column, x)| text(&mut svg, *x, y, true, &heads[*column]));
    let figures = |column: usize| groups.iter().flat_map(|group| &group.rows).filter_map(move |row| row.figure(column));
    let longest = [0, 1].map(|column| figures(column).fold(0.0, f64::max));
    for group in groups {
        y += GROUP_GAP + LINE;
        text(&mut svg, MARGIN, y, true, &group.title);
        for row in &group.rows {
            y += LINE;
            text(&mut svg, MARGIN, y, row.is_ours, &row.name);
            for (column, x) in columns {
                if let Some(bar) = &row.bars[column] {
                    // Where all figures are 0, so are all bars.
                    let share = if longest[column] > 0.0 { bar.figure / longest[column] } else { 0.0 };
                    bar_with_label(&mut svg, (x, y), share, row.is_ours, &bar.label);
                }
            }
        }
    }
    text(&mut svg, MARGIN, y + LINE + GROUP_GAP, false, footer);
    svg + "</svg>\n"
}

impl Row {
    fn figure(&self, column: usize) -> Option<f64> {
        self.bars[column].as_ref().map(|bar| bar.figure)
    }
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
