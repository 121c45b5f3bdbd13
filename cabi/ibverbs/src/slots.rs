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
    // SAFETY: the linker defines the two names as the ends of one section, in which `slot!` puts
    // slots alone.
    let slots = unsafe { slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    system::load(slots);
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
