//! MPA (RFC 5044, RFC 6581): startup frames, FPDUs, Markers, CRC32C. No I/O.
