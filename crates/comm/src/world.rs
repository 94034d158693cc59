//! One rank's view of all ranks.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    CommError, Group,
    fake::FakeTransport,
    recorder::Recorder,
    transport::{Connection, FirstCause, Transport},
};

/// One rank's handle to all ranks. Cloning is cheap. [`run`](crate::run) gives one to every rank.
#[derive(Clone)]
pub struct World {
    shared: Arc<WorldShared>,
}

/// What carries the calls of a [`World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorldKind {
    /// Ranks are threads of one process.
    Threads,
    /// Ranks are processes under mpirun.
    Mpi,
    /// There is one rank; calls are checked and recorded, and move nothing.
    Fake,
}

impl WorldKind {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            WorldKind::Threads => "threads",
            WorldKind::Mpi => "mpi",
            WorldKind::Fake => "fake",
        }
    }
}

impl fmt::Display for WorldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

struct WorldShared {
    rank: usize,
    size: usize,
    kind: WorldKind,
    transport: Arc<dyn Transport>,
    recorder: Arc<Recorder>,
    whole: Group,
    /// Sub-groups by their ranks. The same list is the same group, with one sequence of calls.
    groups: Mutex<HashMap<Arc<[usize]>, Group>>,
}

impl World {
    pub(crate) fn new(kind: WorldKind, connection: Connection) -> World {
        let Connection { transport, rank, size } = connection;
        let recorder = Arc::new(Recorder::new());
        let whole = Group::new(None, size, rank, Arc::clone(&transport), Arc::clone(&recorder));
        let groups = Mutex::default();
        let shared = WorldShared { rank, size, kind, transport, recorder, whole, groups };
        World { shared: Arc::new(shared) }
    }

    /// A world of `size` ranks of which only `rank` exists: calls are checked and recorded, move
    /// nothing and leave the buffers as they are. For shapes, plans and byte counts of a cluster on a
    /// laptop; nothing costs more for more ranks, but what lists them.
    ///
    /// ```
    /// use dtensor_comm::{CommError, ReduceOp, World};
    ///
    /// let world = World::fake(262_144, 7)?;
    /// let row = world.subgroup(&[3, 5, 7, 9])?;
    /// row.all_reduce(&mut [0.0_f32; 1000], ReduceOp::Sum)?;
    /// assert_eq!((row.rank(), world.recorder().records()[0].bytes), (2, 4000));
    /// # Ok::<(), CommError>(())
    /// ```
    pub fn fake(size: usize, rank: usize) -> Result<World, CommError> {
        if rank >= size {
            return Err(CommError::NoSuchRank { call: "World::fake", rank, size });
        }
        let transport = Arc::new(FakeTransport);
        Ok(World::new(WorldKind::Fake, Connection { transport, rank, size }))
    }

    /// This rank, `0..size()`.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// What carries the calls.
    pub fn kind(&self) -> WorldKind {
        self.shared.kind
    }

    /// The group of all ranks.
    pub fn group(&self) -> Group {
        self.shared.whole.clone()
    }

    /// The group of these world ranks, in this order: their positions are the group ranks. This rank
    /// must be among them.
    ///
    /// Does not communicate, and gives the same group, with one sequence of calls, for the same list
    /// every time. The members may ask for it at different times, and other ranks need not know.
    ///
    /// ```
    /// use dtensor_comm::{CommError, Runner};
    ///
    /// let neighbours = Runner::threads(4).run(|world| {
    ///     let first = world.rank() / 2 * 2;
    ///     let pair = world.subgroup(&[first, first + 1])?;
    ///     let mut ranks = [0_i64; 2];
    ///     pair.all_gather(&[world.rank() as i64], &mut ranks)?;
    ///     Ok::<_, CommError>(ranks)
    /// })?;
    /// assert_eq!(neighbours, [[0, 1], [0, 1], [2, 3], [2, 3]]);
    /// # Ok::<(), dtensor_comm::RunError>(())
    /// ```
    pub fn subgroup(&self, ranks: &[usize]) -> Result<Group, CommError> {
        let shared = &*self.shared;
        let mut groups = shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(ranks) {
            return Ok(group.clone());
        }
        let rank = self.check_members(ranks)?;
        if ranks.len() == shared.size && ranks.is_sorted() {
            return Ok(self.group());
        }
        let members: Arc<[usize]> = ranks.into();
        let transport = shared.transport.subgroup(&members)?;
        let recorder = Arc::clone(&shared.recorder);
        let group = Group::new(Some(Arc::clone(&members)), ranks.len(), rank, transport, recorder);
        groups.insert(members, group.clone());
        Ok(group)
    }

    /// Whether both are handles of one rank to one world.
    pub fn is_same(&self, other: &World) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The last calls of this rank.
    pub fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// Ends this rank's part: see [`Transport::leave`].
    pub(crate) fn leave(&self, outcome: Result<(), CommError>) -> Option<FirstCause> {
        self.shared.transport.leave(outcome)
    }

    /// The group rank of this rank, if `ranks` make a group.
    fn check_members(&self, ranks: &[usize]) -> Result<usize, CommError> {
        let bad = |why| {
            let shown = ranks.len().min(16);
            let (size, rank) = (self.shared.size, self.shared.rank);
            Err(CommError::BadGroup { ranks: ranks[..shown].into(), size, rank, why })
        };
        if ranks.iter().any(|&rank| rank >= self.shared.size) {
            return bad("a rank is not in the world");
        }
        if !ranks.is_sorted_by(|a, b| a < b) {
            let mut sorted = ranks.to_vec();
            sorted.sort_unstable();
            if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                return bad("a rank is listed twice");
            }
        }
        match ranks.iter().position(|&rank| rank == self.shared.rank) {
            Some(rank) => Ok(rank),
            None => bad("only members may ask for a group"),
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("kind", &self.kind())
            .finish_non_exhaustive()
    }
}
