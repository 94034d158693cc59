//! Pictures of layouts.

use dtensor_picture::{Style, draw_svg, draw_text};

use crate::{DTensor, Error, Result};

/// Which rank holds which part, as text, for any number of dims and ranks. Nothing is sent.
///
/// ```
/// use dtensor::{DType, DeviceMesh, Placement::Shard, Runner, visualize_sharding, zeros};
///
/// Runner::threads(2).run(|world| {
///     let mesh = DeviceMesh::of_world(world, "x")?;
///     let x = zeros(&[5, 4], DType::F32, &mesh, &[Shard(0)])?;
///     assert!(visualize_sharding(&x)?.starts_with("f32[5, 4] on x=2: [S(0)]\n"));
///     Ok::<_, dtensor::Error>(())
/// })?;
/// # Ok::<(), dtensor::RunError>(())
/// ```
pub fn visualize_sharding(tensor: &DTensor) -> Result<String> {
    let style = Style { width: 100, color: false, ascii: false };
    let lines = draw_text(tensor.layout(), &style).map_err(Error::layout("visualize_sharding"))?;
    Ok(lines.join("\n"))
}

/// The same as an SVG document.
pub fn visualize_sharding_svg(tensor: &DTensor) -> Result<String> {
    draw_svg(tensor.layout()).map_err(Error::layout("visualize_sharding_svg"))
}
