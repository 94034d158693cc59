//! Whole tensors in the memory of whoever asks.

use std::{collections::BTreeMap, sync::Arc};

use dtensor_layout::IndexBox;
use dtensor_local::Tensor;

use crate::{Error, Reader, Result, formats, storage::held};

/// The tensors of a checkpoint of any kind, which a path or a URL names, whole, verified where it has checksums. For small things, and for programs of one
/// rank: [`load`](crate::load) gives each rank its part alone.
///
/// ```no_run
/// let tensors = dtensor_checkpoint::read_tensors("model.safetensors")?;
/// for (name, tensor) in &tensors {
///     println!("{name}: {:?}", tensor.shape());
/// }
/// # Ok::<(), dtensor_checkpoint::Error>(())
/// ```
pub fn read_tensors(path: &str) -> Result<BTreeMap<String, Tensor>> {
    held::retry(|| read_now(path))
}

fn read_now(path: &str) -> Result<BTreeMap<String, Tensor>> {
    let (storage, catalog) = formats::open_place(path)?;
    let reader = Reader::new(storage, Arc::new(catalog));
    let mut tensors = BTreeMap::new();
    for (name, entry) in &reader.catalog().tensors {
        let Some(dtype) = entry.stored.dtype() else {
            return Err(Error::Unsupported {
                what: format!("dtype {}", entry.stored),
                place: name.clone(),
                way_out: "convert the tensor to another dtype first",
            });
        };
        let whole = IndexBox::whole(&entry.shape);
        let tensor = Tensor::from_bytes_with(&entry.shape, dtype, |bytes| {
            reader.read_box(name, &whole, bytes)
        })?;
        tensors.insert(name.clone(), tensor);
    }
    Ok(tensors)
}
