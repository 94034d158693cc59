//! Tables of text in aligned columns.

/// How a column lines up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// At the left.
    Left,
    /// At the right.
    Right,
}

/// Rows under a head, each column as wide as its widest cell. No line ends in a space.
pub struct Table {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with a head.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table {
            aligns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(head, _)| head.to_string()).collect()],
        }
    }

    /// Aligned rows without a head.
    pub fn headless(aligns: &[Align]) -> Table {
        Table { aligns: aligns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: a cell for every column.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        debug_assert_eq!(cells.len(), self.aligns.len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// The lines, as wide as their cells need.
    pub fn lines(&self) -> Vec<String> {
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.aligns.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.aligns) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            line.trim_end().to_string()
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_do_not_end_in_spaces() {
        let mut table = Table::new(&[("step", Align::Left), ("bytes", Align::Right)]);
        table.row(["all_gather", "8"]);
        table.row(["slice", "1024"]);
        assert_eq!(table.lines(), ["step        bytes", "all_gather      8", "slice        1024"]);
    }
}
