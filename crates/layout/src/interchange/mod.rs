//! Layouts as JAX, Shardy and XLA write them.
//!
//! ```
//! use dtensor_layout::{DType, Layout, Mesh};
//!
//! let mesh = Mesh::new(&[("dp", 2), ("tp", 4)])?;
//! let layout = Layout::parse(&[16, 5, 8], DType::F32, &mesh, "[S(0), S(2)]")?;
//! assert_eq!(layout.to_partition_spec()?, r#"P("dp", None, "tp")"#);
//! assert_eq!(layout.to_shardy()?, r#"#sdy.sharding<@mesh, [{"dp"}, {}, {"tp"}]>"#);
//! assert_eq!(layout.to_hlo()?, "{devices=[2,1,4]<=[8]}");
//!
//! let again = Layout::from_hlo(&[16, 5, 8], DType::F32, &mesh, "{devices=[2,1,4]<=[8]}")?;
//! assert_eq!(again, layout);
//! # Ok::<(), dtensor_layout::LayoutError>(())
//! ```
//!
//! All three say, per tensor dim, which mesh axes cut it, major first: our shard order. They differ
//! in what else they say:
//!
//! | | JAX's `PartitionSpec` | Shardy | XLA's HLO text |
//! |---|---|---|---|
//! | axes by | name | name | rank numbers: axes of size 1 leave no trace |
//! | `P(sum)` | `unreduced={"x"}` | `unreduced={"x"}` | `last_tile_dims={unreduced}` |
//! | `P(max)`, `P(min)` | no | `unreduced=max{"x"}` | no |
//! | `P(avg)`, `P(product)` | no | no | no |
//! | strided shards | no | no | no |
//! | a mesh that is a slice of another | yes | yes | no: devices count from 0 |
//!
//! What a notation cannot say is [`LayoutError::NotExpressible`](crate::LayoutError), never a text
//! that means something else.
//!
//! # Uneven sizes
//!
//! XLA cuts a dim once, into as many tiles of `ceil(size / tiles)` as its axes have ranks together;
//! we cut axis after axis (as PyTorch does). One axis gives the same pieces. Several do where the
//! pieces come out even, and sometimes elsewhere; where they do not, printing and parsing refuse.
//! JAX itself wants even sizes for the arguments and results of a program.

mod axes;
#[cfg(test)]
mod check;
mod hlo;
mod hlo_text;
mod partition_spec;
mod scan;
mod shardy;
mod tiles;

pub use shardy::DEFAULT_MESH_NAME;
