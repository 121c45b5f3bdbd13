//! `uiw decode` on captures that were changed or made up.

mod datagrams;
mod departures;
mod garbage;
mod imperfect;
mod packets;
mod transport;
