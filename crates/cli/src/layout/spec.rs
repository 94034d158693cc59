//! Layouts written by tensor dim, as XLA programs write them, instead of by mesh axis.

use dtensor_layout::{DType, Layout, LayoutError, Mesh};
use serde_json::{Map, Value, json};

use crate::error::Result;

use super::question::unexpected;

/// Which axes cut which dim, as given.
#[derive(Clone)]
pub enum Spec {
    /// `P("dp", None)`, `{devices=[2,1]<=[2]}` or `#sdy.sharding<@mesh, [{"dp"}, {}]>`.
    Text(String),
    /// Per dim the axes that cut it, major first: `["dp", null, ["tp", "cp"]]` in JSON.
    Axes(Vec<Vec<String>>),
}

impl Spec {
    pub fn from_json(value: &Value) -> Result<Spec> {
        let name = |axis: &Value| match axis {
            Value::String(name) => Ok(name.clone()),
            other => Err(unexpected("spec", "an axis name", other)),
        };
        let one_dim = |axes: &Value| match axes {
            Value::Null => Ok(Vec::new()),
            Value::Array(axes) => axes.iter().map(name).collect(),
            axis => Ok(vec![name(axis)?]),
        };
        match value {
            Value::String(text) => Ok(Spec::Text(text.clone())),
            Value::Array(dims) => Ok(Spec::Axes(dims.iter().map(one_dim).collect::<Result<_>>()?)),
            other => Err(unexpected("spec", "a list with axes per dim, or a text", other)),
        }
    }

    pub fn layout(&self, shape: &[usize], dtype: DType, mesh: &Mesh) -> Result<Layout> {
        Ok(match self {
            Spec::Axes(axes) => Layout::from_axes_per_dim(shape, dtype, mesh, axes)?,
            Spec::Text(text) => match text.trim_start() {
                hlo if hlo.starts_with('{') => Layout::from_hlo(shape, dtype, mesh, text)?,
                shardy if shardy.starts_with('#') => Layout::from_shardy(shape, dtype, mesh, text)?,
                _ => Layout::from_partition_spec(shape, dtype, mesh, text)?,
            },
        })
    }
}

/// Adds `spec`, `hlo` and `sdy` to an answer: the layout as JAX, XLA and Shardy write it.
///
/// They differ in what they can say. What one cannot is `null`, with the reason under `why`.
pub fn insert_texts(
    answer: &mut Map<String, Value>,
    why: &mut Map<String, Value>,
    layout: &Layout,
) {
    let texts = [
        ("spec", partition_spec(layout)),
        ("hlo", layout.to_hlo().map(Value::from)),
        ("sdy", layout.to_shardy().map(Value::from)),
    ];
    for (key, text) in texts {
        let value = text.unwrap_or_else(|error| {
            why.insert(key.into(), json!(error.to_string()));
            Value::Null
        });
        answer.insert(key.into(), value);
    }
}

/// `["dp", null, ["tp", "cp"]]`; with a pending sum, for which a list has no place, JAX's text.
fn partition_spec(layout: &Layout) -> Result<Value, LayoutError> {
    if layout.is_partial() {
        return layout.to_partition_spec().map(Value::from);
    }
    let one_dim = |axes: Vec<String>| match axes.as_slice() {
        [] => Value::Null,
        [axis] => json!(axis),
        several => json!(several),
    };
    Ok(layout.partition_spec()?.into_iter().map(one_dim).collect())
}
