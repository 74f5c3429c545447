//! Tables of text, and formats of quantities.

/// Formats rows of cells, of which the first is a heading. Each column is as wide as its widest cell. Columns
/// of numbers are right-aligned.
pub(crate) fn lines(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let numeric = |column: usize| {
        let mut cells = rows.iter().skip(1).filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty());
        cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+'))
    };
    let right: Vec<bool> = (0..columns).map(numeric).collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = widths[column];
                if right[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

/// Formats rows of cells as a markdown table. Every column except the first is right-aligned.
pub(crate) fn markdown(rows: &[Vec<String>]) -> Vec<String> {
    let line = |cells: &Vec<String>| format!("| {} |", cells.join(" | "));
    let Some(heading) = rows.first() else { return Vec::new() };
    let mut lines = vec![line(heading), format!("|---{}|", "|--:".repeat(heading.len().saturating_sub(1)))];
    lines.extend(rows[1..].iter().map(line));
    lines
}

/// Returns the suffix of a memory's name that shows the limit of page-locked memory, if there is one.
pub(crate) fn pinned(limit_bytes: Option<u64>) -> String {
    limit_bytes.map_or_else(String::new, |limit| format!(", page-locked (at most {})", bytes(limit)))
}

/// Formats seconds in a suitable unit.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.1} s"),
        v if v >= 1.0 => format!("{v:.3} s"),
        v if v >= 1e-3 => format!("{:.2} ms", v * 1e3),
        v if v >= 1e-6 => format!("{:.1} us", v * 1e6),
        v => format!("{:.0} ns", v * 1e9),
    }
}

/// Formats joules in a suitable unit.
pub(crate) fn joules(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.1} J"),
        v if v >= 1.0 => format!("{v:.3} J"),
        v if v >= 1e-3 => format!("{:.2} mJ", v * 1e3),
        v => format!("{:.1} uJ", v * 1e6),
    }
}

/// Formats bytes in a suitable unit.
pub(crate) fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value} B") } else { format!("{scaled:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = lines(&[row(["device", "n"]), row(["cpu", "7"]), row(["opencl:0", "120"])]);
        assert_eq!(table, ["device      n", "cpu         7", "opencl:0  120"]);
    }

    /// A number may begin with a sign, and a dash marks a missing number.
    #[test]
    fn numbers_with_signs_and_missing_ones_are_to_the_right() {
        for [first, second, line] in [["-", "12.5", "   -"], ["+7", "12.5", "  +7"], ["a7", "12.5", "a7"]] {
            let rows = ["n", first, second].map(|cell| vec![cell.to_owned()]);
            assert_eq!(lines(&rows)[1], line);
        }
    }

    #[test]
    fn a_table_in_markdown_has_a_rule_below_its_heading() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = markdown(&[row(["device", "n"]), row(["cpu", "7"])]);
        assert_eq!(table, ["| device | n |", "|---|--:|", "| cpu | 7 |"]);
        assert_eq!(markdown(&[]), Vec::<String>::new());
    }

    #[test]
    fn quantities_read_well() {
        assert_eq!(seconds(0.012_34), "12.34 ms");
        assert_eq!(seconds(1.5), "1.500 s");
        assert_eq!((joules(123.456), joules(1.5)), ("123.5 J".to_owned(), "1.500 J".to_owned()));
        assert_eq!((joules(0.012_34), joules(2e-5)), ("12.34 mJ".to_owned(), "20.0 uJ".to_owned()));
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(4 << 20), "4.0 MiB");
        assert_eq!((bytes(1 << 40), bytes(u64::MAX)), ("1.0 TiB".to_owned(), "16777216.0 TiB".to_owned()));
    }
}
