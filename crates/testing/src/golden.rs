//! Cases computed by PyTorch and JAX, one JSON line each.

use serde_json::Value;

/// What PyTorch says each rank of a mesh holds.
pub struct LayoutCase {
    /// Global shape.
    pub shape: Vec<usize>,
    /// Axis sizes.
    pub mesh: Vec<usize>,
    /// Placements as PyTorch prints them, joined by commas.
    pub placements: String,
    /// Every mesh coordinate with its local shape and global offset.
    pub local: Vec<LocalCase>,
}

/// One rank of a [`LayoutCase`].
#[derive(Debug, PartialEq)]
pub struct LocalCase {
    /// Mesh coordinate.
    pub coord: Vec<usize>,
    /// Local shape.
    pub shape: Vec<usize>,
    /// First global index per dim.
    pub offset: Vec<usize>,
}

/// How JAX, Shardy and XLA write one sharding.
pub struct XlaCase {
    /// Global shape.
    pub shape: Vec<usize>,
    /// Axis names and sizes, outermost first.
    pub mesh: Vec<(String, usize)>,
    /// Per dim the axes that cut it, major first.
    pub spec: Vec<Vec<String>>,
    /// XLA's text.
    pub hlo: String,
    /// Shardy's text; `None` where JAX writes none.
    pub sdy: Option<String>,
    /// Per device the start and stop of every dim.
    pub boxes: Vec<Vec<(usize, usize)>>,
}

/// The lines of the file that PyTorch computed.
pub const LAYOUT_LINES: &str = include_str!("../golden/layout.jsonl");

/// The lines of the file that JAX computed.
pub const XLA_LINES: &str = include_str!("../golden/xla.jsonl");

/// 600 layouts computed by PyTorch.
pub fn layout_cases() -> Vec<LayoutCase> {
    lines(LAYOUT_LINES, |case| LayoutCase {
        shape: sizes(&case["shape"]),
        mesh: sizes(&case["mesh"]),
        placements: list(&case["placements"], text).join(", "),
        local: list(&case["local"], |local| LocalCase {
            coord: sizes(&local["coord"]),
            shape: sizes(&local["shape"]),
            offset: sizes(&local["offset"]),
        }),
    })
}

/// 200 shardings computed by JAX.
pub fn xla_cases() -> Vec<XlaCase> {
    lines(XLA_LINES, |case| XlaCase {
        shape: sizes(&case["shape"]),
        // JAX orders its axes by name, and so does a JSON map.
        mesh: case["mesh"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, n)| (name.clone(), size(n)))
            .collect(),
        spec: list(&case["spec"], |axes| match axes {
            Value::Null => Vec::new(),
            Value::String(axis) => vec![axis.clone()],
            axes => list(axes, text),
        }),
        hlo: text(&case["hlo"]),
        sdy: case["sdy"].as_str().map(str::to_string),
        boxes: list(&case["boxes"], |dims| list(dims, |range| (size(&range[0]), size(&range[1])))),
    })
}

fn lines<T>(file: &str, parse: impl Fn(&Value) -> T) -> Vec<T> {
    let parse_line = |(number, line): (usize, &str)| match serde_json::from_str(line) {
        Ok(case) => parse(&case),
        Err(error) => panic!("golden line {}: {error}", number + 1),
    };
    file.lines().enumerate().map(parse_line).collect()
}

fn list<T>(value: &Value, parse: impl Fn(&Value) -> T) -> Vec<T> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("golden: {value} is no list"))
        .iter()
        .map(parse)
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("golden: {value} is no text")).to_string()
}

fn size(value: &Value) -> usize {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.unwrap_or_else(|| panic!("golden: {value} is no size"))
}

fn sizes(value: &Value) -> Vec<usize> {
    list(value, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_whole() {
        assert_eq!(layout_cases().len(), 600);
        assert_eq!(xla_cases().len(), 200);
    }
}
