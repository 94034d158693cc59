use dtensor_layout::Layout;
use dtensor_picture::{Align, Table, has_elements, units::bytes};

use crate::error::Result;

/// What single ranks hold, one line each.
pub fn lines(layout: &Layout, coords: &[Vec<usize>]) -> Result<Vec<String>> {
    let mut table = Table::new(&[
        ("rank", Align::Right),
        ("coordinate", Align::Left),
        ("shape", Align::Left),
        ("offset", Align::Left),
        ("bytes", Align::Right),
        ("holds", Align::Left),
    ]);
    for coord in coords {
        // Beside a dim of size 0 the others may be as large as they like: their product may not exist.
        let local_bytes = if has_elements(layout) { layout.local_bytes(coord) } else { 0 };
        let boxes: Vec<String> = layout.boxes(coord).iter().map(ToString::to_string).collect();
        let axes = layout.mesh().axes().iter().zip(coord);
        table.row([
            layout.mesh().rank_at(coord)?.to_string(),
            axes.map(|(axis, index)| format!("{}={index}", axis.name()))
                .collect::<Vec<_>>()
                .join(","),
            format!("{:?}", layout.local_shape(coord)),
            format!("{:?}", layout.local_offset(coord)),
            bytes(local_bytes as f64),
            match local_bytes {
                0 => "nothing".to_string(),
                _ => boxes.join(" "),
            },
        ]);
    }
    let mut lines = vec![format!("{layout:?}"), String::new()];
    lines.extend(table.lines());
    Ok(lines)
}
