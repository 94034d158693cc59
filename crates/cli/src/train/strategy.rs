//! Which axis of the mesh does what.

use dtensor::{DTensor, DeviceMesh, Mesh, MeshAxis, Placement, Tensor, distribute_tensor_from};
use dtensor_nn::{head_tail_inverse, head_tail_order};

use crate::error::{Error, Result};

/// The names of axes.
const AXES: [&str; 4] = ["dp", "fsdp", "tp", "cp"];

/// What the ranks of an axis share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The batch.
    Data,
    /// The batch and the parameters, which are gathered for use.
    Sharded,
    /// The products.
    Tensor,
    /// The positions.
    Context,
}

/// A role per axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    roles: Vec<(String, Role)>,
    /// Whether norms and what is added run on cut positions, on the axis of the products.
    pub sequence_parallel: bool,
}

impl Strategy {
    /// From what was typed: a mesh, strategies, or both. Without a mesh all `ranks`, or four, are on the axis of the strategy, or
    /// on the two of `hsdp`.
    pub fn new(
        mesh: Option<&str>,
        parallel: Option<&str>,
        ranks: Option<usize>,
    ) -> Result<(Mesh, Strategy)> {
        let words: Vec<&str> = parallel.map(|text| text.split('+').collect()).unwrap_or_default();
        for word in &words {
            if !["dp", "fsdp", "hsdp", "tp", "cp", "sp"].contains(word) {
                let message = format!("--parallel: there is no strategy `{word}`");
                return Err(Error::usage(message)
                    .with_hint("dp, fsdp, hsdp, tp, cp, tp+sp, or several with +"));
            }
        }
        let text = match (mesh, &*words) {
            (Some(mesh), _) => mesh.to_owned(),
            (None, []) => match ranks {
                None | Some(4) => "dp=2,tp=2".to_owned(),
                Some(ranks) => format!("dp={ranks}"),
            },
            (None, words) => default_mesh(words, ranks.unwrap_or(4))?,
        };
        let mesh: Mesh = text.parse().map_err(|error| Error::usage(format!("--mesh: {error}")))?;
        let mut roles = Vec::new();
        for axis in mesh.axes() {
            let name = axis.name();
            let has = |word: &str| words.contains(&word);
            // A strategy of one axis, and one axis: whatever it is called.
            let meant = match (mesh.axes(), &*axes_of(&words)) {
                ([_], [only]) if !AXES.contains(&name) => only,
                _ => name,
            };
            let role = match meant {
                "dp" if has("fsdp") && !mesh.axes().iter().any(|axis| axis.name() == "fsdp") => {
                    Role::Sharded
                }
                "dp" => Role::Data,
                "fsdp" => Role::Sharded,
                "tp" => Role::Tensor,
                "cp" => Role::Context,
                _ => return Err(unknown_axis(name, &mesh, &words)),
            };
            roles.push((name.to_owned(), role));
        }
        let strategy = Strategy { roles, sequence_parallel: words.contains(&"sp") };
        strategy.check(&mesh, &words)?;
        Ok((mesh, strategy))
    }

    /// Every strategy that was asked for has its axis.
    fn check(&self, mesh: &Mesh, words: &[&str]) -> Result<()> {
        let has = |role: Role| self.axes(role).next().is_some();
        for word in words {
            let (there, axes) = match *word {
                "dp" => (has(Role::Data), "an axis dp, as --mesh dp=2"),
                "fsdp" => (has(Role::Sharded), "an axis fsdp or dp, as --mesh fsdp=2"),
                "hsdp" => (
                    has(Role::Data) && has(Role::Sharded),
                    "axes dp and fsdp, as --mesh dp=2,fsdp=2",
                ),
                "cp" => (has(Role::Context), "an axis cp, as --mesh cp=2"),
                _ => (has(Role::Tensor), "an axis tp, as --mesh tp=2"),
            };
            if !there {
                let message = format!("--parallel {word} needs axes that the mesh does not have");
                let hint = match renamed(mesh, words) {
                    Some(mesh) => format!("give --mesh {mesh}"),
                    None => format!("it needs {axes}"),
                };
                return Err(Error::usage(message).with_hint(hint));
            }
        }
        Ok(())
    }

    /// The axes of a role.
    pub fn axes(&self, role: Role) -> impl Iterator<Item = &str> {
        self.roles.iter().filter(move |(_, other)| *other == role).map(|(name, _)| name.as_str())
    }

    /// Tokens `[batch, positions]` that every rank has, cut and ordered as the strategy says.
    pub fn place(&self, tokens: &Tensor, mesh: &DeviceMesh) -> dtensor::Result<DTensor> {
        let placement = |axis: &MeshAxis| {
            let role =
                self.roles.iter().find(|(name, _)| name == axis.name()).map(|(_, role)| role);
            match role {
                Some(Role::Data | Role::Sharded) => Placement::Shard(0),
                Some(Role::Context) => Placement::Shard(1),
                _ => Placement::Replicate,
            }
        };
        let placements: Vec<Placement> = mesh.mesh().axes().iter().map(placement).collect();
        distribute_tensor_from(&self.ordered(tokens, mesh)?, mesh, &placements, None)
    }

    /// The same order, and a copy on every rank.
    pub fn place_copies(&self, tokens: &Tensor, mesh: &DeviceMesh) -> dtensor::Result<DTensor> {
        let copies = vec![Placement::Replicate; mesh.n_axes()];
        distribute_tensor_from(&self.ordered(tokens, mesh)?, mesh, &copies, None)
    }

    /// Where the last of so many positions is in that order.
    pub fn index_of_last(&self, length: usize, mesh: &DeviceMesh) -> usize {
        let last = length.saturating_sub(1);
        match self.n_contexts(mesh) {
            Some(n) => head_tail_inverse(length, n).get(last).map_or(0, |index| *index as usize),
            None => last,
        }
    }

    /// Where positions are cut, every rank has a part of the beginning and a part of the end: equally much to do.
    fn ordered(&self, tokens: &Tensor, mesh: &DeviceMesh) -> dtensor::Result<Tensor> {
        let Some(n) = self.n_contexts(mesh) else { return Ok(tokens.clone()) };
        let order = head_tail_order(tokens.shape()[1], n);
        let order = Tensor::from_slice(&order, &[order.len()])?;
        Ok(tokens.index_select(1, &order)?)
    }

    /// Ranks that share the positions.
    fn n_contexts(&self, mesh: &DeviceMesh) -> Option<usize> {
        let axis = self.axes(Role::Context).next()?;
        mesh.axis_index(axis).ok().map(|axis| mesh.mesh().axis_size(axis))
    }
}

fn unknown_axis(name: &str, mesh: &Mesh, words: &[&str]) -> Error {
    let hint = match renamed(mesh, words) {
        Some(mesh) => format!("give --mesh {mesh}"),
        None => "axes are dp, fsdp, tp and cp".to_owned(),
    };
    Error::usage(format!("--mesh: there is no axis `{name}`")).with_hint(hint)
}

/// The mesh with the names of the strategies, if there are as many.
fn renamed(mesh: &Mesh, words: &[&str]) -> Option<String> {
    let names = axes_of(words);
    let axes = mesh.axes();
    let named = |(name, size): (&&str, usize)| format!("{name}={size}");
    let sizes = (0..axes.len()).map(|axis| mesh.axis_size(axis));
    (names.len() == axes.len())
        .then(|| names.iter().zip(sizes).map(named).collect::<Vec<_>>().join(","))
}

/// The mesh for strategies without one. How many ranks each of several axes has is not for us to guess, but for `hsdp`,
/// which is one strategy: two copies.
fn default_mesh(words: &[&str], ranks: usize) -> Result<String> {
    let axes = axes_of(words);
    match (&*axes, words) {
        ([axis], _) => return Ok(format!("{axis}={ranks}")),
        (_, ["hsdp"]) if ranks >= 4 && ranks.is_multiple_of(2) => {
            return Ok(format!("dp=2,fsdp={}", ranks / 2));
        }
        _ => {}
    }
    let message = format!("--parallel {} needs a mesh with its axes", words.join("+"));
    // Two ranks on every axis, and what is left on the first.
    let others = 1_usize << (axes.len() - 1);
    let first = if ranks.is_multiple_of(others) { (ranks / others).max(2) } else { 2 };
    let sizes = [first].into_iter().chain(std::iter::repeat(2));
    let example: Vec<String> =
        axes.iter().zip(sizes).map(|(axis, size)| format!("{axis}={size}")).collect();
    Err(Error::usage(message).with_hint(format!("add for example --mesh {}", example.join(","))))
}

/// The axes of strategies, each once.
fn axes_of(words: &[&str]) -> Vec<&'static str> {
    let mut axes = Vec::new();
    for word in words {
        let of_word: &[&'static str] = match *word {
            "dp" => &["dp"],
            "fsdp" => &["fsdp"],
            "hsdp" => &["dp", "fsdp"],
            "cp" => &["cp"],
            // Sequence parallel is tensor parallel with norms on cut positions.
            _ => &["tp"],
        };
        for axis in of_word {
            if !axes.contains(axis) {
                axes.push(axis);
            }
        }
    }
    axes
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |role: &Role| match role {
            Role::Data => "data parallel",
            Role::Sharded => "fully sharded",
            Role::Tensor if self.sequence_parallel => "tensor and sequence parallel",
            Role::Tensor => "tensor parallel",
            Role::Context => "context parallel",
        };
        let axes: Vec<String> =
            self.roles.iter().map(|(name, role)| format!("{name}: {}", word(role))).collect();
        f.write_str(&axes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::Strategy;

    #[track_caller]
    fn check(parallel: &str, ranks: Option<usize>, want: Result<(&str, bool), &str>) {
        let got = Strategy::new(None, Some(parallel), ranks);
        let got = got.map(|(mesh, strategy)| (mesh.to_string(), strategy.sequence_parallel));
        match (got, want) {
            (Ok((mesh, sp)), Ok(want)) => assert_eq!((&*mesh, sp), want, "{parallel}"),
            (Err(error), Err(want)) => {
                let text = format!("{error:?}");
                assert!(text.contains(want), "{parallel}: {text}");
            }
            (got, _) => panic!("{parallel} on {ranks:?}: {got:?}"),
        }
    }

    #[test]
    fn a_strategy_without_a_mesh_has_one_or_says_what_to_type() {
        check("tp", None, Ok(("tp=4", false)));
        check("fsdp", Some(3), Ok(("fsdp=3", false)));
        check("tp+sp", None, Ok(("tp=4", true)));
        check("sp", Some(2), Ok(("tp=2", true)));
        check("hsdp", None, Ok(("dp=2,fsdp=2", false)));
        check("hsdp", Some(8), Ok(("dp=2,fsdp=4", false)));
        check("hsdp", Some(3), Err("add for example --mesh dp=2,fsdp=2"));
        check("hsdp", Some(2), Err("add for example --mesh dp=2,fsdp=2"));
        check("fsdp+tp", None, Err("add for example --mesh fsdp=2,tp=2"));
        check("dp+tp+sp", Some(8), Err("add for example --mesh dp=4,tp=2"));
        check("hsdp+tp", Some(8), Err("add for example --mesh dp=2,fsdp=2,tp=2"));
        check("pp", None, Err("there is no strategy `pp`"));
    }

    #[track_caller]
    fn check_mesh(mesh: &str, parallel: Option<&str>, want: Result<&str, &str>) {
        let got = Strategy::new(Some(mesh), parallel, None);
        match (got, want) {
            (Ok((_, strategy)), Ok(want)) => assert_eq!(strategy.to_string(), want),
            (Err(error), Err(want)) => {
                let text = format!("{error:?}");
                assert!(text.contains(want), "{mesh} {parallel:?}: {text}");
            }
            (got, _) => panic!("{mesh} {parallel:?}: {got:?}"),
        }
    }

    #[test]
    fn one_axis_may_have_any_name_and_others_are_told_what_to_type() {
        check_mesh("x=4", Some("tp"), Ok("x: tensor parallel"));
        check_mesh("x=4", Some("tp+sp"), Ok("x: tensor and sequence parallel"));
        check_mesh("x=4", Some("fsdp"), Ok("x: fully sharded"));
        check_mesh("x=4", Some("cp"), Ok("x: context parallel"));
        check_mesh("x=4", None, Err("axes are dp, fsdp, tp and cp"));
        check_mesh("x=2,y=3", Some("fsdp+tp"), Err("give --mesh fsdp=2,tp=3"));
        check_mesh("x=2,y=3", Some("hsdp"), Err("give --mesh dp=2,fsdp=3"));
        check_mesh("x=2,y=3", Some("tp"), Err("axes are dp, fsdp, tp and cp"));
        // A name that says something else is a mistake.
        check_mesh("dp=4", Some("tp"), Err("give --mesh tp=4"));
        check_mesh("dp=2,cp=2", Some("tp"), Err("it needs an axis tp"));
    }
}
