//! `librdmacm`: identifiers, event channels, connections. One file a task.
//!
//! ```text
//!   C            ids, channels, events by pointer ─► registry: is it one of this library, is it alive?
//!   engine       CmEvent in a channel's queue ─► routes: which id ─► deliver: C's rdma_cm_event, when C asks for it
//!   this crate   ADDR_RESOLVED, ROUTE_RESOLVED: notes of an id, announced in the same queue
//! ```
//!
//! Locks are taken in this order: an id's `control`, its state, the openings of its channel, a
//! shard of a table. Only `control` is held while the engine connects, accepts, listens or closes,
//! and delivery of events does not take it. Tables (pointers, routes, ports) are in shards, each
//! with a lock that is held for a look-up alone; no two of them are held together.
//!
//! Nothing is exported from here: `cabi/ibverbs` is the shared library, whose table of exports
//! names these functions. Only the C libraries use this crate.
//!
//! Events may come before the call that made their connection has returned. No lock is held across
//! that call; the channel counts it as an opening, and a thread that takes an event without a route
//! waits until the openings of its channel have added their routes. The destruction of an id
//! removes its route and its events under the channel's lock, so the route of an event without one
//! is always still to be added.
//!
//! Waits are `read`s of the channel's descriptor from functions that hold nothing with a
//! destructor: threads may be cancelled there.

mod address_vector;
mod addrinfo;
mod channel;
mod addrinfo_result;
mod connect;
mod deliver;
mod devices;
mod ep;
mod event;
mod event_channel;
mod failure;
mod id;
mod lifecycle;
mod listen;
mod multicast;
mod option;
mod orphaned;
mod params;
mod placeholder;
mod private_data;
mod qp;
mod registry;
mod request_id;
mod resolve;
mod routes;
mod sidr;
mod sync;
#[cfg(test)]
mod tests;
mod timewait;

pub use addrinfo::{rdma_getaddrinfo, rdma_query_addrinfo, rdma_resolve_addrinfo};
pub use connect::rdma_reject as rdma_reject_ece;
pub use addrinfo_result::rdma_freeaddrinfo;
pub use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_init_qp_attr, rdma_notify, rdma_reject,
};
pub use devices::{rdma_free_devices, rdma_get_devices};
pub use ep::{rdma_create_ep, rdma_destroy_ep};
pub use event::{rdma_ack_cm_event, rdma_event_str, rdma_write_cm_event};
pub use event_channel::{rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event};
pub use lifecycle::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
pub use listen::rdma_listen;
pub use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub use option::{rdma_get_remote_ece, rdma_set_local_ece, rdma_set_option};
pub use qp::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp, rdma_destroy_srq,
};
pub use resolve::{
    rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route,
};
pub use sync::rdma_get_request;
