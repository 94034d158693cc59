//! `dtensor train`: known runs, runs that go on, and mistakes. The models are tiny.

mod going_on;
mod known_runs;
mod meshes;
mod mistakes;
mod runs;
mod support;
