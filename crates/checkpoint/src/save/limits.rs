//! What is not written because it could not be read again: then a save would have replaced a checkpoint by none.

use dtensor_layout::{Layout, Placement};

use crate::{
    Result, Value,
    catalog::{MAX_CUT_DIMS, too_many_cuts},
    manifest::{check_size, value_to_json},
};

/// Whether a manifest with these values may have at most `limit` bytes. What it says of files is not counted, so that this is known
/// before there are any, on every rank alike; [`Manifest::to_file`](crate::Manifest) counts everything.
pub(crate) fn check_values<'v>(
    values: impl Iterator<Item = (&'v str, &'v Value)>,
    limit: u64,
) -> Result<()> {
    let bytes = |(name, value): (&str, &Value)| {
        let value = match value {
            // Two digits each. What is large is mostly this, and need not be written out to be counted.
            Value::Bytes(bytes) => 2 * bytes.len(),
            value => value_to_json(value).to_string().len(),
        };
        (name.len() + value) as u64
    };
    check_size(values.map(bytes).sum(), limit)
}

/// Whether the parts of a tensor divide few enough dims for a reader to see that they are the whole.
pub(crate) fn check_cuts(name: &str, layout: &Layout) -> Result<()> {
    let (sizes, shape) = (layout.mesh().sizes(), layout.global_shape());
    let is_cut = |dim: &usize| {
        let mut axes = layout.placements().iter().zip(&sizes);
        shape[*dim] > 1
            && axes.any(|(placement, &size)| size > 1 && *placement == Placement::Shard(*dim))
    };
    // Of a tensor without elements no part counts.
    match layout.numel() == 0 || (0..shape.len()).filter(is_cut).count() <= MAX_CUT_DIMS {
        true => Ok(()),
        false => Err(too_many_cuts(name, &layout.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use dtensor_layout::{DType, Mesh};

    use super::*;
    use crate::{Error, Manifest};

    #[test]
    fn values_that_make_a_manifest_too_large_are_known_without_one() {
        let values = [("key", Value::Bytes(vec![7; 50])), ("text", Value::Text("\u{1}".repeat(9)))];
        let values = || values.iter().map(|(name, value)| (*name, value));
        // A control character takes six bytes, and the text has quotes.
        let least = 3 + 2 * 50 + 4 + 9 * 6 + 2;
        check_values(values(), least).unwrap();
        let error = check_values(values(), least - 1).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        // What is counted is in the manifest, so that nothing is refused which could be read.
        let owned = values().map(|(name, value)| (name.to_owned(), value.clone())).collect();
        let manifest = Manifest::new("0123456789abcdef".into(), Vec::new(), owned, 0, 0);
        assert!(manifest.to_bytes().len() as u64 > least);
    }

    #[test]
    fn a_tensor_cut_along_too_many_dims_is_known_by_its_layout() {
        let mesh = Mesh::from_sizes(&[2; 7]).unwrap();
        let all = "[S(0), S(1), S(2), S(3), S(4), S(5), S(6)]";
        let check = |shape: [usize; 7], placements: &str| {
            check_cuts("w", &Layout::parse(&shape, DType::F32, &mesh, placements).unwrap())
        };
        let error = check([2, 3, 4, 5, 6, 7, 8], all).unwrap_err();
        assert!(
            matches!(&error, Error::Unsupported { what, .. } if what.contains("`w`")),
            "{error}"
        );
        // One dim is whole, has one row, or none.
        check([2, 3, 4, 5, 6, 7, 8], "[S(0), S(1), S(2), S(3), S(4), S(5), R]").unwrap();
        check([2, 3, 4, 1, 6, 7, 8], all).unwrap();
        check([2, 3, 4, 0, 6, 7, 8], all).unwrap();
    }
}
