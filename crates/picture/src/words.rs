//! What a picture says beside its grids.

use dtensor_layout::{Layout, Placement};

use crate::{
    table::{Align, Table},
    units::{bytes, count, grouped},
};

use crate::{
    bands::{Band, n_bands},
    label::rank_list,
    lengths::lengths,
};

/// The layout, and how many bytes are where.
pub fn head(layout: &Layout) -> Vec<String> {
    let (mut least, mut most) = (layout.dtype().size(), layout.dtype().size());
    for dim in 0..layout.n_dims() {
        let lengths = lengths(layout, dim);
        // Saturating: beside a dim of size 0 the others may be as large as they like.
        least = least.saturating_mul(lengths.keys().next().copied().unwrap_or(0));
        most = most.saturating_mul(lengths.keys().next_back().copied().unwrap_or(0));
    }
    let whole = match has_elements(layout) {
        true => bytes(layout.numel() as f64 * layout.dtype().size() as f64),
        false => bytes(0.0),
    };
    let each = match least == most {
        true => bytes(most as f64),
        false => format!("{} to {}", bytes(least as f64), bytes(most as f64)),
    };
    let ranks = layout.mesh().size();
    let held = match ranks {
        1 => format!("{whole} on 1 rank"),
        _ => format!("{whole} in all; {each} on each of {}", count(ranks, "rank")),
    };
    vec![format!("{layout:?}"), held]
}

/// Whether there is anything to hold at all.
pub fn has_elements(layout: &Layout) -> bool {
    !layout.global_shape().contains(&0)
}

/// One line per mesh axis: what it does to the tensor.
pub fn legend(layout: &Layout) -> Vec<String> {
    let mut table = Table::headless(&[Align::Left, Align::Left, Align::Left]);
    let placements = layout.placement_texts();
    for (index, axis) in layout.mesh().axes().iter().enumerate() {
        let what = match layout.placements()[index] {
            Placement::Replicate => "every rank has the same values".to_string(),
            Placement::Partial(op) => {
                format!("every rank has a contribution, the value is their {op}")
            }
            Placement::Shard(dim) => {
                let cuts = layout.order().cuts(dim);
                let position = cuts.iter().position(|cut| cut.axis == index).unwrap_or(0);
                let which = match cuts.len() {
                    1 => String::new(),
                    n => format!(", cut {} of {n}", position + 1),
                };
                match cuts[position].split_factor {
                    1 => format!("every rank has a chunk of dim {dim}{which}"),
                    pieces => format!(
                        "every rank has a chunk of each of {pieces} pieces of dim {dim}{which}"
                    ),
                }
            }
        };
        table.row([format!("{}={}", axis.name(), axis.size()), placements[index].clone(), what]);
    }
    let mut lines = table.lines();
    lines.extend(rank_formula(layout));
    lines
}

/// `rank = 4*pp + 2*dp + tp`: how the numbers in the picture lead to coordinates.
fn rank_formula(layout: &Layout) -> Option<String> {
    let mesh = layout.mesh();
    if mesh.axes().iter().any(|axis| axis.factors().len() > 1) {
        return None;
    }
    let mut terms = Vec::new();
    if mesh.base() > 0 {
        terms.push(mesh.base().to_string());
    }
    for axis in mesh.axes() {
        terms.push(match axis.factors()[0].stride {
            1 => axis.name().to_string(),
            stride => format!("{stride}*{}", axis.name()),
        });
    }
    Some(format!("rank = {}", terms.join(" + ")))
}

/// How many bands a side leaves out.
pub fn left_out(layout: &Layout, dim: Option<usize>, bands: &[Option<Band>]) -> Option<String> {
    let dim = dim?;
    let skipped = |band: &Option<Band>| matches!(band, Some(Band::Skipped { .. }));
    if !bands.iter().any(skipped) {
        return None;
    }
    let drawn = grouped(bands.len() - 1);
    Some(match n_bands(layout, dim) {
        Some(all) => format!("{drawn} of {} bands of dim {dim} are drawn", grouped(all)),
        None => format!("{drawn} bands of dim {dim} are drawn, there are more"),
    })
}

/// The ranks that hold nothing of a tensor that has something.
pub fn empty_ranks(layout: &Layout) -> Option<String> {
    /// Beyond this, numbers of single ranks help nobody.
    const LISTED: usize = 4096;
    let mesh = layout.mesh();
    let (mut holding, mut cutting) = (1, 1);
    for dim in 0..layout.n_dims() {
        let lengths = lengths(layout, dim);
        cutting *= lengths.values().sum::<usize>();
        holding *= lengths
            .iter()
            .filter(|(length, _)| **length > 0)
            .map(|(_, coords)| *coords)
            .sum::<usize>();
    }
    let empty = (cutting - holding) * (mesh.size() / cutting);
    if empty == 0 {
        return None;
    }
    let hold = if empty == 1 { "holds" } else { "hold" };
    let text = format!("{} {hold} nothing", count(empty, "rank"));
    if mesh.size() > LISTED {
        return Some(text);
    }
    let mut ranks: Vec<usize> = mesh
        .coords()
        .filter(|coord| layout.local_numel(coord) == 0)
        .filter_map(|coord| mesh.rank_at(&coord).ok())
        .collect();
    ranks.sort_unstable();
    Some(format!("{text}: {}", rank_list(&ranks)))
}
