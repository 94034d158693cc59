use dtensor::{DTensor, DType, DeviceMesh, Result, ops::nn::Conv};

use crate::{Error, Forward, Module, ModuleState, Parameter, init};

macro_rules! convolutions {
    ($($(#[$doc:meta])* $Conv:ident $conv:ident $n_dims:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $Conv {
            /// `[filters, channels / groups, window...]`.
            pub weight: Parameter,
            /// `[filters]`.
            pub bias: Option<Parameter>,
            #[module(skip)]
            stride: [usize; $n_dims],
            #[module(skip)]
            padding: [usize; $n_dims],
            #[module(skip)]
            dilation: [usize; $n_dims],
            #[module(skip)]
            groups: usize,
            state: ModuleState,
        }

        impl $Conv {
            /// With first values as PyTorch's, a copy on every rank. Windows are next to each other, without padding.
            pub fn new(
                channels: usize,
                filters: usize,
                window: [usize; $n_dims],
                bias: bool,
                dtype: DType,
                mesh: &DeviceMesh,
            ) -> Result<$Conv> {
                $Conv::of_groups((channels, 1), filters, window, bias, dtype, mesh)
            }

            /// The same in groups, which both numbers must be divisible by: filters of a group see its channels alone. With as
            /// many groups as channels, every channel has filters of its own.
            pub fn grouped(
                channels: usize,
                filters: usize,
                window: [usize; $n_dims],
                groups: usize,
                bias: bool,
                dtype: DType,
                mesh: &DeviceMesh,
            ) -> Result<$Conv, Error> {
                if groups == 0 || channels % groups != 0 || filters % groups != 0 {
                    let got = format!("{groups} for {channels} channels and {filters} filters");
                    return Err(Error::bad("the number of groups", got, "it must divide both"));
                }
                let channels = (channels / groups, groups);
                Ok($Conv::of_groups(channels, filters, window, bias, dtype, mesh)?)
            }

            fn of_groups(
                (channels, groups): (usize, usize),
                filters: usize,
                window: [usize; $n_dims],
                bias: bool,
                dtype: DType,
                mesh: &DeviceMesh,
            ) -> Result<$Conv> {
                let copies = init::copies(mesh);
                let shape = [&[filters, channels][..], &window].concat();
                let weight = init::kaiming_uniform(&shape, dtype, mesh, &copies)?;
                let inputs: usize = shape[1..].iter().product();
                let bound = 1.0 / (inputs.max(1) as f64).sqrt();
                let bias = match bias {
                    true => {
                        let values = init::uniform(&[filters], (-bound, bound), dtype, mesh, &copies)?;
                        Some(Parameter::new(&values)?)
                    }
                    false => None,
                };
                Ok($Conv {
                    weight: Parameter::new(&weight)?,
                    bias,
                    stride: [1; $n_dims],
                    padding: [0; $n_dims],
                    dilation: [1; $n_dims],
                    groups,
                    state: ModuleState::default(),
                })
            }

            /// With so much from one window to the next.
            #[must_use]
            pub fn stride(mut self, stride: [usize; $n_dims]) -> $Conv {
                self.stride = stride;
                self
            }

            /// With so many zeros on both sides.
            #[must_use]
            pub fn padding(mut self, padding: [usize; $n_dims]) -> $Conv {
                self.padding = padding;
                self
            }

            /// With so much from one element of a window to the next.
            #[must_use]
            pub fn dilation(mut self, dilation: [usize; $n_dims]) -> $Conv {
                self.dilation = dilation;
                self
            }
        }

        impl Forward for $Conv {
            fn forward(&self, x: &DTensor) -> Result<DTensor> {
                let bias = self.bias.as_ref().map(Parameter::get).transpose()?;
                let settings = Conv {
                    stride: &self.stride,
                    padding: &self.padding,
                    dilation: &self.dilation,
                    groups: self.groups,
                };
                x.$conv(&self.weight.get()?, bias.as_ref(), &settings)
            }
        }
    )*};
}

convolutions! {
    /// Convolution of `[batch, channels, length]`.
    Conv1d conv1d 1;
    /// Convolution of `[batch, channels, height, width]`.
    Conv2d conv2d 2;
}
