use dtensor_layout::Layout;

use crate::{
    error::Result,
    table::{Align, Table},
    units::bytes,
};

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
        let boxes: Vec<String> = layout.boxes(coord).iter().map(ToString::to_string).collect();
        let axes = layout.mesh().axes().iter().zip(coord);
        table.row([
            layout.mesh().rank_at(coord)?.to_string(),
            axes.map(|(axis, index)| format!("{}={index}", axis.name()))
                .collect::<Vec<_>>()
                .join(","),
            format!("{:?}", layout.local_shape(coord)),
            format!("{:?}", layout.local_offset(coord)),
            bytes(layout.local_bytes(coord) as f64),
            match layout.local_numel(coord) {
                0 => "nothing".to_string(),
                _ => boxes.join(" "),
            },
        ]);
    }
    let mut lines = vec![format!("{layout:?}"), String::new()];
    lines.extend(table.lines());
    Ok(lines)
}
