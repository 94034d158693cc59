//! When parameters are gathered: ahead of the module that needs them, there and back. And when gradients go to their parts.

use dtensor::{
    CommDebug, DTensor, DType, DeviceMesh, Phase,
    Placement::Shard,
    checkpoint,
    plan::StepKind::{self, AllGather, ReduceScatter},
};
use dtensor_nn::{
    Forward, FullyShardOptions, Linear, Module, ModuleState, Result, assign_names, fully_shard,
};
use dtensor_testing::spmd;

use crate::support::{fill, mesh, tensor};

/// Products one after the other.
#[derive(Module)]
struct Chain {
    blocks: Vec<Linear>,
    /// A product of the model itself, after the blocks.
    head: Option<Linear>,
    #[module(skip)]
    recompute: bool,
    state: ModuleState,
}

/// Features before, between and after the blocks, and after the last product: every weight has another size.
const FEATURES: [usize; 5] = [5, 6, 7, 4, 9];
const N_BLOCKS: usize = 3;
/// The number of the last product, among the blocks.
const HEAD: usize = N_BLOCKS;

impl Forward for Chain {
    fn forward(&self, x: &DTensor) -> dtensor::Result<DTensor> {
        let mut x = x.clone();
        for block in &self.blocks {
            let run = block.clone();
            x = match self.recompute {
                true => checkpoint(&x, move |x| run.call(x))?,
                false => run.call(&x)?,
            };
        }
        match &self.head {
            Some(head) => head.call(&x),
            None => Ok(x),
        }
    }
}

impl Chain {
    fn new(case: &Case, mesh: &DeviceMesh) -> Result<Chain> {
        let linear = |sizes: &[usize]| Linear::new(sizes[0], sizes[1], false, DType::F64, mesh);
        let mut products = FEATURES.windows(2).map(linear);
        let blocks = products.by_ref().take(N_BLOCKS).collect::<dtensor::Result<_>>()?;
        let mut chain = Chain {
            blocks,
            head: products.next().filter(|_| case.head).transpose()?,
            recompute: case.recompute,
            state: ModuleState::default(),
        };
        fill(&chain)?;
        assign_names(&mut chain);
        let mut options = FullyShardOptions::default();
        options.prefetch = case.prefetch;
        for block in &mut chain.blocks {
            fully_shard(block, "x", &options)?;
        }
        if case.enclosed {
            fully_shard(&mut chain, "x", &options)?;
        }
        Ok(chain)
    }

    /// The gathers of a step, in the order in which they begin: in which module, and of which block.
    fn gathers(&self, mesh: &DeviceMesh) -> Result<(Gathers, Gathers)> {
        let calls = self.calls(mesh)?;
        let of_phase = |phase: Phase| {
            let gathers = calls.iter().filter(|call| call.kind == AllGather && call.phase == phase);
            gathers.map(|call| (call.module.clone(), call.block)).collect()
        };
        Ok((of_phase(Phase::Forward), of_phase(Phase::Backward)))
    }

    /// All calls of a step that are about a weight, in the order in which they begin.
    fn calls(&self, mesh: &DeviceMesh) -> Result<Vec<Call>> {
        let x = tensor(&[8, FEATURES[0]], 1.0, DType::F64, mesh, &[Shard(0)]).requires_grad()?;
        let (outcome, comm) =
            CommDebug::record(|| self.call(&x)?.square()?.sum(&[], false)?.backward());
        assert_eq!(outcome?.len(), 1 + N_BLOCKS + usize::from(self.head.is_some()));
        let block = |bytes: u128| {
            let sent = |sizes: &[usize]| (sizes[0] * sizes[1] * 8) as u128;
            FEATURES.windows(2).position(|sizes| sent(sizes) == bytes)
        };
        let events =
            comm.events.iter().filter(|event| [AllGather, ReduceScatter].contains(&event.kind));
        let call = |event: &dtensor::CommEvent| Call {
            kind: event.kind,
            phase: event.phase,
            module: event.module.as_deref().unwrap_or("").to_owned(),
            block: block(event.bytes).unwrap(),
        };
        Ok(events.map(call).collect())
    }
}

struct Call {
    kind: StepKind,
    phase: Phase,
    module: String,
    block: usize,
}

type Gathers = Vec<(String, usize)>;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Whether the model is a unit as well, and not only its blocks.
    enclosed: bool,
    prefetch: bool,
    recompute: bool,
    /// Whether the model has a parameter of its own.
    head: bool,
}

/// Two ranks: each sends its half to the other.
#[track_caller]
fn check(
    case: Case,
    first_forward: &[(&str, usize)],
    forward: &[(&str, usize)],
    backward: &[(&str, usize)],
) {
    spmd(2, |world| {
        let mesh = mesh(world, &[("x", 2)]);
        let chain = Chain::new(&case, &mesh)?;
        let owned = |gathers: &[(&str, usize)]| -> Gathers {
            gathers.iter().map(|(module, block)| ((*module).to_owned(), *block)).collect()
        };
        for (step, forward) in [first_forward, forward, forward].into_iter().enumerate() {
            let got = chain.gathers(&mesh)?;
            assert_eq!(got, (owned(forward), owned(backward)), "step {step} of {case:?}");
        }
        Ok(())
    });
}

const B0: &str = "blocks.0";
const B1: &str = "blocks.1";
const B2: &str = "blocks.2";
/// Each block when it runs.
const LATE: [(&str, usize); 3] = [(B0, 0), (B1, 1), (B2, 2)];
const LATE_BACK: [(&str, usize); 3] = [(B2, 2), (B1, 1), (B0, 0)];
/// While the block after it, seen from here, is still to run.
const AHEAD_BACK: [(&str, usize); 3] = [(B2, 2), (B2, 1), (B1, 0)];

#[test]
fn blocks_are_gathered_ahead_of_their_use_there_and_back() {
    for recompute in [false, true] {
        let case = Case { enclosed: true, prefetch: true, recompute, head: false };
        // The model has no parameter of its own, and gathers those of its first block.
        let ahead = [("", 0), (B0, 1), (B1, 2)];
        check(case, &ahead, &ahead, &AHEAD_BACK);
        check(Case { prefetch: false, ..case }, &LATE, &LATE, &LATE_BACK);
    }
}

/// They learn in their first step which one follows which.
#[test]
fn blocks_of_a_model_that_is_no_unit_are_gathered_ahead_as_well() {
    for recompute in [false, true] {
        let case = Case { enclosed: false, prefetch: true, recompute, head: false };
        check(case, &LATE, &[(B0, 0), (B0, 1), (B1, 2)], &AHEAD_BACK);
        check(Case { prefetch: false, ..case }, &LATE, &LATE, &LATE_BACK);
    }
}

/// The way back begins in the model itself: while it computes with its own parameter, that of the last block is on its way.
#[test]
fn the_last_block_is_gathered_ahead_on_the_way_back() {
    for recompute in [false, true] {
        let case = Case { enclosed: true, prefetch: true, recompute, head: true };
        let there = [("", HEAD), ("", 0), (B0, 1), (B1, 2)];
        let back = [("head", HEAD), ("head", 2), (B2, 1), (B1, 0)];
        check(case, &there, &there, &back);
    }
}

/// Otherwise every rank would hold the whole gradients of all blocks until the end of the walk.
#[test]
fn gradients_go_to_their_parts_block_by_block() {
    let late = [
        (AllGather, 2),
        (ReduceScatter, 2),
        (AllGather, 1),
        (ReduceScatter, 1),
        (AllGather, 0),
        (ReduceScatter, 0),
    ];
    let ahead = [
        (AllGather, 2),
        (AllGather, 1),
        (ReduceScatter, 2),
        (AllGather, 0),
        (ReduceScatter, 1),
        (ReduceScatter, 0),
    ];
    for (prefetch, want) in [(false, late), (true, ahead)] {
        for (enclosed, recompute) in [(true, false), (true, true), (false, false)] {
            let case = Case { enclosed, prefetch, recompute, head: false };
            spmd(2, |world| {
                let mesh = mesh(world, &[("x", 2)]);
                let chain = Chain::new(&case, &mesh)?;
                // In the first step blocks may learn of each other.
                chain.calls(&mesh)?;
                let calls = chain.calls(&mesh)?.into_iter();
                let back = calls.filter(|call| call.phase == Phase::Backward);
                let back: Vec<_> = back.map(|call| (call.kind, call.block)).collect();
                assert_eq!(back, want, "{case:?}");
                Ok(())
            });
        }
    }
}
