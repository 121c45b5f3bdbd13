//! Registered memory: the one place where a handle (STag, offset, length) becomes a pointer.
