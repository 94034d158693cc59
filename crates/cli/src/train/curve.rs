//! The loss over time, as a picture.

use std::fmt::Write as _;

/// The curve for a terminal, `width` by `height` characters, with axes.
pub fn text(losses: &[f64], width: usize, height: usize) -> Vec<String> {
    let Some((low, high)) = range(losses) else { return Vec::new() };
    let columns = width.saturating_sub(9).max(10).min(losses.len().max(1));
    // The mean of the steps that share a column.
    let at = |column: usize| {
        let (from, to) = (column * losses.len() / columns, (column + 1) * losses.len() / columns);
        let part = &losses[from..to.max(from + 1)];
        part.iter().sum::<f64>() / part.len() as f64
    };
    let span = (high - low).max(f64::EPSILON);
    // Eight levels per character.
    let level = |column: usize| {
        let part = ((at(column) - low) / span).clamp(0.0, 1.0);
        (part * (height * 8 - 1) as f64).round() as usize
    };
    let levels: Vec<usize> = (0..columns).map(level).collect();
    let blocks = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut lines = Vec::with_capacity(height + 1);
    for row in (0..height).rev() {
        let label = match row {
            row if row + 1 == height => format!("{high:7.3}"),
            0 => format!("{low:7.3}"),
            _ => " ".repeat(7),
        };
        let cells = levels.iter().map(|level| blocks[(level + 1).saturating_sub(row * 8).min(8)]);
        lines.push(format!("{label} │{}", cells.collect::<String>()));
    }
    lines.push(format!("{} └{}", " ".repeat(7), "─".repeat(columns)));
    lines
}

/// The curve as an SVG file.
pub fn svg(losses: &[f64]) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 360.0;
    const LEFT: f64 = 56.0;
    const BOTTOM: f64 = 36.0;
    const TOP: f64 = 24.0;
    const RIGHT: f64 = 16.0;
    let (low, high) = range(losses).unwrap_or((0.0, 1.0));
    let span = (high - low).max(f64::EPSILON);
    let last = losses.len().saturating_sub(1).max(1) as f64;
    let x = |step: usize| LEFT + (WIDTH - LEFT - RIGHT) * step as f64 / last;
    let y = |loss: f64| TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / span;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for tick in 0..=4 {
        let loss = low + span * f64::from(tick) / 4.0;
        let (at, end, label) = (y(loss), WIDTH - RIGHT, LEFT - 6.0);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{label}\" y=\"{at:.1}\" text-anchor=\"end\" dominant-baseline=\"middle\">{loss:.2}</text>"
        );
        let step = (last * f64::from(tick) / 4.0).round() as usize;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{step}</text>",
            x(step),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let points = losses.iter().enumerate().filter(|(_, loss)| loss.is_finite());
    let points: Vec<String> =
        points.map(|(step, loss)| format!("{:.1},{:.1}", x(step), y(*loss))).collect();
    let _ = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"1.5\"/>",
        points.join(" ")
    );
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"16\">loss over steps</text>\n</svg>");
    text
}

fn range(losses: &[f64]) -> Option<(f64, f64)> {
    let finite = || losses.iter().copied().filter(|loss| loss.is_finite());
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    (low <= high).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::{svg, text};

    #[test]
    fn a_falling_loss_falls() {
        let losses: Vec<f64> = (0..100).map(|step| 4.0 - f64::from(step) * 0.03).collect();
        let lines = text(&losses, 60, 5);
        assert_eq!(lines.len(), 6);
        assert!(lines[0].contains("4.000") && lines[4].contains("1.030"), "{lines:?}");
        assert!(lines[0].trim_end().chars().count() < lines[4].trim_end().chars().count());
        assert!(svg(&losses).contains("polyline") && text(&[], 60, 5).is_empty());
        assert!(svg(&[f64::NAN, 1.0]).contains("polyline"));
    }
}
