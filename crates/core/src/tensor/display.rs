//! Printing without communication.

use std::fmt;

use crate::DTensor;

/// The layout, and the part that this rank holds: printing must not communicate, since ranks print at
/// different times. What is shown of a pending reduction is marked as a contribution.
impl fmt::Display for DTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "DTensor {:?}", self.layout())?;
        let rank = self.mesh().world().rank();
        let Some(coord) = self.mesh().coord() else {
            return write!(f, "rank {rank} is not on the mesh");
        };
        let offset = self.layout().local_offset(coord);
        let what = match (self.layout().is_partial(), self.layout().is_replicated()) {
            (true, _) => "contribution (not reduced)".to_string(),
            (false, true) => "copy".to_string(),
            (false, false) => format!("part at {offset:?}"),
        };
        write!(f, "rank {rank} at {coord:?}: {what}, {:?}", self.local().shape())?;
        match self.local().is_meta() {
            true => write!(f, ", without values"),
            false => write!(f, "\n{}", self.local()),
        }
    }
}

impl fmt::Debug for DTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DTensor({:?})", self.layout())
    }
}
