//! `librdmacm`: identifiers, event channels, connections. Each task has a file.
//!
//! ```text
//!   C            ids, channels, events by pointer ─► registry: is it one of this library, is it alive?
//!   engine       CmEvent in a channel's queue ─► routes: which id ─► deliver: C's rdma_cm_event, when C asks for it
//!   this crate   ADDR_RESOLVED, ROUTE_RESOLVED: local events of an id, announced in the same queue
//! ```
//!
//! Locks are taken in this order: an id's `control`, its state, the count of unrouted calls of its
//! channel, a shard of a table. Only `control` is held while the engine connects, accepts, listens
//! or closes, and delivery of events does not take it. Tables (pointers, routes, ports) are divided
//! into shards, each with a lock that is held only for a look-up. No two of these locks are held at
//! the same time.
//!
//! Nothing is exported from this crate. `cabi/ibverbs` is the shared library, whose table of
//! exports refers to these functions. Only the C libraries use this crate.
//!
//! Events may arrive before the call that created their connection has returned. No lock is held
//! across that call. Instead, the channel counts it as an unrouted call, and a thread that takes an
//! event without a route waits until the unrouted calls of its channel have added their routes. The
//! destruction of an id removes its route and its events under the channel's lock. Therefore, if an
//! event has no route, the route has not been added yet.
//!
//! A wait is a `read` of the channel's descriptor, in functions that hold nothing with a
//! destructor, because threads may be cancelled there.

mod address_vector;
mod addrinfo;
mod addrinfo_result;
mod channel;
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
mod membership;
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
pub use addrinfo_result::rdma_freeaddrinfo;
pub use connect::rdma_reject as rdma_reject_ece;
pub use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_init_qp_attr, rdma_notify,
    rdma_reject,
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
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp,
    rdma_destroy_srq,
};
pub use resolve::{
    rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_resolve_addr, rdma_resolve_route,
};
pub use sync::rdma_get_request;
