//! The tape.
