//! Exported functions. `build.rs` makes the lines from the tables of `uiw-cabi-exports`:
//! `exports.tsv` has a row for each name and version, `private.tsv` for each private name. "compat"
//! versions are for programs linked long ago; the linker does not use them for new programs. The
//! routes are those of
//! [`crate::export`]: `own` for functions of ours alone, `object` for those of the library whose object the first argument is, and `system` for
//! those of the system's library where it is loaded, for its providers, and for forks, which this
//! library needs nothing for.
//!
//! Functions that only rdma-core's own parts and vendors' libraries use are in nodes with a number,
//! IBVERBS_PRIVATE_NN, which changes with their structures: `private.tsv` has the numbers of each.
//! They let such a library be loaded; what talks to a kernel driver returns an error, unless the
//! system's library is loaded beside this one (`uiw_cabi_verbs::system`). The node UIW_SOCKETS_1 is
//! for librspreload.so, which is of the same version as this library.

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
