//! The names that the C libraries export, for their build scripts and for tests, and the stub by
//! which the other libraries need `libibverbs.so.1`.

mod stub;

pub use stub::libibverbs_stub;

/// `exports.tsv`: a row for each public name and node, with the route (a macro of
/// `cabi/ibverbs/src/export.rs`) and the function.
pub const PUBLIC: &str = include_str!("../exports.tsv");

/// `private.tsv`: a row for each name in private nodes, with the tags of these nodes and the
/// function.
pub const PRIVATE: &str = include_str!("../private.tsv");
