//! Exported functions. `build.rs` generates the entries from the tables of `uiw-cabi-exports`:
//! `exports.tsv` has a row for each name and version, `private.tsv` for each private name. "compat"
//! versions are for programs that were linked long ago; the linker does not use them for new
//! programs.
//!
//! [`crate::export`] describes the routes. `own` is for functions that only this library has.
//! `object` is for functions of the library to which the object in the first argument belongs.
//! `system` calls the system's library if it is loaded; this is for functions of its providers, and
//! for those related to forks, for which this library has nothing to do.
//!
//! Functions that only rdma-core's own parts and vendors' libraries use are in numbered nodes
//! (IBVERBS_PRIVATE_NN). The number changes with their structures, and `private.tsv` has the
//! numbers of each function. The functions permit such a library to be loaded. Those that talk to a
//! kernel driver return an error, unless the system's library is loaded together with this one
//! (`uiw_cabi_verbs::system`). The node UIW_SOCKETS_1 is for librspreload.so, which must have the
//! same version as this library.

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
