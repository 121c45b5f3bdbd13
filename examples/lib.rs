//! One file each, the smallest thing that works: see the `[[example]]` entries.
