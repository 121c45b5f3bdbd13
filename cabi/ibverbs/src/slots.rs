//! The slots that `export.rs` makes, for the system's library.

use std::slice;
use uiw_cabi_verbs::system::{self, Slot};

// Defined by the linker for a section with such a name.
unsafe extern "C" {
    #[link_name = "__start_uiw_slots"]
    static FIRST: Slot;
    #[link_name = "__stop_uiw_slots"]
    static END: Slot;
}

/// Called when the library is loaded.
extern "C" fn load() {
    let (first, end) = (&raw const FIRST, &raw const END);
    // SAFETY: the linker defines the two names as the beginning and the end of the section
    // `uiw_slots`. Only `slot!` adds to it, four aligned words each, which are a `Slot` and which
    // the loader has relocated before it calls `load`. The section lives as long as this library,
    // and only the atomic field of a slot changes.
    let slots = unsafe { slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    system::load(slots);
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
