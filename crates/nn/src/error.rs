use dtensor::Placement;

/// What a function of this crate gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be changed, read or trained. The same on every rank.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on tensors.
    #[error(transparent)]
    Tensor(#[from] dtensor::Error),
    /// A pattern of a plan that no module has.
    #[error("no module is called `{pattern}`; there are: {modules}")]
    UnmatchedPattern {
        /// The pattern.
        pattern: String,
        /// Names of the modules, the first of them.
        modules: String,
    },
    /// A style for a module that it is not made for.
    #[error("{style} is for {wanted}, and `{module}` is another module; use distribute_module")]
    WrongModule {
        /// The style.
        style: &'static str,
        /// The module.
        module: String,
        /// What it is made for.
        wanted: &'static str,
    },
    /// A module of another type than the one it is to be replaced by.
    #[error("{op}: `{module}` is no {wanted}; choose a pattern for such modules alone")]
    OtherType {
        /// What was asked for.
        op: &'static str,
        /// The module.
        module: String,
        /// The type.
        wanted: &'static str,
    },
    /// A parameter that a state dict does not have.
    #[error("`{name}` is missing; the nearest name is {nearest}")]
    Missing {
        /// Of the parameter.
        name: String,
        /// A name that is there.
        nearest: String,
    },
    /// A name in a state dict that no parameter has.
    #[error("`{name}` is no parameter of the model; leave it out, or load without strict")]
    Unexpected {
        /// The name.
        name: String,
    },
    /// A tensor of another shape than its parameter.
    #[error("`{name}` has shape {got:?}, the model wants {want:?}")]
    Misshapen {
        /// Of the parameter.
        name: String,
        /// What was given.
        got: Vec<usize>,
        /// What the model has.
        want: Vec<usize>,
    },
    /// A parameter that is already cut where it should be cut.
    #[error("`{name}` is {have} on axis `{axis}`, and cannot be cut there again")]
    AlreadyCut {
        /// Of the parameter.
        name: String,
        /// The mesh axis.
        axis: String,
        /// Where it is.
        have: Placement,
    },
    /// A parameter that is gathered for use, and therefore can no longer be cut by others.
    #[error(
        "{op}: `{name}` is gathered for use already; call it before fully_shard and replicate, which cut what is left"
    )]
    GatheredAlready {
        /// What was asked for.
        op: &'static str,
        /// Of the parameter.
        name: String,
    },
    /// A parameter on another mesh than the one that was named.
    #[error(
        "`{name}` is on mesh {own}, not on {mesh}; make the model on the mesh that is given here"
    )]
    OtherMesh {
        /// Of the parameter.
        name: String,
        /// Its mesh.
        own: String,
        /// The one that was named.
        mesh: String,
    },
    /// A setting that makes no sense.
    #[error("{what} is {got}; {want}")]
    BadSetting {
        /// The setting.
        what: &'static str,
        /// Its value.
        got: String,
        /// What it should be.
        want: &'static str,
    },
    /// A loss or a gradient that is no number.
    #[error("the {what} of step {step} is {value}; lower the learning rate")]
    NotFinite {
        /// What is no number.
        what: &'static str,
        /// The step.
        step: u64,
        /// What it is.
        value: f64,
    },
}

impl Error {
    pub(crate) fn bad(what: &'static str, got: impl ToString, want: &'static str) -> Error {
        Error::BadSetting { what, got: got.to_string(), want }
    }
}
