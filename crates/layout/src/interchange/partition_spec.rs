//! JAX's `PartitionSpec`: `P("dp", None, ("tp", "cp"))`.
//!
//! ```text
//! spec  := ("P" | "PartitionSpec") "(" entry* ["unreduced={" name* "}"] ")"
//! entry := "None" | name | "(" name* ")"          one per tensor dim; the last may be left out
//! ```

use super::{
    axes::{Axes, Reading},
    scan::Scanner,
};
use crate::{DType, Layout, Mesh, ReduceOp, Result};

const FORM: &str = "a PartitionSpec";
const WHAT: &str = "PartitionSpec";

impl Layout {
    /// The text by which JAX means this layout: one entry per dim, `None` where no axis cuts it.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh};
    /// let mesh = Mesh::new(&[("dp", 2), ("cp", 2), ("tp", 2)])?;
    /// let spec = |placements| Layout::parse(&[8, 3, 8], DType::F32, &mesh, placements)?.to_partition_spec();
    /// assert_eq!(spec("[S(0), S(2)[1], S(2)[0]]")?, r#"P("dp", None, ("tp", "cp"))"#);
    /// assert_eq!(spec("[S(0), P(sum), R]")?, r#"P("dp", None, None, unreduced={"cp"})"#);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn to_partition_spec(&self) -> Result<String> {
        let axes = Axes::of(self, FORM, &[ReduceOp::Sum])?;
        let names = |axes: &[usize]| {
            let name = |axis: &usize| format!("\"{}\"", self.mesh().axes()[*axis].name());
            axes.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        let mut entries: Vec<String> = axes
            .dims
            .iter()
            .map(|dim| match dim.len() {
                0 => "None".to_string(),
                1 => names(dim),
                _ => format!("({})", names(dim)),
            })
            .collect();
        if !axes.unreduced.is_empty() {
            entries.push(format!("unreduced={{{}}}", names(&axes.unreduced)));
        }
        Ok(format!("P({})", entries.join(", ")))
    }

    /// The layout that JAX means by a text. Reads what [`to_partition_spec`](Self::to_partition_spec)
    /// prints, JAX's own `repr`, and specs as people write them.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh};
    /// let mesh = Mesh::new(&[("dp", 2), ("tp", 4)])?;
    /// let parse = |text| Layout::from_partition_spec(&[8, 3], DType::F32, &mesh, text);
    /// assert_eq!(parse("P(('tp', 'dp'),)")?.to_string(), "[S(0)[1], S(0)[0]]");
    /// assert_eq!(parse("PartitionSpec()")?.to_string(), "[R, R]");
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn from_partition_spec(
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        text: &str,
    ) -> Result<Layout> {
        let axes = parse(mesh, text)?;
        axes.into_layout(&Reading { shape, dtype, mesh, what: WHAT, text })
    }

    /// Per dim the names of the axes that cut it, major first: a `PartitionSpec` as a list, in
    /// which a pending reduction has no place.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh};
    /// let mesh = Mesh::new(&[("dp", 2), ("tp", 4)])?;
    /// let layout = Layout::parse(&[8, 3], DType::F32, &mesh, "[S(0), R]")?;
    /// assert_eq!(layout.partition_spec()?, [vec!["dp".to_string()], vec![]]);
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn partition_spec(&self) -> Result<Vec<Vec<String>>> {
        let axes = Axes::of(self, "a list of axes per dim", &[])?;
        let name = |axis: usize| self.mesh().axes()[axis].name().to_string();
        Ok(axes.dims.into_iter().map(|dim| dim.into_iter().map(name).collect()).collect())
    }

    /// The layout in which these axes, major first, cut each dim. Dims at the end may be left out.
    ///
    /// ```
    /// use dtensor_layout::{DType, Layout, Mesh};
    /// let mesh = Mesh::new(&[("dp", 2), ("tp", 4)])?;
    /// let layout = Layout::from_axes_per_dim(&[8, 3], DType::F32, &mesh, &[vec!["tp", "dp"]])?;
    /// assert_eq!(layout.to_string(), "[S(0)[1], S(0)[0]]");
    /// # Ok::<(), dtensor_layout::LayoutError>(())
    /// ```
    pub fn from_axes_per_dim<N: AsRef<str>>(
        shape: &[usize],
        dtype: DType,
        mesh: &Mesh,
        axes_per_dim: &[Vec<N>],
    ) -> Result<Layout> {
        let text: Vec<Vec<&str>> =
            axes_per_dim.iter().map(|dim| dim.iter().map(AsRef::as_ref).collect()).collect();
        let index = |dim: &Vec<&str>| dim.iter().map(|name| mesh.axis_index(name)).collect();
        let axes = Axes { dims: text.iter().map(index).collect::<Result<_>>()?, ..Axes::default() };
        let (what, text) = ("list of axes per dim", format!("{text:?}"));
        axes.into_layout(&Reading { shape, dtype, mesh, what, text: &text })
    }
}

fn parse(mesh: &Mesh, text: &str) -> Result<Axes> {
    let mut scan = Scanner::new(WHAT, text);
    match scan.word() {
        "P" | "PartitionSpec" | "jax.P" | "jax.sharding.PartitionSpec" => {}
        _ => return Err(scan.bad("it starts with `P(` or `PartitionSpec(`")),
    }
    scan.expect("(", "it starts with `P(` or `PartitionSpec(`")?;
    let axis = |scan: &mut Scanner<'_>| mesh.axis_index(scan.quoted()?);
    let mut axes = Axes::default();
    let mut unreduced: Option<Vec<usize>> = None;
    scan.list(")", |scan| {
        match scan.word() {
            "unreduced" if unreduced.is_none() => {
                scan.expect("={", "`unreduced` is followed by a set: ={\"x\"}")?;
                unreduced = Some(scan.list("}", axis)?);
                return Ok(());
            }
            // JAX uses them when it differentiates; a layout has no word for that.
            "reduced" => {
                return Err(scan
                    .bad("a layout does not say how gradients are reduced; leave `reduced` out"));
            }
            word if word.ends_with("UNCONSTRAINED") => {
                return Err(
                    scan.bad("a layout leaves no dim open; give None or the axes that cut it")
                );
            }
            word if unreduced.is_some() || !matches!(word, "" | "None") => {
                return Err(scan.bad(
                    "expected entries None, \"x\" or (\"x\", \"y\"), then unreduced={\"z\"}",
                ));
            }
            "None" => axes.dims.push(Vec::new()),
            _ if scan.eat("(") => axes.dims.push(scan.list(")", axis)?),
            _ => axes.dims.push(vec![axis(scan)?]),
        }
        Ok(())
    })?;
    scan.end()?;
    axes.unreduced = unreduced.unwrap_or_default();
    Ok(axes)
}

#[cfg(test)]
mod tests {
    use crate::{Layout, interchange::check::reason};

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(reason(text, Layout::from_partition_spec), want);
    }

    #[test]
    fn bad_texts_say_what_is_wrong_and_what_to_do() {
        let grammar = "expected entries None, \"x\" or (\"x\", \"y\"), then unreduced={\"z\"}";
        check("Px('x')", "it starts with `P(` or `PartitionSpec(`");
        check("P['x']", "it starts with `P(` or `PartitionSpec(`");
        check("P('x'", "a bracket is not closed, or a comma is missing");
        check("P('x", "a quote is not closed");
        check("P('x' 'y')", "a bracket is not closed, or a comma is missing");
        check("P('x') + P('y')", "unexpected text at the end");
        check("P(x)", grammar);
        check("P(Nonesense)", grammar);
        check("P(unreduced={'x'}, 'y')", grammar);
        check("P(unreduced={'x'}, unreduced={'y'})", grammar);
        check("P(unreduced='x')", "`unreduced` is followed by a set: ={\"x\"}");
        check(
            "P(reduced={'x'})",
            "a layout does not say how gradients are reduced; leave `reduced` out",
        );
        check(
            "P(P.UNCONSTRAINED)",
            "a layout leaves no dim open; give None or the axes that cut it",
        );
        check("P('z')", "no mesh axis `z`; the mesh has x, y");
        let twice = "an axis is named twice; it cuts one dim, or is unreduced, and that once";
        check("P('x', 'x')", twice);
        check("P(('x', 'x'))", twice);
        check("P('x', unreduced={'x'})", twice);
        check("P(None, None, None)", "it has 3 dims, the tensor has 2");
    }
}
