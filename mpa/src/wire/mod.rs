//! Bytes of MPA and what they mean, without any rule about when they may be sent.
//!
//! Values here can hold what a rule forbids, so that a decoder can show a wrong frame; the rules
//! are in [`startup`](crate::startup), [`rx`](crate::rx) and [`tx`](crate::tx).

pub mod startup;
