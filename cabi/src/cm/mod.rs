//! `librdmacm`: identifiers, event channels, connections. One file a task.
//!
//! ```text
//!   C            ids, channels, events by pointer ─► registry: is it ours, is it alive?
//!   engine       CmEvent in a channel's queue ─► event: C's rdma_cm_event, at the moment C asks for it
//!   ourselves    ADDR_RESOLVED, ROUTE_RESOLVED: notes of an id, announced in the same queue
//! ```
//!
//! Locks are taken in this order: an id's state, the process's state, the engine's core.

pub mod address;
pub mod addrinfo;
pub mod channel;
pub mod connect;
pub mod devices;
pub mod ep;
pub mod event;
pub mod id;
pub mod listen;
pub mod multicast;
pub mod option;
pub mod qp;
pub(crate) mod registry;
pub mod rsocket;
pub mod sync;
