//! The data path.
