//! Elements at other places: views, and what moves along dims.
//!
//! Nothing here computes, so everything pending passes through, and dims that stay may be cut. Along a cut dim
//! that moves, the ranks exchange what they lack of the result, in one call; see `exchange`.

mod assign;
mod diagonal;
mod dims;
mod join;
mod meshgrid;
mod pad;
mod repeat;
mod reshape;
mod runs;
mod slice;
mod split;
mod stretches;
mod triangle;
mod turn;
mod unfold;

use dtensor_layout::{
    Layout,
    rule::{Law, Rule},
};

use crate::{Error, Result, op::OpRecord};

pub(super) const RECORDS: &[&[OpRecord]] = &[
    reshape::RECORDS,
    dims::RECORDS,
    slice::RECORDS,
    unfold::RECORDS,
    turn::RECORDS,
    join::RECORDS,
    split::RECORDS,
    pad::RECORDS,
    repeat::RECORDS,
    assign::RECORDS,
    diagonal::RECORDS,
    triangle::RECORDS,
    meshgrid::RECORDS,
];

/// The name of a dim in a rule: `a`, .., `z`, `a1`, ..
fn letter(dim: usize) -> String {
    let name = char::from(b'a' + (dim % 26) as u8);
    match dim / 26 {
        0 => name.to_string(),
        number => format!("{name}{number}"),
    }
}

/// The names of dims, one after the other; those that are `whole` are never cut.
fn letters(dims: impl IntoIterator<Item = usize>, whole: impl Fn(usize) -> bool) -> Vec<String> {
    let name = |dim| format!("{}{}", letter(dim), if whole(dim) { "!" } else { "" });
    dims.into_iter().map(name).collect()
}

/// The rule that a text says.
fn rule(op: &'static str, text: &str, laws: &[Law]) -> Result<Rule> {
    let rule = text.parse().and_then(|rule: Rule| rule.with_laws(laws));
    rule.map_err(Error::rule(op))
}

/// Whether an axis cuts a dim.
fn cuts(layout: &Layout, dim: usize) -> bool {
    !layout.order().cuts(dim).is_empty()
}
