//! What the sweep does not see of this family: layouts of results, calls and bytes, errors.
