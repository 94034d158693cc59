//! Rules that are put together as text: the names of dims, and which dims are cut.

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};

use crate::{Error, Result};

/// The name of a dim in a rule: `a`, .., `z`, `a1`, ..
pub(super) fn letter(dim: usize) -> String {
    let name = char::from(b'a' + (dim % 26) as u8);
    match dim / 26 {
        0 => name.to_string(),
        round => format!("{name}{round}"),
    }
}

/// The names of dims, one after the other; those that are `whole` are never cut.
pub(super) fn letters(
    dims: impl IntoIterator<Item = usize>,
    whole: impl Fn(usize) -> bool,
) -> Vec<String> {
    let name = |dim| letter(dim) + if whole(dim) { "!" } else { "" };
    dims.into_iter().map(name).collect()
}

/// The rule that a text says, with these laws beside those of the text.
pub(super) fn rule(op: &'static str, text: &str, laws: &[Law]) -> Result<Rule> {
    text.parse().and_then(|rule: Rule| rule.with_laws(laws)).map_err(Error::rule(op))
}

/// Whether an axis of more than one rank cuts one of these dims.
pub(super) fn cuts(layout: &Layout, dims: impl Fn(usize) -> bool) -> bool {
    let mut axes = layout.placements().iter().enumerate();
    axes.any(|(axis, placement)| {
        layout.mesh().axis_size(axis) > 1 && placement.shard_dim().is_some_and(&dims)
    })
}
