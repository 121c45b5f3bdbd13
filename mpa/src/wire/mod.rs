//! Encoding of MPA's startup frames, without the rules about when they may be sent.
//!
//! The types can represent frames that violate a rule, so that a decoder can show them. The rules
//! are in [`startup`](crate::startup), [`rx`](crate::rx) and [`tx`](crate::tx).

pub mod startup;
