//! How checkpoints of each kind are read into a [`Catalog`](crate::Catalog).
//!
//! | what is found | format | its page |
//! |---|---|---|
//! | `dtensor.manifest.json` | [`Format::Native`] | |
//! | `.metadata` and `*.distcp` | [`Format::Distcp`] | `distcp`: a pickle, and archives as of `torch.save` one after the other |
//! | `*.safetensors` | [`Format::ShardedSafetensors`], [`Format::Safetensors`] | `sharded`; `safetensors` is about the header of a file |
//! | a file that begins with `PK` | [`Format::TorchSave`] | `torch_save`: a `zip` archive with a `pickle` |
//!
//! Files may come from anybody. Rules that hold for all of these readers:
//!
//! - No byte of a file makes them panic, run anything, or open a file that is not in the listing of the checkpoint's place.
//! - Every number from a file is checked against the size of that file before memory is taken or a range is read; sums and products
//!   of such numbers are checked for overflow.
//! - Memory is in proportion to the bytes read (`Budget`), and time as well: nothing is quadratic.
//! - What a reader does not understand is an error. The chunks of a tensor are the whole tensor, each element once.

mod budget;
mod distcp;
mod distcp_metadata;
mod find;
mod flatten;
mod index;
mod listing;
pub(crate) mod native;
pub(crate) mod native_write;
mod numpy;
mod pickle;
mod rank_files;
pub(crate) mod recorded;
pub(crate) mod safetensors;
pub(crate) mod safetensors_write;
mod sharded;
mod sharded_view;
mod tensor_view;
mod torch_save;
mod window;
mod zip;

pub(crate) use find::{find, open, open_file, open_path, open_place};

#[cfg(doc)]
use crate::Format;
