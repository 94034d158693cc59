//! What the tests of the three parsers share.

use crate::{DType, Layout, LayoutError, Mesh, Result};

/// Why a text is refused for a tensor of 8 x 8 on mesh `x=2,y=4`; the error names the text.
#[track_caller]
pub(super) fn reason(
    text: &str,
    parse: fn(&[usize], DType, &Mesh, &str) -> Result<Layout>,
) -> String {
    let mesh = Mesh::new(&[("x", 2), ("y", 4)]).unwrap();
    match parse(&[8, 8], DType::F32, &mesh, text).unwrap_err() {
        LayoutError::Parse { text: about, why, .. } => {
            assert_eq!(about, text);
            why.to_string()
        }
        LayoutError::NotExpressible { layout, why, .. } => {
            assert_eq!(layout, text);
            why
        }
        other => other.to_string(),
    }
}
