//! Which axis of the mesh does what.

use dtensor::{DTensor, DeviceMesh, Mesh, MeshAxis, Placement, Tensor, distribute_tensor_from};
use dtensor_nn::{head_tail_inverse, head_tail_order};

use crate::error::{Error, Result};

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
    /// From what was typed: a mesh, strategies, or both. Without a mesh all `ranks` are one axis, or there are four.
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
            (None, [word]) if *word != "hsdp" => format!("{word}={}", ranks.unwrap_or(4)),
            (None, _) => {
                let message = "--parallel with several strategies needs a mesh";
                return Err(Error::usage(message).with_hint("add --mesh, for example dp=2,tp=2"));
            }
        };
        let mesh: Mesh = text.parse().map_err(|error| Error::usage(format!("--mesh: {error}")))?;
        let mut roles = Vec::new();
        for axis in mesh.axes() {
            let name = axis.name();
            let has = |word: &str| words.contains(&word);
            let role = match name {
                "dp" if has("fsdp") && !mesh.axes().iter().any(|axis| axis.name() == "fsdp") => {
                    Role::Sharded
                }
                "dp" => Role::Data,
                "fsdp" => Role::Sharded,
                "tp" => Role::Tensor,
                "cp" => Role::Context,
                _ => {
                    let message = format!("--mesh: there is no axis `{name}`");
                    return Err(Error::usage(message).with_hint("axes are dp, fsdp, tp and cp"));
                }
            };
            roles.push((name.to_owned(), role));
        }
        let strategy = Strategy { roles, sequence_parallel: words.contains(&"sp") };
        strategy.check(&words)?;
        Ok((mesh, strategy))
    }

    /// Every strategy that was asked for has its axis.
    fn check(&self, words: &[&str]) -> Result<()> {
        let has = |role: Role| self.axes(role).next().is_some();
        for word in words {
            let (there, axes) = match *word {
                "dp" => (has(Role::Data), "dp"),
                "fsdp" => (has(Role::Sharded), "dp or fsdp"),
                "hsdp" => (has(Role::Data) && has(Role::Sharded), "dp and fsdp"),
                "cp" => (has(Role::Context), "cp"),
                _ => (has(Role::Tensor), "tp"),
            };
            if !there {
                let message = format!("--parallel {word} needs axes that the mesh does not have");
                return Err(Error::usage(message).with_hint(format!("give --mesh with {axes}")));
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
