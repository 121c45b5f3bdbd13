//! Tests of `uiw decode` with changed and synthetic captures.

mod datagrams;
mod departures;
mod garbage;
mod imperfect;
mod packets;
mod transport;
