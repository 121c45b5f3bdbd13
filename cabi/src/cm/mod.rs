//! librdmacm.

pub mod rsocket;

macro_rules! later {
    ($($name:ident => $how:ident;)*) => {
        $(
            /// Not here yet.
            pub use crate::refused::$how as $name;
        )*
    };
}

later! {
    rdma_accept => absent;
    rdma_ack_cm_event => absent;
    rdma_bind_addr => absent;
    rdma_connect => absent;
    rdma_create_ep => absent;
    rdma_create_event_channel => absent_null;
    rdma_create_id => absent;
    rdma_create_qp => absent;
    rdma_create_qp_ex => absent;
    rdma_create_srq => absent;
    rdma_create_srq_ex => absent;
    rdma_destroy_ep => absent;
    rdma_destroy_event_channel => absent;
    rdma_destroy_id => absent;
    rdma_destroy_qp => absent;
    rdma_destroy_srq => absent;
    rdma_disconnect => absent;
    rdma_event_str => absent_null;
    rdma_free_devices => absent;
    rdma_freeaddrinfo => absent;
    rdma_get_cm_event => absent;
    rdma_get_devices => absent_null;
    rdma_get_dst_port => absent;
    rdma_get_request => absent;
    rdma_get_src_port => absent;
    rdma_getaddrinfo => absent;
    rdma_join_multicast => absent;
    rdma_leave_multicast => absent;
    rdma_listen => absent;
    rdma_migrate_id => absent;
    rdma_notify => absent;
    rdma_reject => absent;
    rdma_resolve_addr => absent;
    rdma_resolve_route => absent;
    rdma_set_option => absent;
    rdma_join_multicast_ex => absent;
    rdma_establish => absent;
    rdma_init_qp_attr => absent;
    rdma_get_remote_ece => absent;
    rdma_reject_ece => absent;
    rdma_set_local_ece => absent;
    rdma_query_addrinfo => absent;
    rdma_resolve_addrinfo => absent;
    rdma_write_cm_event => absent;
}
