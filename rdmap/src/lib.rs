//! RDMAP (RFC 5040, RFC 7306): messages, stream rules, Terminate. No I/O.
