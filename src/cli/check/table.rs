//! Rows of text as columns that line up.

/// A cell that is longer does not widen its column: one long name would push all others out of sight.
const WIDTH_MAX: usize = 60;

/// Lines under a head, columns two spaces apart, without a newline at the end.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(str::to_owned);
    let width = |column: usize| {
        let widths = std::iter::once(&head).chain(rows).map(|row| row[column].chars().count());
        widths.filter(|width| *width <= WIDTH_MAX).max().unwrap_or(WIDTH_MAX)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<String>>().join("  ").trim_end().to_owned()
    };
    std::iter::once(&head).chain(rows).map(line).collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_a_long_cell_only_moves_its_own_row() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let long = "x".repeat(WIDTH_MAX + 1);
        let rows = [row(["über", "b", ""]), row([&long, "b", "c"])];
        assert_eq!(table(["one", "two", "three"], &rows), format!("one   two  three\nüber  b\n{long}  b    c"));
    }
}
