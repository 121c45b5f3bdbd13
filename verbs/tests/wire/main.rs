//! The engine against a scripted peer, octet by octet, and against itself.

mod common;
mod data;
mod peer;
mod smoke;
mod startup;
