//! `librdmacm`: identifiers, event channels, connections. One file a task.
//!
//! ```text
//!   C            ids, channels, events by pointer ─► registry: is it ours, is it alive?
//!   engine       CmEvent in a channel's queue ─► event: C's rdma_cm_event, at the moment C asks for it
//!   ourselves    ADDR_RESOLVED, ROUTE_RESOLVED: notes of an id, announced in the same queue
//! ```
//!
//! Locks are taken in this order: an id's state, the process's state, the engine's core.

mod address;
mod addrinfo;
mod channel;
mod connect;
mod devices;
mod ep;
mod event;
mod id;
mod left_behind;
mod listen;
mod multicast;
mod option;
mod qp;
pub(crate) mod registry;
mod resolve;
pub mod rsocket;
mod sync;

pub use address::{rdma_get_dst_port, rdma_get_src_port};
pub use addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo, rdma_query_addrinfo, rdma_resolve_addrinfo};
pub use channel::{rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event};
pub use connect::rdma_reject as rdma_reject_ece;
pub use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_init_qp_attr, rdma_notify, rdma_reject,
};
pub use devices::{rdma_free_devices, rdma_get_devices};
pub use ep::{rdma_create_ep, rdma_destroy_ep};
pub use event::{rdma_ack_cm_event, rdma_event_str, rdma_write_cm_event};
pub use id::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
pub use listen::rdma_listen;
pub use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub use option::{rdma_get_remote_ece, rdma_set_local_ece, rdma_set_option};
pub use qp::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp, rdma_destroy_srq,
};
pub use resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
pub use sync::rdma_get_request;
