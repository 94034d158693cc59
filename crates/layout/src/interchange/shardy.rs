//! Shardy's attribute: `#sdy.sharding<@mesh, [{"x"}, {}], unreduced={"y"}>`.
//!
//! ```text
//! sharding := ["#sdy.sharding"] "<" mesh ", [" dim* "]" [", replicated={" axis* "}"] [", unreduced=" ["max" | "min"] "{" axis* "}"] ">"
//! mesh     := "@" name | "mesh<[" (axis "=" size)* "]>"
//! dim      := "{" axis* ["?"] "}" ["p" priority]
//! axis     := quoted name [":(" pre_size ")" size]
//! ```

use super::{
    axes::{Axes, Reading},
    scan::Scanner,
};
use crate::{DType, Layout, Mesh, ReduceOp, Result};

const FORM: &str = "a Shardy sharding";
const WHAT: &str = "Shardy sharding";

/// What JAX calls the mesh of a program, `@mesh`.
pub const DEFAULT_MESH_NAME: &str = "mesh";

impl Layout {
    /// Shardy's text for this layout, on a mesh called `@mesh`. The mesh itself is declared
    /// elsewhere in a program, with its axes and the order of its devices.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh};
    /// let mesh = Mesh::new(&[("x", 2), ("y", 4)])?;
    /// let layout = Layout::parse(&[8, 3], DType::F32, &mesh, "[S(0), P(sum)]")?;
    /// assert_eq!(layout.to_shardy()?, r#"#sdy.sharding<@mesh, [{"x"}, {}], unreduced={"y"}>"#);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn to_shardy(&self) -> Result<String> {
        self.to_shardy_on(DEFAULT_MESH_NAME)
    }

    /// Shardy's text for this layout, on a mesh of another name.
    pub fn to_shardy_on(&self, mesh_name: &str) -> Result<String> {
        check_mesh_name(mesh_name)?;
        let axes = Axes::of(self, FORM, &[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min])?;
        let set = |axes: &Vec<usize>| {
            let name = |axis: &usize| format!("\"{}\"", self.mesh().axes()[*axis].name());
            format!("{{{}}}", axes.iter().map(name).collect::<Vec<_>>().join(", "))
        };
        let dims = axes.dims.iter().map(set).collect::<Vec<_>>().join(", ");
        let unreduced = match axes.reduction {
            None => String::new(),
            Some(ReduceOp::Sum) => format!(", unreduced={}", set(&axes.unreduced)),
            Some(op) => format!(", unreduced={op}{}", set(&axes.unreduced)),
        };
        Ok(format!("#sdy.sharding<@{mesh_name}, [{dims}]{unreduced}>"))
    }

    /// The layout that Shardy means by a text on a mesh called `@mesh`, or with the mesh inlined.
    ///
    /// Dims are closed and axes whole: open dims, priorities and sub-axes, which guide Shardy's
    /// propagation, are typed errors.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh};
    /// let mesh = Mesh::new(&[("x", 2), ("y", 4)])?;
    /// let text = r#"#sdy.sharding<@mesh, [{"y", "x"}, {}]>"#;
    /// let layout = Layout::from_shardy(&[8, 3], DType::F32, &mesh, text)?;
    /// assert_eq!(layout.to_string(), "[S(0)[1], S(0)[0]]");
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn from_shardy(shape: &[usize], dtype: DType, mesh: &Mesh, text: &str) -> Result<Layout> {
        Layout::from_shardy_on(DEFAULT_MESH_NAME, shape, dtype, mesh, text)
    }

    /// The layout that Shardy means by a text on a mesh of another name.
    pub fn from_shardy_on(
        mesh_name: &str,
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        text: &str,
    ) -> Result<Layout> {
        check_mesh_name(mesh_name)?;
        let reading = Reading { shape, dtype, mesh, what: WHAT, text };
        let mut scan = Scanner::new(WHAT, text);
        scan.eat("#sdy.sharding");
        scan.expect("<", "it starts with `#sdy.sharding<`")?;
        parse_mesh(&reading, mesh_name, &mut scan)?;
        scan.expect(",", "a comma is missing after the mesh")?;
        let axes = parse_axes(&reading, &mut scan)?;
        axes.into_layout(&reading)
    }
}

/// MLIR's symbols that need no quotes.
fn check_mesh_name(name: &str) -> Result<()> {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    match starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.$".contains(c)) {
        true => Ok(()),
        false => Err(crate::text::bad(
            name,
            "name of a Shardy mesh",
            "it starts with a letter or `_` and goes on with letters, digits, `_`, `-`, `.` or `$`",
        )),
    }
}

/// Takes the mesh and checks that it is the one given.
fn parse_mesh(reading: &Reading<'_>, mesh_name: &str, scan: &mut Scanner<'_>) -> Result<()> {
    if scan.eat("@") {
        let name = scan.word();
        return match name == mesh_name {
            true => Ok(()),
            false => Err(reading.not_a_layout(format!(
                "it is on mesh `@{name}`, not `@{mesh_name}`; give that name to from_shardy_on"
            ))),
        };
    }
    scan.expect("mesh<[", "the mesh is `@name` or `mesh<[\"x\"=2, ...]>`")?;
    let axes = scan.list("]", |scan| {
        let name = scan.quoted()?;
        scan.expect("=", "an axis of a mesh is \"name\"=size")?;
        Ok((name, scan.number()?))
    })?;
    scan.expect(">", "a mesh with a list of devices is not read; give the mesh in that order")?;
    let mesh = reading.mesh;
    match axes.into_iter().eq(mesh.axes().iter().map(|axis| (axis.name(), axis.size()))) {
        true => Ok(()),
        false => Err(reading.not_a_layout(format!("it is on another mesh than {mesh}"))),
    }
}

/// Takes the dims, the replicated and the unreduced axes, and the closing bracket.
fn parse_axes(reading: &Reading<'_>, scan: &mut Scanner<'_>) -> Result<Axes> {
    let axis = |scan: &mut Scanner<'_>| parse_axis(reading, scan);
    let mut axes = Axes::default();
    scan.expect("[", "the dims are in brackets: [{\"x\"}, {}]")?;
    axes.dims = scan.list("]", |scan| {
        scan.expect("{", "a dim is in braces: {\"x\"}")?;
        let dim = scan.list("}", |scan| match scan.eat("?") {
            true => Err(scan.bad("a layout leaves no dim open; close it by removing the `?`")),
            false => axis(scan),
        })?;
        match scan.word() {
            "" => Ok(dim),
            _ => Err(scan.bad("a layout has no priorities; remove the one after the braces")),
        }
    })?;
    if axes.dims.len() != reading.shape.len() {
        return Err(reading.not_a_layout(format!(
            "it has {} dims, the tensor has {}",
            axes.dims.len(),
            reading.shape.len()
        )));
    }
    let mut replicated: Option<Vec<usize>> = None;
    while scan.eat(",") {
        match scan.word() {
            "replicated" if replicated.is_none() => {
                scan.expect("={", "`replicated` is followed by a set: ={\"x\"}")?;
                replicated = Some(scan.list("}", axis)?);
            }
            "unreduced" if axes.reduction.is_none() => {
                scan.expect("=", "`unreduced` is followed by a set: ={\"x\"}")?;
                axes.reduction = Some(match scan.word() {
                    "" => ReduceOp::Sum,
                    "max" => ReduceOp::Max,
                    "min" => ReduceOp::Min,
                    _ => return Err(scan.bad("the reduction is max, min, or not written for sum")),
                });
                scan.expect("{", "`unreduced` is followed by a set: ={\"x\"}")?;
                axes.unreduced = scan.list("}", axis)?;
            }
            _ => return Err(scan.bad("expected replicated={...} or unreduced={...}, each once")),
        }
    }
    scan.expect(">", "expected `>` at the end")?;
    scan.end()?;
    let mut is_replicated = vec![false; reading.mesh.n_axes()];
    for axis in replicated.unwrap_or_default() {
        if std::mem::replace(&mut is_replicated[axis], true) {
            return Err(reading.bad("an axis is replicated twice"));
        }
    }
    match axes.dims.iter().flatten().chain(&axes.unreduced).any(|axis| is_replicated[*axis]) {
        true => Err(reading.bad("an axis is replicated, and cuts a dim or is unreduced")),
        false => Ok(axes),
    }
}

fn parse_axis(reading: &Reading<'_>, scan: &mut Scanner<'_>) -> Result<usize> {
    let name = scan.quoted()?;
    let index = reading.mesh.axis_index(name)?;
    if !scan.eat(":(") {
        return Ok(index);
    }
    let pre_size = scan.number()?;
    scan.expect(")", "a sub-axis is \"x\":(pre-size)size")?;
    let size = scan.number()?;
    Err(reading.not_a_layout(format!(
        "\"{name}\":({pre_size}){size} is a part of axis `{name}`; unflatten that axis into its parts"
    )))
}

#[cfg(test)]
mod tests {
    use crate::{Layout, interchange::check::reason};

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(reason(text, Layout::from_shardy), want);
    }

    #[test]
    fn bad_texts_say_what_is_wrong_and_what_to_do() {
        check("#sdy.mesh<[\"x\"=2]>", "it starts with `#sdy.sharding<`");
        check("#sdy.sharding<\"mesh\", [{}, {}]>", "the mesh is `@name` or `mesh<[\"x\"=2, ...]>`");
        check("#sdy.sharding<@mesh [{}, {}]>", "a comma is missing after the mesh");
        check("#sdy.sharding<@mesh, {}>", "the dims are in brackets: [{\"x\"}, {}]");
        check("#sdy.sharding<@mesh, [\"x\"]>", "a dim is in braces: {\"x\"}");
        check("#sdy.sharding<@mesh, [{x}, {}]>", "an axis name in quotes is missing");
        check(
            "#sdy.sharding<@mesh, [{\"x\", ?}, {}]>",
            "a layout leaves no dim open; close it by removing the `?`",
        );
        check(
            "#sdy.sharding<@mesh, [{?}, {}]>",
            "a layout leaves no dim open; close it by removing the `?`",
        );
        check(
            "#sdy.sharding<@mesh, [{\"x\"}p0, {}]>",
            "a layout has no priorities; remove the one after the braces",
        );
        check(
            "#sdy.sharding<@mesh, [{\"y\":(1)2}, {}]>",
            "\"y\":(1)2 is a part of axis `y`; unflatten that axis into its parts",
        );
        check("#sdy.sharding<@mesh, [{\"y\":(1}, {}]>", "a sub-axis is \"x\":(pre-size)size");
        check("#sdy.sharding<@mesh, [{}]>", "it has 1 dims, the tensor has 2");
        check("#sdy.sharding<@mesh, [{}, {}, {}]>", "it has 3 dims, the tensor has 2");
        check("#sdy.sharding<@mesh, [{\"z\"}, {}]>", "no mesh axis `z`; the mesh has x, y");
        let twice = "an axis is named twice; it cuts one dim, or is unreduced, and that once";
        check("#sdy.sharding<@mesh, [{\"x\"}, {\"x\"}]>", twice);
        let replicated = "an axis is replicated, and cuts a dim or is unreduced";
        check("#sdy.sharding<@mesh, [{\"x\"}, {}], replicated={\"x\"}>", replicated);
        check("#sdy.sharding<@mesh, [{}, {}], replicated={\"x\"}, unreduced={\"x\"}>", replicated);
        check(
            "#sdy.sharding<@mesh, [{}, {}], replicated={\"x\", \"x\"}>",
            "an axis is replicated twice",
        );
        let named = "expected replicated={...} or unreduced={...}, each once";
        check("#sdy.sharding<@mesh, [{}, {}], reduced={\"x\"}>", named);
        check("#sdy.sharding<@mesh, [{}, {}], unreduced={\"x\"}, unreduced={\"y\"}>", named);
        check(
            "#sdy.sharding<@mesh, [{}, {}], unreduced=product{\"x\"}>",
            "the reduction is max, min, or not written for sum",
        );
        check("#sdy.sharding<@mesh, [{}, {}]", "expected `>` at the end");
        check("#sdy.sharding<@mesh, [{}, {}]>>", "unexpected text at the end");
        check("#sdy.sharding<mesh<[\"x\"=2]>, [{}, {}]>", "it is on another mesh than x=2,y=4");
        check(
            "#sdy.sharding<mesh<[\"x\"=2, \"y\"=4], device_ids=[1]>, [{}, {}]>",
            "a mesh with a list of devices is not read; give the mesh in that order",
        );
    }
}
