//! Stands in for `plain_mpi` in builds without MPI: there is no such call, and no value of the type.

use dtensor_comm::World;

use super::{
    buffers::{Buffers, Counts, Shape},
    cases::Case,
};

pub enum PlainMpi {}

impl PlainMpi {
    pub fn of(_: &World) -> Option<PlainMpi> {
        None
    }

    pub fn has(&self, _: Case, _: Shape) -> bool {
        match *self {}
    }

    pub fn call(&self, _: Case, _: Shape, _: &Counts, _: &mut Buffers) {
        match *self {}
    }

    pub fn small_all_reduce(&self) {
        match *self {}
    }
}
