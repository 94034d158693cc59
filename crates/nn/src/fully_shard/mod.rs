//! Parameters that lie in parts and are gathered for use.
//!
//! The gathering is a [`redistribute`](dtensor::DTensor::redistribute), so the way back is one as well: contributions of the
//! ranks to a gradient are reduce-scattered to where the parameter lies. What is left to this module is *when*: a unit
//! gathers its parameters before its module runs and lets go of them afterwards; while one runs, the next one's are on their
//! way; and what gradients need of a gathered parameter is kept in parts and gathered once more.

mod gather;
mod unit;

use dtensor::{Cut, DType, Layout, Placement};

pub(crate) use gather::Gather;
pub(crate) use unit::Unit;

use crate::{Error, Member, Module, Parameter, Result, traverse};

/// How [`fully_shard`] goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FullyShardOptions {
    /// Let go of gathered parameters after the module has run, and gather them once more on the way back.
    pub reshard_after_forward: bool,
    /// Begin to gather the parameters of the next unit while this one runs.
    pub prefetch: bool,
    /// What parameters are gathered in and computed with, if not their own dtype. Operands are cast to it.
    pub param_dtype: Option<DType>,
    /// What gradients are reduced in, if not the dtype of the parameters.
    pub reduce_dtype: Option<DType>,
    /// What the result of the module is cast to.
    pub output_dtype: Option<DType>,
    /// The dim along which parameters are cut. One that has fewer dims is cut along its last.
    pub dim: usize,
}

impl Default for FullyShardOptions {
    fn default() -> FullyShardOptions {
        FullyShardOptions {
            reshard_after_forward: true,
            prefetch: true,
            param_dtype: None,
            reduce_dtype: None,
            output_dtype: None,
            dim: 0,
        }
    }
}

impl FullyShardOptions {
    /// Keep gathered parameters until their gradients have been computed: less is sent, more is held.
    #[must_use]
    pub fn keep_after_forward(mut self) -> FullyShardOptions {
        self.reshard_after_forward = false;
        self
    }

    /// Gather and compute in one dtype, and reduce gradients in another.
    #[must_use]
    pub fn mixed_precision(mut self, param: DType, reduce: DType) -> FullyShardOptions {
        (self.param_dtype, self.reduce_dtype) = (Some(param), Some(reduce));
        self
    }
}

/// Cuts the parameters of a module along a mesh axis, and gathers them whenever it runs. Parameters of modules in it that
/// are fully sharded already are left out: apply it to the blocks of a model first, and then to the model.
///
/// A parameter may be cut on other axes by then, by [tensor parallel](crate::parallelize_module) styles: this axis cuts
/// last, what the others left. Parameters that are copies on a further axis stay so there, and their gradients are reduced
/// over both. Buffers stay as they are, in their dtype and where they lie.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, ones};
/// use dtensor_nn::{Forward, FullyShardOptions, Linear, fully_shard};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "dp")?;
///     let mut layer = Linear::new(4, 3, true, DType::F32, &mesh)?;
///     fully_shard(&mut layer, "dp", &FullyShardOptions::default())?;
///     let weight = layer.weight.value();
///     assert_eq!(weight.placements(), [Shard(0)]);
///     let y = layer.call(&ones(&[6, 4], DType::F32, &mesh, &[Shard(0)])?)?;
///     let gradients = y.mean(&[], false)?.backward()?;
///     assert_eq!(gradients.get(&weight).unwrap().layout(), weight.layout());
///     Ok::<_, dtensor_nn::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn fully_shard(module: &mut dyn Module, axis: &str, options: &FullyShardOptions) -> Result<()> {
    shard(module, axis, options, true)
}

/// Data parallel on the same machinery: parameters stay as they are; dtypes as in `options`, for parameters. Gradients of copies are reduced
/// once, over all ranks of the axis.
pub fn replicate(module: &mut dyn Module, axis: &str, options: &FullyShardOptions) -> Result<()> {
    shard(module, axis, options, false)
}

fn shard(
    module: &mut dyn Module,
    axis: &str,
    options: &FullyShardOptions,
    cuts: bool,
) -> Result<()> {
    if module.state().unit().is_some() {
        let want = "fully_shard and replicate are for modules that are not";
        return Err(Error::bad("the module", "gathered already", want));
    }
    let own = own_parameters(module);
    let mut gathers = Vec::with_capacity(own.len());
    for (name, parameter) in &own {
        let value = parameter.value();
        let axis_index = value.mesh().axis_index(axis)?;
        let have = value.placements()[axis_index];
        if cuts && have != Placement::Replicate {
            return Err(Error::AlreadyCut { name: name.clone(), axis: axis.to_owned(), have });
        }
        let whole = value.placements().to_vec();
        let layout = match cuts && value.n_dims() > 0 {
            true => cut_last(value.layout(), axis_index, options.dim.min(value.n_dims() - 1))?,
            false => value.layout().clone(),
        };
        gathers.push((value.redistribute_layout(&layout)?, whole));
    }
    // All can be cut: now they are.
    let unit = Unit::new(own.iter().map(|(_, parameter)| parameter.clone()).collect(), options);
    for ((_, parameter), (value, whole)) in own.iter().zip(gathers) {
        parameter.set(&value)?;
        *parameter.gather() = Some(Gather::new(whole, &unit));
    }
    module.state_mut().set_unit(unit);
    traverse::assign_names(module);
    unit::link(module);
    Ok(())
}

/// The layout with one more cut, after those that are there.
fn cut_last(layout: &Layout, axis: usize, dim: usize) -> Result<Layout> {
    let mut placements = layout.placements().to_vec();
    placements[axis] = Placement::Shard(dim);
    let mut cuts: Vec<Vec<Cut>> = layout.order().dims().map(<[Cut]>::to_vec).collect();
    cuts[dim].push(Cut { axis, split_factor: 1 });
    let (shape, dtype) = (layout.global_shape(), layout.dtype());
    Layout::with_cuts(shape, dtype, layout.mesh(), &placements, &cuts).map_err(|source| {
        dtensor::Error::Layout { op: "fully_shard", source: Box::new(source) }.into()
    })
}

/// The parameters of a module without those of units in it, and without buffers: these may have any dtype and any use, of
/// which a part, or a value in another dtype, is something else.
fn own_parameters(module: &dyn Module) -> Vec<(String, Parameter)> {
    let mut own: Vec<(String, Parameter)> = Vec::new();
    traverse::walk(module, "", &mut |name, member| match member {
        Member::Parameter(parameter) => {
            let is_known = own.iter().any(|(_, other)| other.is_same(parameter));
            if !is_known && !parameter.is_buffer() && parameter.gather().is_none() {
                own.push((name.to_owned(), (*parameter).clone()));
            }
            true
        }
        Member::Module(module) => module.state().unit().is_none(),
    });
    own
}
