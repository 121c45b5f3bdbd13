//! Building blocks of the commands: arguments, settings from outside, errors, text, devices,
//! connections, memory and messages.

pub(crate) mod args;
pub(crate) mod child;
pub(crate) mod env;
pub(crate) mod fail;
mod log;
pub(crate) mod memory;
pub(crate) mod msg_conn;
pub(crate) mod notify;
pub(crate) mod open;
pub(crate) mod qp_setup;
pub(crate) mod service;
pub(crate) mod spin;
pub(crate) mod stop;
pub(crate) mod text;
pub(crate) mod trust;
