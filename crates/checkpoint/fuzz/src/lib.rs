//! What the fuzz targets pass bytes to. It is a part of the tests, and is compiled and run with them.

// Files in memory that panic where they are read outside, and archives made by hand.
#[allow(dead_code)]
#[path = "../../tests/suite/formats_support.rs"]
pub mod formats_support;
#[path = "../../tests/suite/fuzzed.rs"]
pub mod fuzzed;
#[allow(dead_code)]
#[path = "../../tests/suite/hostile_support.rs"]
pub mod hostile_support;
