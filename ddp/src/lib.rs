//! DDP (RFC 5041): tagged and untagged segments, placement rules. No I/O.
