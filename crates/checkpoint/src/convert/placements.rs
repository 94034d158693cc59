//! Which placements tensors get on a new mesh: by name.

use dtensor_layout::{DType, Layout, Mesh};

use super::TakenTensor;
use crate::{Error, Pattern, Result, select::must_match};

/// Placements by pattern of names; the first line that matches decides.
///
/// ```
/// use dtensor_checkpoint::convert::PlacementPlan;
/// let plan: PlacementPlan = r#"
///     ## Columns of the first product, rows of the second.
///     layers.*.w1 = "[R, S(0)]"
///     layers.*.w2 = "[R, S(1)]"
///     *.norm.weight = R, R
/// "#.parse()?;
/// # Ok::<(), dtensor_checkpoint::Error>(())
/// ```
///
/// A tensor that no line matches is cut along its first dim by the first axis of the mesh and whole on the others; one without dims is whole
/// everywhere. Quotes are optional, so that the file may also be TOML; `#` begins a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementPlan(Vec<Line>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    pattern: Pattern,
    placements: String,
}

impl PlacementPlan {
    /// The default for every tensor.
    pub fn new() -> PlacementPlan {
        PlacementPlan::default()
    }

    /// Adds a line at the end: placements such as `[S(0), R]` for names that match.
    pub fn with(mut self, pattern: Pattern, placements: impl Into<String>) -> PlacementPlan {
        self.0.push(Line { pattern, placements: placements.into() });
        self
    }

    /// Refuses a line that no name matches.
    pub(super) fn check<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Result<()> {
        self.0.iter().try_for_each(|line| must_match(&line.pattern, names.clone()))
    }

    /// How the tensor of this name lies on the mesh. Of the dtype of the layout only the size counts: not every stored type is
    /// one of those.
    pub(super) fn layout(
        &self,
        name: &str,
        tensor: &TakenTensor<'_>,
        mesh: &Mesh,
    ) -> Result<Layout> {
        let entry = tensor.entry;
        let line = self.0.iter().find(|line| line.pattern.matches(name));
        let placements = match line {
            Some(line) => line.placements.clone(),
            None => {
                let first = if entry.shape.is_empty() { "R" } else { "S(0)" };
                let rest = std::iter::repeat_n("R", mesh.n_axes().saturating_sub(1));
                std::iter::once(first).chain(rest).collect::<Vec<_>>().join(", ")
            }
        };
        let bad = |why: String| Error::BadText {
            text: placements.clone(),
            what: "placement that a tensor can have",
            why: format!("`{name}` {:?}: {why}", entry.shape),
        };
        let dtype = match tensor.to.size() {
            1 => DType::U8,
            2 => DType::Bf16,
            4 => DType::F32,
            _ => DType::F64,
        };
        let layout = Layout::parse(&entry.shape, dtype, mesh, &placements);
        let layout = layout.map_err(|error| bad(error.to_string()))?;
        match layout.is_partial() {
            true => Err(bad("a stored value has no pending reduction; give S(dim) or R".into())),
            false => Ok(layout),
        }
    }
}

impl std::str::FromStr for PlacementPlan {
    type Err = Error;

    fn from_str(text: &str) -> Result<PlacementPlan> {
        let mut plan = PlacementPlan::new();
        for line in text.lines() {
            let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
            if line.is_empty() {
                continue;
            }
            let parts = line
                .split_once('=')
                .map(|(name, placements)| (unquoted(name), unquoted(placements)));
            match parts {
                Some((pattern, placements)) if !pattern.is_empty() && !placements.is_empty() => {
                    plan = plan.with(Pattern::new(pattern), placements);
                }
                _ => {
                    return Err(Error::BadText {
                        text: line.to_owned(),
                        what: "line of a plan",
                        why: "write pattern = \"[S(0), R]\", with one placement per mesh axis"
                            .into(),
                    });
                }
            }
        }
        Ok(plan)
    }
}

fn unquoted(text: &str) -> &str {
    let text = text.trim();
    let inner = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoredType, TensorEntry};

    fn layout(plan: &str, name: &str, shape: &[usize]) -> Result<String> {
        let entry = TensorEntry {
            stored: StoredType::I8,
            shape: shape.to_vec(),
            chunks: Vec::new(),
            layout: None,
        };
        let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]).unwrap();
        let plan: PlacementPlan = plan.parse()?;
        let tensor = TakenTensor { source: name, entry: &entry, to: entry.stored };
        Ok(plan.layout(name, &tensor, &mesh)?.to_string())
    }

    #[test]
    fn the_first_line_that_matches_decides() {
        let plan = "# a plan\n\"a.*\" = \"[R, S(1)]\"\n\n* = R, S(-1) # the rest\n";
        assert_eq!(layout(plan, "a.b", &[4, 4, 4]).unwrap(), "[R, S(1)]");
        assert_eq!(layout(plan, "b", &[4, 4, 4]).unwrap(), "[R, S(2)]");
    }

    #[test]
    fn without_a_line_the_first_axis_cuts_the_first_dim() {
        assert_eq!(layout("", "b", &[4, 4]).unwrap(), "[S(0), R]");
        assert_eq!(layout("", "b", &[]).unwrap(), "[R, R]");
    }

    #[test]
    fn what_no_tensor_can_have_names_the_tensor() {
        for (plan, want) in [
            ("* = S(1), R", "dim 1"),
            ("* = S(0)", "1 placements for a mesh of 2 axes"),
            ("* = P(sum), R", "no pending reduction"),
            ("* = Q", "Q"),
        ] {
            let error = layout(plan, "b", &[4]).unwrap_err().to_string();
            assert!(error.contains("`b` [4]") && error.contains(want), "{plan}: {error}");
        }
        for plan in ["a", "= R", "a ="] {
            assert!(layout(plan, "b", &[4]).is_err(), "{plan}");
        }
    }
}
