use dtensor_layout::Layout;
use serde_json::{Map, Value, json};

use dtensor_picture::units::{count, grouped};

use crate::error::{Error, Result};

use super::{question::Question, spec};

/// What a JSON answer contains.
pub struct Form {
    /// Also the texts of JAX, XLA and Shardy, and every rank's box.
    pub interchange: bool,
    /// Most ranks to list.
    pub limit: usize,
}

/// The answer to a question: its own keys, `local`, and what `form` adds.
pub fn json(question: &Question, layout: &Layout, form: &Form) -> Result<Value> {
    let coords = listed_coords(question, layout, form)?;
    let mut answer = Map::new();
    answer.insert("shape".into(), json!(question.shape));
    answer.insert("mesh".into(), question.mesh_json.clone());
    let placements = question.placements.clone();
    answer
        .insert("placements".into(), json!(placements.unwrap_or_else(|| layout.placement_texts())));
    let local = coords.iter().map(|coord| {
        json!({
            "coord": coord,
            "shape": layout.local_shape(coord),
            "offset": layout.local_offset(coord),
        })
    });
    answer.insert("local".into(), local.collect());
    if form.interchange {
        let mut why = Map::new();
        spec::insert_texts(&mut answer, &mut why, layout);
        let boxes: Result<Value, String> =
            coords.iter().map(|coord| range_per_dim(layout, coord)).collect();
        let boxes = boxes.unwrap_or_else(|reason| {
            why.insert("boxes".into(), json!(reason));
            Value::Null
        });
        answer.insert("boxes".into(), boxes);
        if !why.is_empty() {
            answer.insert("why".into(), Value::Object(why));
        }
    }
    Ok(Value::Object(answer))
}

fn listed_coords(question: &Question, layout: &Layout, form: &Form) -> Result<Vec<Vec<usize>>> {
    if !question.coords.is_empty() {
        return Ok(question.coords.clone());
    }
    let mesh = layout.mesh();
    if mesh.size() > form.limit {
        let zeros = vec!["0"; mesh.n_axes()].join(",");
        return Err(Error::usage(format!(
            "mesh {mesh} has {}, above the limit of {} in one line",
            count(mesh.size(), "rank"),
            grouped(form.limit)
        ))
        .with_hint(format!("ask for one with --coord {zeros}, or raise --limit")));
    }
    Ok(mesh.coords().collect())
}

/// `[[start, stop], ...]`: the one box that the rank holds, or why it is not one.
fn range_per_dim(layout: &Layout, coord: &[usize]) -> Result<Value, String> {
    let one_dim = |dim| {
        let held = layout.intervals(dim, coord);
        let start = held.start().unwrap_or(layout.global_shape()[dim]);
        match held.iter().count() {
            0 | 1 => Ok(json!([start, start + held.len()])),
            ranges => Err(format!(
                "the rank at {coord:?} holds {ranges} ranges of dim {dim}, and not one box"
            )),
        }
    };
    (0..layout.n_dims()).map(one_dim).collect()
}
