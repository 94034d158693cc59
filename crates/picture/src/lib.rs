//! Layouts for people to look at: as text, as SVG, in tables and in words.
//!
//! ```
//! use dtensor_layout::{DType, Layout, Mesh};
//! use dtensor_picture::{Style, draw_text};
//!
//! let mesh = Mesh::new(&[("dp", 2), ("tp", 2)])?;
//! let layout = Layout::parse(&[13, 8], DType::F32, &mesh, "[S(0), S(1)]")?;
//! let lines = draw_text(&layout, &Style { width: 80, color: false, ascii: true })?;
//! assert!(lines[0].starts_with("f32[13, 8] on dp=2,tp=2"));
//! # Ok::<(), dtensor_layout::LayoutError>(())
//! ```

#![forbid(unsafe_code)]

mod bands;
mod label;
mod lengths;
mod picture;
mod svg;
mod table;
mod text;
pub mod units;
mod words;

pub use svg::draw as draw_svg;
pub use table::{Align, Table};
pub use text::{Style, draw as draw_text};
pub use words::has_elements;
