//! The picture as text.

use dtensor_layout::Layout;

use dtensor_layout::Result;

use crate::{
    bands::Band,
    picture::{Limits, Picture, Slice, range_text},
};

/// How the text may look.
pub struct Style {
    /// Columns to fit into, where that is possible at all.
    pub width: usize,
    /// Whether blocks are coloured, by the escape sequences of terminals.
    pub color: bool,
    /// Whether lines are drawn with ASCII characters alone.
    pub ascii: bool,
}

/// The lines of a picture.
pub fn draw(layout: &Layout, style: &Style) -> Result<Vec<String>> {
    let picture = fitting_picture(layout, style)?;
    let mut lines = picture.head.clone();
    if !picture.slices.is_empty() {
        lines.extend([String::new(), picture.directions.clone()]);
    }
    for slice in &picture.slices {
        lines.push(String::new());
        lines.extend(slice.title.clone());
        lines.extend(Grid::new(slice, style).lines(slice));
    }
    for block in [&picture.notes, &picture.legend] {
        if !block.is_empty() {
            lines.push(String::new());
            lines.extend(block.iter().cloned());
        }
    }
    Ok(lines)
}

/// The picture with as many columns as fit: labels differ in length, so it is tried.
fn fitting_picture(layout: &Layout, style: &Style) -> Result<Picture> {
    const ROWS: usize = 12;
    const SLICES: usize = 8;
    // The narrowest column takes four characters with its border.
    let mut columns = (style.width / 4).clamp(3, 40);
    loop {
        let picture = Picture::new(layout, Limits { rows: ROWS, columns, slices: SLICES })?;
        let fits = |slice: &Slice| Grid::narrowest(slice) <= style.width;
        if columns == 3 || picture.slices.iter().all(fits) {
            return Ok(picture);
        }
        columns -= 1;
    }
}

/// Characters that draw the frames.
struct Frame {
    across: char,
    down: char,
    /// Left end, crossing and right end of the top, inner and bottom lines.
    top: [char; 3],
    inner: [char; 3],
    bottom: [char; 3],
    skipped_row: &'static str,
    skipped_column: &'static str,
}

const BOXES: Frame = Frame {
    across: '─',
    down: '│',
    top: ['┌', '┬', '┐'],
    inner: ['├', '┼', '┤'],
    bottom: ['└', '┴', '┘'],
    skipped_row: "⋮",
    skipped_column: "⋯",
};

const ASCII: Frame = Frame {
    across: '-',
    down: '|',
    top: ['+', '+', '+'],
    inner: ['+', '+', '+'],
    bottom: ['+', '+', '+'],
    skipped_row: ":",
    skipped_column: "..",
};

/// Backgrounds of the 256-colour palette that black text can be read on. Seven, because mesh axes
/// are powers of two more often than not, and neighbours should differ.
const PALETTE: [u8; 7] = [153, 223, 157, 218, 229, 189, 180];

/// The widths and heights of one slice.
struct Grid {
    frame: &'static Frame,
    color: bool,
    gutter: usize,
    widths: Vec<usize>,
    heights: Vec<usize>,
}

impl Grid {
    fn new(slice: &Slice, style: &Style) -> Grid {
        let gutter = gutter(slice);
        let least = least_widths(slice);
        let borders = gutter + slice.columns.len() + 1;
        let room = style.width.saturating_sub(borders);
        Grid {
            frame: if style.ascii { &ASCII } else { &BOXES },
            color: style.color,
            gutter,
            widths: stretched(&slice.columns, &least, room),
            heights: heights(&slice.rows),
        }
    }

    /// Columns that the slice takes at least.
    fn narrowest(slice: &Slice) -> usize {
        gutter(slice) + slice.columns.len() + 1 + least_widths(slice).iter().sum::<usize>()
    }

    fn lines(&self, slice: &Slice) -> Vec<String> {
        let mut lines = Vec::new();
        if slice.columns.iter().any(Option::is_some) {
            let heads = slice.columns.iter().zip(&self.widths).map(|(band, width)| {
                // The head stands over the border's right neighbour.
                format!(" {:<width$}", self.head(band, self.frame.skipped_column))
            });
            let line = " ".repeat(self.gutter) + &heads.collect::<String>();
            lines.push(line.trim_end().to_string());
        }
        lines.push(self.rule(self.frame.top));
        for (row, height) in self.heights.iter().enumerate() {
            if row > 0 {
                lines.push(self.rule(self.frame.inner));
            }
            for line in 0..*height {
                lines.push(self.cell_line(slice, row, line, *height));
            }
        }
        lines.push(self.rule(self.frame.bottom));
        lines
    }

    fn rule(&self, [left, crossing, right]: [char; 3]) -> String {
        let stretches: Vec<String> =
            self.widths.iter().map(|width| self.frame.across.to_string().repeat(*width)).collect();
        format!("{}{left}{}{right}", " ".repeat(self.gutter), stretches.join(&crossing.to_string()))
    }

    /// One line of a row of cells, with the row's range beside its first line and the labels on
    /// its middle one.
    fn cell_line(&self, slice: &Slice, row: usize, line: usize, height: usize) -> String {
        let head = match line {
            0 => self.head(&slice.rows[row], self.frame.skipped_row),
            _ => String::new(),
        };
        let mut text = match self.gutter {
            0 => String::new(),
            gutter => format!("{head:>width$} ", width = gutter - 1),
        };
        text.push(self.frame.down);
        for ((cell, column), width) in slice.cells[row].iter().zip(&slice.columns).zip(&self.widths)
        {
            let label = match cell {
                _ if line != (height - 1) / 2 => "",
                Some(cell) => cell.label.as_str(),
                None if is_skipped(column) => self.frame.skipped_column,
                None => self.frame.skipped_row,
            };
            let centred = format!("{label:^width$}");
            match cell {
                Some(cell) if self.color => {
                    let background = PALETTE[cell.color % PALETTE.len()];
                    text.push_str(&format!("\x1b[48;5;{background};38;5;16m{centred}\x1b[0m"));
                }
                _ => text.push_str(&centred),
            }
            text.push(self.frame.down);
        }
        text
    }

    fn head(&self, band: &Option<Band>, skipped: &str) -> String {
        match band {
            None => String::new(),
            Some(Band::Skipped { .. }) => skipped.to_string(),
            Some(held) => range_text(held),
        }
    }
}

/// Room to the left for the rows' ranges.
fn gutter(slice: &Slice) -> usize {
    let widest = slice.rows.iter().flatten().map(|band| range_text(band).len()).max();
    widest.map_or(0, |widest| widest + 2)
}

/// Per column, its widest label and its range, with a space on both sides.
fn least_widths(slice: &Slice) -> Vec<usize> {
    let one = |column: usize| {
        if is_skipped(&slice.columns[column]) {
            return 4;
        }
        let labels = slice.cells.iter().filter_map(|row| row[column].as_ref());
        let label = labels.map(|cell| cell.label.chars().count()).max().unwrap_or(1);
        let range = slice.columns[column].as_ref().map_or(0, |band| range_text(band).len());
        label.max(range) + 2
    };
    (0..slice.columns.len()).map(one).collect()
}

/// Widths in proportion to the ranges, where there is room for that; at least `least`.
fn stretched(columns: &[Option<Band>], least: &[usize], room: usize) -> Vec<usize> {
    /// Characters for one index, of which about two are as wide as a line is high.
    const WIDEST_INDEX: f64 = 3.0;
    let size = |band: &Option<Band>| match band {
        Some(Band::Held { range, .. }) => range.len(),
        _ => 0,
    };
    let total: usize = columns.iter().map(size).sum();
    let per_index = WIDEST_INDEX.min(room as f64 / total.max(1) as f64);
    let widths = columns.iter().zip(least).map(|(band, least)| {
        let proportional = (size(band) as f64 * per_index) as usize;
        proportional.max(*least)
    });
    let widths: Vec<usize> = widths.collect();
    match widths.iter().sum::<usize>() <= room {
        true => widths,
        false => least.to_vec(),
    }
}

/// One line per index of a small tensor, so that uneven shards look uneven; else a few per row.
fn heights(rows: &[Option<Band>]) -> Vec<usize> {
    const SMALL: usize = 16;
    /// Beyond this many rows, one line each keeps the picture on one screen.
    const FEW: usize = 5;
    let ordinary = if rows.len() > FEW { 1 } else { 3 };
    let total: usize = rows.iter().flatten().map(|band| band.range().len()).sum();
    let height = |band: &Option<Band>| match band {
        None | Some(Band::Skipped { .. }) => 1,
        Some(Band::Held { range, .. }) if total <= SMALL && rows.len() > 1 => range.len(),
        Some(Band::Held { range, .. }) => range.len().min(ordinary),
    };
    rows.iter().map(height).collect()
}

fn is_skipped(band: &Option<Band>) -> bool {
    matches!(band, Some(Band::Skipped { .. }))
}
