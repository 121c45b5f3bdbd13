//! `uiw decode` on captures that were changed or made up.

mod departures;
mod garbage;
mod packets;
mod transport;
