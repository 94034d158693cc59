//! The ranks that a sharded tensor lies on.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
};

use dtensor::{DeviceMesh, Group, World, WorldKind};
use dtensor_rpc::Agent;

use crate::{Error, Result, ShardMetadata, ShardPlacement};

/// Some ranks of a world, in an order. Cloning is cheap.
///
/// Placements name ranks of the *world*. What names a member of a group (the source of
/// [`shard_tensor`](crate::shard_tensor), the destination of [`gather`](crate::ShardedTensor::gather)) counts
/// within the group.
///
/// A rank that is not among them may make the group as well, and tensors on it: it holds no shard of them, and
/// what the members send each other does not concern it.
///
/// ```
/// use dtensor_sharded::{ProcessGroup, Runner};
///
/// Runner::threads(4).run(|world| {
///     let pair = ProcessGroup::new(world, &[2, 3])?;
///     assert_eq!(pair.rank(), [None, None, Some(0), Some(1)][world.rank()]);
///     Ok::<_, dtensor_sharded::Error>(())
/// })?;
/// # Ok::<(), dtensor_sharded::RunError>(())
/// ```
#[derive(Clone)]
pub struct ProcessGroup {
    shared: Arc<Shared>,
    /// Who knows workers by their names.
    agent: Option<Agent>,
}

struct Shared {
    world: World,
    ranks: Box<[usize]>,
    /// The positions of the ranks, where they are not the ranks themselves. Asked for once per shard, so a walk
    /// over the ranks would cost shards times ranks.
    positions: Option<HashMap<usize, usize>>,
    /// `None` on a rank that is not a member.
    group: Option<Group>,
    /// The ranks as a mesh of one axis, made when it is first asked for: operations know meshes by their
    /// identity.
    line: OnceLock<Option<DeviceMesh>>,
}

/// Ranks of a group that an error shows.
const SHOWN: usize = 16;

impl ProcessGroup {
    /// All ranks of a world.
    pub fn of_world(world: &World) -> ProcessGroup {
        let group = world.group();
        let ranks = group.world_ranks().into();
        ProcessGroup::of(world, ranks, Some(group))
    }

    /// These ranks of a world, in this order. Nothing is sent.
    pub fn new(world: &World, ranks: &[usize]) -> Result<ProcessGroup> {
        const OP: &str = "ProcessGroup";
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        let repeats = sorted.windows(2).any(|pair| pair[0] == pair[1]);
        // Members and others find the same.
        if sorted.last().is_none_or(|last| *last >= world.size()) || repeats {
            let what = format!("the ranks {:?} of a world of {}", shown(ranks), world.size());
            return Err(Error::refused(OP, what, "list ranks of the world, each once"));
        }
        let is_member = ranks.contains(&world.rank());
        let group =
            is_member.then(|| world.subgroup(ranks)).transpose().map_err(Error::comm(OP))?;
        Ok(ProcessGroup::of(world, ranks.into(), group))
    }

    fn of(world: &World, ranks: Box<[usize]>, group: Option<Group>) -> ProcessGroup {
        let line = OnceLock::new();
        let ranked = || ranks.iter().enumerate().map(|(position, rank)| (*rank, position));
        // Almost every group is a whole world, where they are the same.
        let is_plain = ranked().all(|(rank, position)| rank == position);
        let positions = (!is_plain).then(|| ranked().collect());
        let shared = Shared { world: world.clone(), ranks, positions, group, line };
        ProcessGroup { shared: Arc::new(shared), agent: None }
    }

    /// The same ranks, with workers: placements may then name those (`trainer-1/cpu`), and tensors can be
    /// read that were stored with [references](crate::ShardedTensor::remote_shards). A worker stands for the
    /// rank of the world that is its number.
    ///
    /// ```
    /// use dtensor_sharded::{ChunkShardingSpec, DType, ProcessGroup, Runner, rpc, zeros};
    ///
    /// Runner::threads(2).run(|world| {
    ///     let agent = rpc::init_rpc(world, ["left", "right"][world.rank()], rpc::Options::default())?;
    ///     let group = ProcessGroup::of_world(world).with_rpc(&agent);
    ///     let rows = ChunkShardingSpec::new(0, &["right/cpu", "left/cpu"])?;
    ///     let x = zeros(rows, &[3, 4], DType::F32, group)?;
    ///     assert_eq!(x.local_tensor()?.shape(), [[1, 4], [2, 4]][world.rank()]);
    ///     agent.shutdown()?;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// })?;
    /// # Ok::<(), dtensor_sharded::RunError>(())
    /// ```
    #[must_use]
    pub fn with_rpc(mut self, agent: &Agent) -> ProcessGroup {
        self.agent = Some(agent.clone());
        self
    }

    /// Who knows workers by their names, if somebody does.
    pub fn rpc(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// The world that the ranks belong to.
    pub fn world(&self) -> &World {
        &self.shared.world
    }

    /// This rank's position in the group; `None` if it is not a member.
    pub fn rank(&self) -> Option<usize> {
        self.shared.group.as_ref().map(Group::rank)
    }

    /// This rank in the world.
    pub fn world_rank(&self) -> usize {
        self.shared.world.rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shared.ranks.len()
    }

    /// The ranks of the world that the members are, in their order.
    pub fn world_ranks(&self) -> &[usize] {
        &self.shared.ranks
    }

    /// The position in the group of a rank of the world.
    pub fn group_rank_of(&self, world_rank: usize) -> Option<usize> {
        match &self.shared.positions {
            None => (world_rank < self.size()).then_some(world_rank),
            Some(positions) => positions.get(&world_rank).copied(),
        }
    }

    /// What the members communicate with, with the name of an operation for a tag; or an error that says that
    /// this rank is none, or that the world is a fake, in which nothing can be sent.
    pub fn group(&self, op: &'static str) -> Result<Group> {
        if self.world().kind() == WorldKind::Fake && self.size() > 1 {
            let what = "a fake world has no other ranks to communicate with";
            return Err(Error::refused(op, what, "run it on threads or under mpirun"));
        }
        match &self.shared.group {
            Some(group) => Ok(group.tag(op)),
            None => Err(Error::NotAMember {
                op: op.into(),
                rank: self.shared.world.rank(),
                group: shown(&self.shared.ranks),
            }),
        }
    }

    /// Whether both are the same ranks of one world in the same order, and so share one sequence of calls.
    pub fn is_same(&self, other: &ProcessGroup) -> bool {
        self.shared.world.is_same(&other.shared.world) && self.shared.ranks == other.shared.ranks
    }

    /// The ranks as a mesh of one axis, if they are equally spaced.
    pub(crate) fn line(&self) -> Option<DeviceMesh> {
        let make = || {
            let (first, stride) = self.spacing()?;
            let text = format!("shards={}:{stride}@{first}", self.size());
            DeviceMesh::from_mesh(self.world(), text.parse().ok()?).ok()
        };
        self.shared.line.get_or_init(make).clone()
    }

    /// The first rank and the distance between neighbours, if they are equally spaced.
    pub(crate) fn spacing(&self) -> Option<(usize, usize)> {
        let first = *self.shared.ranks.first()?;
        let stride = match self.shared.ranks.get(1) {
            Some(second) => second.checked_sub(first)?,
            None => 1,
        };
        let is_regular = self
            .shared
            .ranks
            .iter()
            .enumerate()
            .all(|(index, rank)| *rank == first + index * stride);
        is_regular.then_some((first, stride))
    }

    /// The rank of the world that a placement names, which must be a member.
    pub(crate) fn owner_of(
        &self,
        op: &'static str,
        placement: Option<&ShardPlacement>,
    ) -> Result<usize> {
        let no_rank = || Error::NoRank { op: op.into(), placement: placement.cloned() };
        let placement = placement.ok_or_else(no_rank)?;
        let rank = match placement.worker() {
            Some(worker) => self.rank_of_worker(op, worker)?,
            None => placement.rank().ok_or_else(no_rank)?,
        };
        match self.group_rank_of(rank) {
            Some(_) => Ok(rank),
            None => {
                Err(Error::RankNotInGroup { op: op.into(), rank, group: shown(&self.shared.ranks) })
            }
        }
    }

    /// The same shards, of which each now knows its rank, if all lie on members.
    pub(crate) fn placed(
        &self,
        op: &'static str,
        shards: Vec<ShardMetadata>,
    ) -> Result<Vec<ShardMetadata>> {
        let placed = |shard: ShardMetadata| -> Result<ShardMetadata> {
            let rank = self.owner_of(op, shard.placement())?;
            match shard.placement().cloned() {
                Some(placement) if placement.worker().is_some() => {
                    Ok(shard.with_placement(placement.of_worker_on(rank)))
                }
                _ => Ok(shard),
            }
        };
        shards.into_iter().map(placed).collect()
    }

    fn rank_of_worker(&self, op: &'static str, worker: &str) -> Result<usize> {
        let Some(agent) = &self.agent else {
            return Err(Error::NoWorkers { op: op.into(), worker: worker.into() });
        };
        match agent.worker(worker) {
            Ok(info) => Ok(info.id),
            Err(_) => Err(Error::NoSuchWorker { op: op.into(), worker: worker.into() }),
        }
    }

    /// An error if a rank within the group does not exist.
    pub(crate) fn check_group_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        match rank < self.size() {
            true => Ok(()),
            false => Err(Error::NoSuchGroupRank { op: op.into(), rank, size: self.size() }),
        }
    }

    /// An error if operands are on different groups.
    pub(crate) fn check_same(
        &self,
        op: &'static str,
        operand: usize,
        other: &ProcessGroup,
    ) -> Result<()> {
        match self.is_same(other) {
            true => Ok(()),
            false => Err(Error::MixedGroups {
                op: op.into(),
                first: shown(&self.shared.ranks),
                operand,
                other: shown(&other.shared.ranks),
            }),
        }
    }
}

impl From<&World> for ProcessGroup {
    fn from(world: &World) -> ProcessGroup {
        ProcessGroup::of_world(world)
    }
}

impl From<&ProcessGroup> for ProcessGroup {
    fn from(group: &ProcessGroup) -> ProcessGroup {
        group.clone()
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup({:?})", self.shared.ranks)
    }
}

fn shown(ranks: &[usize]) -> Box<[usize]> {
    ranks[..ranks.len().min(SHOWN)].into()
}
