//! The picture as SVG: the same grids, in proportion, with what does not fit as tooltips.

use dtensor_layout::Layout;

use dtensor_layout::Result;

use crate::{
    bands::Band,
    picture::{Cell, Limits, Picture, Slice, range_text},
};

const ROWS: usize = 16;
const SLICES: usize = 16;
/// Columns at most, and as few as it takes to fit their labels, but not fewer than the least.
const MOST_COLUMNS: usize = 32;
const LEAST_COLUMNS: usize = 4;

/// Width of one grid; its height follows from the number of rows.
const GRID_WIDTH: f64 = 640.0;
const MARGIN: f64 = 20.0;
const FONT_SIZE: f64 = 13.0;
const LINE_HEIGHT: f64 = 18.0;
/// Of a monospaced font of that size.
const CHARACTER_WIDTH: f64 = 7.9;
/// No band is thinner than this, however small its share.
const THINNEST: f64 = 10.0;
/// Width or height of bands that are not drawn.
const SKIPPED: f64 = 22.0;

/// Fills that black text can be read on; as many as the text picture has.
const FILLS: [&str; 7] =
    ["#afd7ff", "#ffd7af", "#afffaf", "#ffafd7", "#ffffaf", "#d7d7ff", "#d7af87"];

/// A whole SVG document.
pub fn draw(layout: &Layout) -> Result<String> {
    let picture = fitting_picture(layout)?;
    let mut canvas = Canvas { y: MARGIN, width: 0.0, body: String::new() };
    for line in &picture.head {
        canvas.line(line, true);
    }
    if !picture.slices.is_empty() {
        canvas.line(&picture.directions, false);
    }
    for slice in &picture.slices {
        canvas.slice(slice);
    }
    for block in [&picture.notes, &picture.legend] {
        canvas.y += LINE_HEIGHT / 2.0;
        for line in block {
            canvas.line(line, false);
        }
    }
    let (width, height) = (canvas.width + MARGIN, canvas.y + MARGIN);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"monospace\" font-size=\"{FONT_SIZE}\">\n\
         <title>{}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         {}</svg>\n",
        escape(&picture.head.join("; ")),
        canvas.body
    ))
}

/// The picture with as many columns as leave room for what is written in them.
fn fitting_picture(layout: &Layout) -> Result<Picture> {
    let mut columns = MOST_COLUMNS;
    loop {
        let picture = Picture::new(layout, Limits { rows: ROWS, columns, slices: SLICES })?;
        if columns == LEAST_COLUMNS || picture.slices.iter().all(labels_fit) {
            return Ok(picture);
        }
        columns -= 1;
    }
}

fn labels_fit(slice: &Slice) -> bool {
    let edges = edges(&slice.columns, 0.0, GRID_WIDTH);
    let fits = |column: usize, text: &str| label_fits(text, edges[column + 1] - edges[column]);
    let heads = slice.columns.iter().enumerate();
    let mut heads_fit = heads.map(|(column, band)| fits(column, &head(band, "⋯")));
    let row_fits = |row: &Vec<Option<Cell>>| {
        let labels = row.iter().enumerate().filter_map(|(i, cell)| Some((i, cell.as_ref()?)));
        labels.into_iter().all(|(column, cell)| fits(column, &cell.label))
    };
    heads_fit.all(|fits| fits) && slice.cells.iter().all(row_fits)
}

fn label_fits(text: &str, width: f64) -> bool {
    text_width(text) <= width - 4.0
}

/// What is drawn so far, from top to bottom.
struct Canvas {
    /// Where the next thing starts.
    y: f64,
    /// The rightmost point so far.
    width: f64,
    body: String,
}

impl Canvas {
    fn line(&mut self, text: &str, bold: bool) {
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        self.y += LINE_HEIGHT;
        self.body.push_str(&format!(
            "<text x=\"{MARGIN}\" y=\"{:.1}\" xml:space=\"preserve\"{weight}>{}</text>\n",
            self.y,
            escape(text)
        ));
        self.widen(MARGIN + text_width(text));
    }

    fn slice(&mut self, slice: &Slice) {
        self.y += LINE_HEIGHT / 2.0;
        if let Some(title) = &slice.title {
            self.line(title, false);
        }
        let heads = slice.rows.iter().flatten().map(|band| text_width(&range_text(band)));
        let left = MARGIN + heads.fold(0.0, f64::max) + 10.0;
        let column_heads = slice.columns.iter().any(Option::is_some);
        let top = self.y + if column_heads { LINE_HEIGHT + 6.0 } else { 6.0 };
        let columns = edges(&slice.columns, left, GRID_WIDTH);
        let rows = edges(&slice.rows, top, grid_height(slice));
        for (band, edge) in slice.columns.iter().zip(columns.windows(2)) {
            let text = head(band, "⋯");
            // A head that does not fit over its column would run into the next one.
            if label_fits(&text, edge[1] - edge[0]) {
                self.text(edge[0], top - 5.0, "start", &text);
            }
        }
        for (band, edge) in slice.rows.iter().zip(rows.windows(2)) {
            let middle = (edge[0] + edge[1]) / 2.0 + FONT_SIZE / 3.0;
            if edge[1] - edge[0] >= FONT_SIZE - 2.0 {
                self.text(left - 8.0, middle, "end", &head(band, "⋮"));
            }
        }
        for (row, y) in slice.cells.iter().zip(rows.windows(2)) {
            for (cell, x) in row.iter().zip(columns.windows(2)) {
                self.cell(cell.as_ref(), x, y);
            }
        }
        self.y = rows.last().copied().unwrap_or(top) + 6.0;
        self.widen(columns.last().copied().unwrap_or(left));
    }

    fn cell(&mut self, cell: Option<&Cell>, x: &[f64], y: &[f64]) {
        let (width, height) = (x[1] - x[0], y[1] - y[0]);
        let (fill, tooltip) = match cell {
            Some(cell) => {
                (FILLS[cell.color % FILLS.len()], format!("{} on {}", cell.indices, cell.label))
            }
            None => ("#eeeeee", "not drawn".to_string()),
        };
        self.body.push_str(&format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{fill}\" stroke=\"#444444\"><title>{}</title></rect>\n",
            x[0],
            y[0],
            escape(&tooltip)
        ));
        if let Some(cell) = cell
            && label_fits(&cell.label, width)
            && height >= FONT_SIZE - 2.0
        {
            let middle = (y[0] + y[1]) / 2.0 + FONT_SIZE / 3.0;
            self.text((x[0] + x[1]) / 2.0, middle, "middle", &cell.label);
        }
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.body.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n",
            escape(text)
        ));
    }

    fn widen(&mut self, right: f64) {
        self.width = self.width.max(right);
    }
}

/// Where the bands begin and end: in proportion to their ranges.
fn edges(bands: &[Option<Band>], start: f64, length: f64) -> Vec<f64> {
    let skipped = |band: &&Option<Band>| matches!(band, Some(Band::Skipped { .. }));
    let n_skipped = bands.iter().filter(skipped).count();
    let drawn = bands.iter().flatten().filter(|band| matches!(band, Band::Held { .. }));
    let total: usize = drawn.map(|band| band.range().len()).sum();
    let room = length - SKIPPED * n_skipped as f64;
    let mut edges = vec![start];
    let mut at = start;
    for band in bands {
        at += match band {
            Some(Band::Skipped { .. }) => SKIPPED,
            Some(Band::Held { range, .. }) => {
                (room * range.len() as f64 / total.max(1) as f64).max(THINNEST)
            }
            None => length,
        };
        edges.push(at);
    }
    edges
}

fn grid_height(slice: &Slice) -> f64 {
    match slice.rows.iter().any(Option::is_some) {
        true => (slice.rows.len() as f64 * 60.0).clamp(120.0, 400.0),
        // One dim lies flat.
        false => 40.0,
    }
}

fn head(band: &Option<Band>, skipped: &str) -> String {
    match band {
        None => String::new(),
        Some(Band::Skipped { .. }) => skipped.to_string(),
        Some(held) => range_text(held),
    }
}

fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER_WIDTH
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};

    use super::*;

    #[track_caller]
    fn document(shape: &[usize], mesh: &str, placements: &str) -> String {
        let mesh: Mesh = mesh.parse().unwrap();
        draw(&Layout::parse(shape, DType::F32, &mesh, placements).unwrap()).unwrap()
    }

    /// Every drawing is XML, inside its own view, and without numbers that are none.
    #[track_caller]
    fn check(shape: &[usize], mesh: &str, placements: &str, n_cells: usize) {
        let text = document(shape, mesh, placements);
        let document = roxmltree::Document::parse(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
        let root = document.root_element();
        let size = |name| root.attribute(name).unwrap().parse::<f64>().unwrap();
        let (width, height) = (size("width"), size("height"));
        let number = |node: &roxmltree::Node<'_, '_>, name| {
            node.attribute(name).unwrap().parse::<f64>().unwrap()
        };
        let cells: Vec<_> = root
            .children()
            .filter(|node| node.has_tag_name("rect") && node.has_attribute("stroke"))
            .collect();
        assert_eq!(cells.len(), n_cells, "{text}");
        for cell in cells {
            assert!(number(&cell, "width") >= THINNEST && number(&cell, "height") >= THINNEST);
            assert!(number(&cell, "x") + number(&cell, "width") <= width + 0.5, "{text}");
            assert!(number(&cell, "y") + number(&cell, "height") <= height + 0.5, "{text}");
        }
    }

    #[test]
    fn drawings_of_all_kinds_are_well_formed() {
        check(&[13, 8], "dp=2,tp=2", "S(0),S(1)", 4);
        check(&[], "4", "R", 1);
        check(&[5], "4", "S(0)", 3);
        check(&[0, 3], "4", "S(0)", 0);
        check(&[4, 6, 8], "2,2,2", "S(0),S(1),S(2)", 8);
        check(&[6], "dp=4,tp=3", "R,P(sum)", 1);
        check(&[9], "4,2", "_S(0, 2),S(0)", 7);
        check(&[8192, 8192], "16,128,128", "R,S(0),S(1)", 16 * 4);
    }

    #[test]
    fn a_cell_says_what_it_is_and_who_has_it() {
        let text = document(&[13, 8], "dp=2,tp=2", "S(0),P(sum)");
        assert!(text.contains("<title>[7..13, 0..8] on sum(2,3)</title>"), "{text}");
    }

    #[test]
    fn what_xml_gives_a_meaning_is_escaped() {
        assert_eq!(escape("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
