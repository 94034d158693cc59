//! What an operation does with operands in given layouts, for one rank.

use std::sync::Arc;

use dtensor_layout::Layout;
use dtensor_local::Tensor;
use smallvec::SmallVec;

use super::{agree::Agreement, choose::choose};
use crate::{
    DTensor, DeviceMesh, Error, Result,
    op::{LocalContext, Meta, Op, Outputs},
    redistribute::Route,
    scope,
};

/// A decision, and what it was made for.
pub(crate) struct Decision {
    pub(super) op: Box<dyn Op>,
    pub(super) operands: SmallVec<[Layout; 2]>,
    pub(super) mesh: DeviceMesh,
    what: What,
}

enum What {
    /// One kernel, after some operands have been moved.
    Kernel {
        /// Empty if no operand moves.
        moves: SmallVec<[Option<Arc<Route>>; 2]>,
        results: SmallVec<[Layout; 1]>,
        context: LocalContext,
        /// If a rank may fail alone, which few operations can.
        agreement: Option<Box<Agreement>>,
    },
    /// Several operations.
    Steps,
}

/// How a pending operand is reduced before it is computed with.
pub(super) enum Reduced<'a> {
    /// To this layout.
    To(&'a Layout),
    /// By one of several steps.
    InSteps,
}

impl Decision {
    /// Decides. `rule` replaces that of the operation.
    pub(super) fn new(
        op: &dyn Op,
        operands: &[&DTensor],
        replaced: Option<Result<dtensor_layout::rule::Rule>>,
    ) -> Result<Decision> {
        let (name, mesh) = (op.name(), operands[0].mesh());
        let layouts: Vec<&Layout> = operands.iter().map(|operand| operand.layout()).collect();
        let metas: Vec<Meta> = layouts.iter().map(|layout| Meta::of_layout(layout)).collect();
        // First, since it finds what is wrong with the operands.
        let results = op.infer(&metas)?;
        let made_for = layouts.iter().map(|layout| (*layout).clone()).collect();
        let done = |what| Decision { op: op.boxed(), operands: made_for, mesh: mesh.clone(), what };
        if replaced.is_none() && op.decomposes(&layouts) {
            return Ok(done(What::Steps));
        }
        let rule = replaced.unwrap_or_else(|| op.rule(&metas))?;
        if (rule.n_operands(), rule.n_results()) != (operands.len(), results.len()) {
            let what = format!(
                "its rule `{rule}` is for {} operands and {} results, not {} and {}",
                rule.n_operands(),
                rule.n_results(),
                operands.len(),
                results.len()
            );
            let way_out = "write one tensor per operand and result";
            return Err(Error::Unsupported { op: name, what: what.into(), way_out });
        }
        let choice = choose(name, &rule, &layouts, &results, op.needs_offsets())?;
        let mut moves: SmallVec<[Option<Arc<Route>>; 2]> = SmallVec::new();
        for (layout, target) in layouts.iter().zip(&choice.operands) {
            moves.push(match *layout == target {
                true => None,
                false => Some(super::route(name, (layout, mesh), (target, mesh))?),
            });
        }
        if moves.iter().all(Option::is_none) {
            moves.clear();
        }
        let agreement = Agreement::of(op, &choice.operands, mesh)?.map(Box::new);
        let context = match mesh.coord() {
            Some(coord) => {
                LocalContext::new(choice.operands, choice.results.clone(), coord.to_vec())
            }
            None => LocalContext::whole(),
        };
        let results = choice.results.into();
        Ok(done(What::Kernel { moves, results, context, agreement }))
    }

    #[inline]
    pub(super) fn is_for(&self, op: &dyn Op, operands: &[&DTensor]) -> bool {
        self.mesh.is_same(operands[0].mesh())
            && self.operands.len() == operands.len()
            && self
                .operands
                .iter()
                .zip(operands)
                .all(|(layout, operand)| layout == operand.layout())
            && op.equals(&*self.op)
    }

    #[inline]
    pub(super) fn run(&self, op: &dyn Op, operands: &[&DTensor]) -> Result<Outputs<DTensor>> {
        let What::Kernel { moves, results, context, agreement } = &self.what else {
            return scope::within_op(|| op.decompose(operands));
        };
        if self.mesh.coord().is_none() {
            return self.outside(results);
        }
        let computed = match moves.is_empty() {
            true => {
                let locals: SmallVec<[&Tensor; 3]> =
                    operands.iter().map(|operand| operand.local()).collect();
                op.eval(&locals, context)
            }
            false => {
                let moved = self.moved(op, operands, moves)?;
                op.eval(&moved.iter().collect::<SmallVec<[&Tensor; 3]>>(), context)
            }
        };
        let computed = match agreement {
            None => computed?,
            Some(agreement) => agreement.on(computed)?,
        };
        let placed = computed.into_iter().zip(results);
        Ok(placed
            .map(|(local, layout)| DTensor::from_parts(local, layout.clone(), self.mesh.clone()))
            .collect())
    }

    /// Whether an operand is pending, and is reduced before it is computed with.
    pub(super) fn reduced(&self, operand: usize) -> Option<Reduced<'_>> {
        if !self.operands.get(operand)?.is_partial() {
            return None;
        }
        match &self.what {
            What::Steps => Some(Reduced::InSteps),
            What::Kernel { moves, .. } => {
                let to = moves.get(operand)?.as_ref()?.plan.to();
                (!to.is_partial()).then_some(Reduced::To(to))
            }
        }
    }

    /// Whether operands may be moved without being asked to. All are checked before any is sent.
    pub(super) fn check_moves(&self, op: &dyn Op) -> Result<()> {
        let What::Kernel { moves, .. } = &self.what else { return Ok(()) };
        for (number, route) in moves.iter().enumerate() {
            if let Some(route) = route.as_ref().filter(|route| !route.is_local()) {
                scope::check_implicit(self.mesh.world().rank(), op.name(), number, route)?;
            }
        }
        Ok(())
    }

    /// The local parts of the operands where the kernel needs them.
    #[cold]
    fn moved(
        &self,
        op: &dyn Op,
        operands: &[&DTensor],
        moves: &[Option<Arc<Route>>],
    ) -> Result<SmallVec<[Tensor; 3]>> {
        self.check_moves(op)?;
        let moved = operands.iter().zip(moves).map(|(operand, route)| match route {
            Some(route) => route.run(op.name(), operand.local()),
            None => Ok(operand.local().clone()),
        });
        moved.collect()
    }

    /// On a rank that is not on the mesh: layouts, and nothing in them.
    fn outside(&self, results: &[Layout]) -> Result<Outputs<DTensor>> {
        let empty = |layout: &Layout| {
            let local = Tensor::empty(&[0], layout.dtype())?;
            Ok(DTensor::from_parts(local, layout.clone(), self.mesh.clone()))
        };
        results.iter().map(empty).collect()
    }
}
