//! Operations of neural networks.

mod attention;
mod batch_norm;
mod class_sums;
mod classes;
mod conv;
mod conv_backward;
mod conv_windows;
mod cross_entropy;
mod cross_entropy_backward;
mod dropout;
mod embedding;
mod group_norm;
mod halo;
mod interpolate;
mod layer_norm;
mod loss_steps;
mod moments;
mod nll;
mod norm_second;
mod pooling;
mod ring_attention;
mod softmax;
mod steps;

pub use attention::{Attention, AttentionMask};
pub use conv::{Conv, ConvTranspose};
pub use conv_backward::{ConvGrads, WantedGrads};
pub use cross_entropy::{CrossEntropy, Reduction};
pub use interpolate::{Interpolate, InterpolateMode, InterpolateSize};
pub use nll::NllLoss;
pub use pooling::{AvgPool, MaxPool};
pub use ring_attention::Positions;

use crate::op::OpRecord;

pub(super) const RECORDS: &[&[OpRecord]] = &[
    softmax::RECORDS,
    layer_norm::RECORDS,
    group_norm::RECORDS,
    batch_norm::RECORDS,
    embedding::RECORDS,
    cross_entropy::RECORDS,
    cross_entropy_backward::RECORDS,
    nll::RECORDS,
    attention::RECORDS,
    ring_attention::RECORDS,
    dropout::RECORDS,
    conv::RECORDS,
    conv_backward::RECORDS,
    pooling::max::RECORDS,
    pooling::avg::RECORDS,
    pooling::adaptive::RECORDS,
    pooling::backward::RECORDS,
    interpolate::RECORDS,
];
