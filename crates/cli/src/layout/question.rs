use dtensor_layout::{DType, Layout, Mesh, MeshAxis};
use serde_json::{Map, Value, json};

use crate::{
    error::{Error, Result},
    parse::split_list,
};

use super::{LayoutArgs, mesh_arg, spec::Spec};

/// A tensor, a mesh, and how the one lies on the other: from arguments or from a JSON line.
pub struct Question {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub mesh: Mesh,
    /// How the answer repeats the mesh: as it was given.
    pub mesh_json: Value,
    /// As they were given: the answer repeats them, `_S(0,2)` and all.
    pub placements: Option<Vec<String>>,
    pub spec: Option<Spec>,
    /// The ranks asked for; none means all.
    pub coords: Vec<Vec<usize>>,
}

impl Question {
    pub fn from_args(args: &LayoutArgs) -> Result<Question> {
        let missing = |flag| Error::usage(format!("{flag} is missing"));
        let shape = args.shape.clone().ok_or_else(|| missing("--shape"))?.0;
        let mesh = mesh_arg("--mesh", args.mesh.as_ref().ok_or_else(|| missing("--mesh"))?)?;
        let named = args.mesh.as_ref().is_some_and(|text| text.contains('='));
        let question = Question {
            shape,
            dtype: args.dtype,
            mesh_json: mesh_json(&mesh, named),
            mesh,
            placements: args.placements.as_deref().map(split_list),
            spec: args.spec.clone().map(Spec::Text),
            coords: args.coord.iter().map(|coord| coord.0.clone()).collect(),
        };
        question.check_coords()?;
        Ok(question)
    }

    /// Reads `{"shape": [13, 8], "mesh": {"dp": 2, "tp": 2}, "placements": ["S(0)", "R"]}`.
    ///
    /// `mesh` may also be a list of sizes or a text; instead of `placements` there may be a `spec`;
    /// `dtype` and one `coord` are optional. Other keys are ignored, so that an answer is itself a
    /// question.
    pub fn from_json(line: &Value, dtype: DType) -> Result<Question> {
        let Value::Object(fields) = line else {
            return Err(Error::usage(format!("expected a JSON object, got {}", brief(line))));
        };
        let field = |key: &'static str| {
            fields.get(key).ok_or_else(|| Error::usage(format!("key `{key}` is missing")))
        };
        let shape = sizes("shape", field("shape")?)?;
        let mesh_json = field("mesh")?.clone();
        let mesh = read_mesh(&mesh_json)?;
        let dtype = match fields.get("dtype") {
            None => dtype,
            Some(name) => text("dtype", name)?
                .parse()
                .map_err(|error| Error::usage(format!("dtype: {error}")))?,
        };
        let placements = match fields.get("placements") {
            None | Some(Value::Null) => None,
            Some(Value::String(list)) => Some(split_list(list)),
            Some(Value::Array(list)) => {
                let one = |value| text("placements", value).map(str::to_string);
                Some(list.iter().map(one).collect::<Result<_>>()?)
            }
            Some(other) => return Err(unexpected("placements", "a list of texts", other)),
        };
        let spec = match fields.get("spec") {
            None | Some(Value::Null) => None,
            Some(value) => Some(Spec::from_json(value)?),
        };
        let coords = match fields.get("coord") {
            None | Some(Value::Null) => Vec::new(),
            Some(coord) => vec![sizes("coord", coord)?],
        };
        let question = Question { shape, dtype, mesh, mesh_json, placements, spec, coords };
        question.check_coords()?;
        Ok(question)
    }

    /// The layout asked about. Where placements and spec are both given they must agree: one of
    /// them would be silently ignored otherwise.
    pub fn layout(&self) -> Result<Layout> {
        let by_placements = self
            .placements
            .as_ref()
            .map(|list| Layout::parse(&self.shape, self.dtype, &self.mesh, &list.join(", ")))
            .transpose()?;
        let by_spec = self
            .spec
            .as_ref()
            .map(|spec| spec.layout(&self.shape, self.dtype, &self.mesh))
            .transpose()?;
        let layout = match (by_placements, by_spec) {
            (Some(one), Some(other)) if one != other => {
                return Err(Error::usage(format!(
                    "the placements say {one} and the spec says {other}; leave one of them out"
                )));
            }
            (Some(layout), _) | (None, Some(layout)) => layout,
            (None, None) => return Err(Error::usage("neither `placements` nor `spec` is given")),
        };
        check_pieces(&layout)?;
        Ok(layout)
    }

    fn check_coords(&self) -> Result<()> {
        self.coords.iter().try_for_each(|coord| Ok(self.mesh.rank_at(coord).map(drop)?))
    }
}

/// Strided shards leave every rank with a list of pieces; one that does not fit into memory is
/// refused rather than begun.
fn check_pieces(layout: &Layout) -> Result<()> {
    const MOST: usize = 1 << 20;
    for (dim, size) in layout.global_shape().iter().enumerate() {
        let factors = layout.order().cuts(dim).iter().map(|cut| cut.split_factor);
        let pieces = factors.fold(1usize, usize::saturating_mul).min(*size);
        if pieces > MOST {
            return Err(Error::usage(format!(
                "{layout}: {pieces} pieces of dim {dim} on every rank; at most {MOST} can be listed"
            )));
        }
    }
    Ok(())
}

/// A mesh in JSON: a map of names where it has names, else its sizes; with strides only its text.
pub fn mesh_json(mesh: &Mesh, named: bool) -> Value {
    if !mesh.is_row_major() {
        return json!(mesh.to_string());
    }
    match named {
        false => json!(mesh.sizes()),
        true => {
            let axis = |axis: &MeshAxis| (axis.name().to_string(), json!(axis.size()));
            Value::Object(mesh.axes().iter().map(axis).collect::<Map<_, _>>())
        }
    }
}

fn read_mesh(value: &Value) -> Result<Mesh> {
    Ok(match value {
        Value::Array(_) => Mesh::from_sizes(&sizes("mesh", value)?)?,
        Value::String(text) => text.parse::<Mesh>()?,
        Value::Object(axes) => {
            let axis = |(name, value)| Ok((name, size("mesh", value)?));
            Mesh::new(&axes.iter().map(axis).collect::<Result<Vec<_>>>()?)?
        }
        other => {
            return Err(unexpected("mesh", "a list of sizes or a map of names to sizes", other));
        }
    })
}

fn sizes(key: &str, value: &Value) -> Result<Vec<usize>> {
    match value {
        Value::Array(list) => list.iter().map(|one| size(key, one)).collect(),
        other => Err(unexpected(key, "a list of sizes", other)),
    }
}

fn size(key: &str, value: &Value) -> Result<usize> {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| unexpected(key, "a size", value))
}

fn text<'a>(key: &str, value: &'a Value) -> Result<&'a str> {
    value.as_str().ok_or_else(|| unexpected(key, "a text", value))
}

pub fn unexpected(key: &str, want: &str, got: &Value) -> Error {
    Error::usage(format!("{key}: expected {want}, got {}", brief(got)))
}

/// The value, or its beginning: an error is one line whatever it was given.
fn brief(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &str) -> Result<Layout> {
        Question::from_json(&serde_json::from_str(line).unwrap(), DType::F32)?.layout()
    }

    #[test]
    fn a_mesh_is_sizes_or_names_or_text() {
        for mesh in ["[2,3]", r#"{"axis0":2,"axis1":3}"#, r#""2x3""#] {
            let layout =
                ask(&format!(r#"{{"shape":[4],"mesh":{mesh},"placements":["S(0)","R"]}}"#))
                    .unwrap();
            assert_eq!(format!("{layout:?}"), "f32[4] on axis0=2,axis1=3: [S(0), R]");
        }
    }

    #[test]
    fn the_order_of_axis_names_is_kept() {
        let layout = ask(r#"{"shape":[4],"mesh":{"z":2,"a":3},"placements":"S(0), R"}"#).unwrap();
        assert_eq!(layout.mesh().to_string(), "z=2,a=3");
    }

    #[test]
    fn placements_and_spec_must_agree() {
        let line = |spec| {
            format!(r#"{{"shape":[4],"mesh":{{"x":2}},"placements":["S(0)"],"spec":[{spec}]}}"#)
        };
        assert!(ask(&line("\"x\"")).is_ok());
        assert_eq!(
            ask(&line("null")).unwrap_err().to_string(),
            "the placements say [S(0)] and the spec says [R]; leave one of them out"
        );
    }

    #[test]
    fn bad_lines_say_which_key_is_wrong() {
        for (line, want) in [
            ("3", "expected a JSON object, got 3"),
            ("{}", "key `shape` is missing"),
            (r#"{"shape":[4]}"#, "key `mesh` is missing"),
            (r#"{"shape":[-4],"mesh":[2]}"#, "shape: expected a size, got -4"),
            (r#"{"shape":4,"mesh":[2]}"#, "shape: expected a list of sizes, got 4"),
            (
                r#"{"shape":[4],"mesh":7}"#,
                "mesh: expected a list of sizes or a map of names to sizes, got 7",
            ),
            (r#"{"shape":[4],"mesh":[2]}"#, "neither `placements` nor `spec` is given"),
            (r#"{"shape":[4],"mesh":[2],"placements":[0]}"#, "placements: expected a text, got 0"),
            (
                r#"{"shape":[4],"mesh":[2],"placements":["S(1)"]}"#,
                "dim 1 is out of range for a tensor of 1 dims; give -1..1",
            ),
            (
                r#"{"shape":[4],"mesh":[2],"placements":["R"],"coord":[2]}"#,
                "coordinate [2] is not on mesh axis0=2; give one index below each axis size",
            ),
        ] {
            assert_eq!(ask(line).unwrap_err().to_string(), want, "{line}");
        }
    }
}
