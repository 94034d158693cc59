//! Devices by name, as placements write them.

use std::{fmt, str::FromStr};

use dtensor_local::Tensor;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A kind of device and, where there are several of it, which one: `cpu`, `cuda:1`, `meta`.
///
/// Every name that PyTorch knows can be written and compared, so that the metadata of any tensor can be
/// read. Which devices shards can lie on is another matter: in this build `cpu` and `meta`, and whatever
/// would need memory on another is refused with [`Error::MissingDevice`].
///
/// ```
/// use dtensor_sharded::Device;
///
/// let device: Device = "cuda:1".parse()?;
/// assert_eq!((device.kind(), device.index(), device.is_available()), ("cuda", Some(1), false));
/// assert_eq!(device.to_string(), "cuda:1");
/// # Ok::<(), dtensor_sharded::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Device {
    /// A position in `KINDS`.
    kind: u8,
    index: Option<u32>,
}

/// The kinds of devices that PyTorch names, in its order.
const KINDS: [&str; 20] = [
    "cpu",
    "cuda",
    "ipu",
    "xpu",
    "mkldnn",
    "opengl",
    "opencl",
    "ideep",
    "hip",
    "ve",
    "fpga",
    "maia",
    "xla",
    "lazy",
    "vulkan",
    "mps",
    "meta",
    "hpu",
    "mtia",
    "privateuseone",
];

impl Device {
    /// The memory of the process.
    pub const CPU: Device = Device { kind: 0, index: None };
    /// No memory at all: tensors have a shape and no values.
    pub const META: Device = Device { kind: 16, index: None };

    /// The kind, without an index.
    pub fn kind(&self) -> &'static str {
        KINDS[usize::from(self.kind)]
    }

    /// Which one of its kind, if that was said.
    pub fn index(&self) -> Option<u32> {
        self.index
    }

    /// Whether shards can lie there in this build.
    pub fn is_available(&self) -> bool {
        *self == Device::CPU || *self == Device::META
    }

    /// Where a tensor lies.
    pub fn of(tensor: &Tensor) -> Device {
        if tensor.is_meta() { Device::META } else { Device::CPU }
    }

    /// An error that names the operation, if shards cannot lie there.
    pub(crate) fn check_available(&self, op: &'static str) -> Result<()> {
        match self.is_available() {
            true => Ok(()),
            false => Err(Error::MissingDevice { op: op.into(), device: *self }),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device> {
        let bad = |why: &'static str| Error::BadDevice { text: text.into(), why: why.into() };
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, Some(index)),
            None => (text, None),
        };
        let is_word = |c: char| c.is_ascii_alphabetic() || c == '_';
        if kind.is_empty() || !kind.chars().all(is_word) {
            return Err(bad("a kind is letters, an index follows a colon"));
        }
        let index = match index {
            None => None,
            Some(digits) => {
                let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let padded = digits.len() > 1 && digits.starts_with('0');
                let parsed = digits.parse().ok().filter(|_| plain && !padded);
                Some(parsed.ok_or_else(|| bad("an index is a number without leading zeros"))?)
            }
        };
        let kind = KINDS.iter().position(|known| *known == kind);
        let kind = kind.ok_or_else(|| bad("there is no such kind of device"))?;
        Ok(Device { kind: kind as u8, index })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self.index {
            Some(index) => write!(f, ":{index}"),
            None => Ok(()),
        }
    }
}

impl TryFrom<String> for Device {
    type Error = Error;

    fn try_from(text: String) -> Result<Device> {
        text.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.to_string()
    }
}
