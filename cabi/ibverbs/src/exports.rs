//! What the library exports: one line per name and version. "compat" versions are for programs linked long ago; the linker does not use
//! them for new programs. `build.rs` reads the nodes from here.
//!
//! Functions that only rdma-core's own parts and vendors' libraries use are in nodes with a number, IBVERBS_PRIVATE_NN, which changes with
//! their structures: `cabi/data/private.tsv` has them, and `build.rs` makes the lines of each node. They let such a library be loaded; what
//! talks to a kernel driver returns an error, unless the system's library is loaded beside this one (`uiw_cabi::system`).

use crate::export::{by_object, exports, forwarded};

// Of ours alone.
exports! {
    // IBVERBS_1.0
    "ibv_ack_async_event" "IBVERBS_1.0" compat uiw_cabi::refused::nothing;
    "ibv_ack_cq_events" "IBVERBS_1.0" compat uiw_cabi::refused::nothing;
    "ibv_alloc_pd" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_attach_mcast" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_close_device" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_create_ah" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_create_cq" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_create_qp" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_create_srq" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_dealloc_pd" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_dereg_mr" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_destroy_ah" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_destroy_cq" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_destroy_qp" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_destroy_srq" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_detach_mcast" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_free_device_list" "IBVERBS_1.0" compat uiw_cabi::refused::nothing;
    "ibv_get_async_event" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_get_cq_event" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_get_device_guid" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_get_device_list" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_get_device_name" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_get_sysfs_path" "IBVERBS_1.0" default uiw_cabi::device::ibv_get_sysfs_path;
    "ibv_modify_qp" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_modify_srq" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_open_device" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_query_device" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_query_gid" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_query_pkey" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_query_port" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_query_qp" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_query_srq" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "ibv_rate_to_mult" "IBVERBS_1.0" default uiw_cabi::strings::ibv_rate_to_mult;
    "ibv_read_sysfs_file" "IBVERBS_1.0" default uiw_cabi::device::ibv_read_sysfs_file;
    "ibv_reg_mr" "IBVERBS_1.0" compat uiw_cabi::refused::old_null;
    "ibv_resize_cq" "IBVERBS_1.0" compat uiw_cabi::refused::old;
    "mult_to_ibv_rate" "IBVERBS_1.0" default uiw_cabi::strings::mult_to_ibv_rate;
    // IBVERBS_1.1
    "ibv_ack_async_event" "IBVERBS_1.1" default uiw_cabi::async_events::ibv_ack_async_event;
    "ibv_event_type_str" "IBVERBS_1.1" default uiw_cabi::strings::ibv_event_type_str;
    "ibv_free_device_list" "IBVERBS_1.1" default uiw_cabi::device::ibv_free_device_list;
    "ibv_get_device_list" "IBVERBS_1.1" default uiw_cabi::device::ibv_get_device_list;
    "ibv_node_type_str" "IBVERBS_1.1" default uiw_cabi::strings::ibv_node_type_str;
    "ibv_port_state_str" "IBVERBS_1.1" default uiw_cabi::strings::ibv_port_state_str;
    "ibv_rate_to_mbps" "IBVERBS_1.1" default uiw_cabi::strings::ibv_rate_to_mbps;
    "ibv_wc_status_str" "IBVERBS_1.1" default uiw_cabi::strings::ibv_wc_status_str;
    "mbps_to_ibv_rate" "IBVERBS_1.1" default uiw_cabi::strings::mbps_to_ibv_rate;
    // RDMACM_1.0
    "raccept" "RDMACM_1.0" default uiw_cabi::rsocket::exports::raccept;
    "rbind" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rbind;
    "rclose" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rclose;
    "rconnect" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rconnect;
    "rdma_accept" "RDMACM_1.0" default uiw_cabi::cm::rdma_accept;
    "rdma_ack_cm_event" "RDMACM_1.0" default uiw_cabi::cm::rdma_ack_cm_event;
    "rdma_bind_addr" "RDMACM_1.0" default uiw_cabi::cm::rdma_bind_addr;
    "rdma_connect" "RDMACM_1.0" default uiw_cabi::cm::rdma_connect;
    "rdma_create_ep" "RDMACM_1.0" default uiw_cabi::cm::rdma_create_ep;
    "rdma_create_event_channel" "RDMACM_1.0" default uiw_cabi::cm::rdma_create_event_channel;
    "rdma_create_id" "RDMACM_1.0" default uiw_cabi::cm::rdma_create_id;
    "rdma_create_qp" "RDMACM_1.0" default uiw_cabi::cm::rdma_create_qp;
    "rdma_create_qp_ex" "RDMACM_1.0" default uiw_cabi::cm::rdma_create_qp_ex;
    "rdma_create_srq" "RDMACM_1.0" default uiw_cabi::cm::rdma_create_srq;
    "rdma_create_srq_ex" "RDMACM_1.0" default uiw_cabi::cm::rdma_create_srq_ex;
    "rdma_destroy_ep" "RDMACM_1.0" default uiw_cabi::cm::rdma_destroy_ep;
    "rdma_destroy_event_channel" "RDMACM_1.0" default uiw_cabi::cm::rdma_destroy_event_channel;
    "rdma_destroy_id" "RDMACM_1.0" default uiw_cabi::cm::rdma_destroy_id;
    "rdma_destroy_qp" "RDMACM_1.0" default uiw_cabi::cm::rdma_destroy_qp;
    "rdma_destroy_srq" "RDMACM_1.0" default uiw_cabi::cm::rdma_destroy_srq;
    "rdma_disconnect" "RDMACM_1.0" default uiw_cabi::cm::rdma_disconnect;
    "rdma_event_str" "RDMACM_1.0" default uiw_cabi::cm::rdma_event_str;
    "rdma_free_devices" "RDMACM_1.0" default uiw_cabi::cm::rdma_free_devices;
    "rdma_freeaddrinfo" "RDMACM_1.0" default uiw_cabi::cm::rdma_freeaddrinfo;
    "rdma_get_cm_event" "RDMACM_1.0" default uiw_cabi::cm::rdma_get_cm_event;
    "rdma_get_devices" "RDMACM_1.0" default uiw_cabi::cm::rdma_get_devices;
    "rdma_get_dst_port" "RDMACM_1.0" default uiw_cabi::cm::rdma_get_dst_port;
    "rdma_get_request" "RDMACM_1.0" default uiw_cabi::cm::rdma_get_request;
    "rdma_get_src_port" "RDMACM_1.0" default uiw_cabi::cm::rdma_get_src_port;
    "rdma_getaddrinfo" "RDMACM_1.0" default uiw_cabi::cm::rdma_getaddrinfo;
    "rdma_join_multicast" "RDMACM_1.0" default uiw_cabi::cm::rdma_join_multicast;
    "rdma_leave_multicast" "RDMACM_1.0" default uiw_cabi::cm::rdma_leave_multicast;
    "rdma_listen" "RDMACM_1.0" default uiw_cabi::cm::rdma_listen;
    "rdma_migrate_id" "RDMACM_1.0" default uiw_cabi::cm::rdma_migrate_id;
    "rdma_notify" "RDMACM_1.0" default uiw_cabi::cm::rdma_notify;
    "rdma_reject" "RDMACM_1.0" default uiw_cabi::cm::rdma_reject;
    "rdma_resolve_addr" "RDMACM_1.0" default uiw_cabi::cm::rdma_resolve_addr;
    "rdma_resolve_route" "RDMACM_1.0" default uiw_cabi::cm::rdma_resolve_route;
    "rdma_set_option" "RDMACM_1.0" default uiw_cabi::cm::rdma_set_option;
    "rfcntl" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rfcntl;
    "rgetpeername" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rgetpeername;
    "rgetsockname" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rgetsockname;
    "rgetsockopt" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rgetsockopt;
    "riomap" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::riomap;
    "riounmap" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::riounmap;
    "riowrite" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::riowrite;
    "rlisten" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rlisten;
    "rpoll" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rpoll;
    "rread" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rread;
    "rreadv" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rreadv;
    "rrecv" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rrecv;
    "rrecvfrom" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rrecvfrom;
    "rrecvmsg" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rrecvmsg;
    "rselect" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rselect;
    "rsend" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rsend;
    "rsendmsg" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rsendmsg;
    "rsendto" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rsendto;
    "rsetsockopt" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rsetsockopt;
    "rshutdown" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rshutdown;
    "rsocket" "RDMACM_1.0" default uiw_cabi::rsocket::exports::rsocket;
    "rwrite" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rwrite;
    "rwritev" "RDMACM_1.0" default uiw_cabi::rsocket::transfer::rwritev;
    // RDMACM_1.1
    "rdma_join_multicast_ex" "RDMACM_1.1" default uiw_cabi::cm::rdma_join_multicast_ex;
    // RDMACM_1.2
    "rdma_establish" "RDMACM_1.2" default uiw_cabi::cm::rdma_establish;
    "rdma_init_qp_attr" "RDMACM_1.2" default uiw_cabi::cm::rdma_init_qp_attr;
    // RDMACM_1.3
    "rdma_get_remote_ece" "RDMACM_1.3" default uiw_cabi::cm::rdma_get_remote_ece;
    "rdma_reject_ece" "RDMACM_1.3" default uiw_cabi::cm::rdma_reject_ece;
    "rdma_set_local_ece" "RDMACM_1.3" default uiw_cabi::cm::rdma_set_local_ece;
    // RDMACM_1.4
    "rdma_query_addrinfo" "RDMACM_1.4" default uiw_cabi::cm::rdma_query_addrinfo;
    "rdma_resolve_addrinfo" "RDMACM_1.4" default uiw_cabi::cm::rdma_resolve_addrinfo;
    "rdma_write_cm_event" "RDMACM_1.4" default uiw_cabi::cm::rdma_write_cm_event;
    // RDMACM_1.5
    "repoll_create" "RDMACM_1.5" default uiw_cabi::rsocket::exports::repoll_create;
    "repoll_ctl" "RDMACM_1.5" default uiw_cabi::rsocket::exports::repoll_ctl;
    "repoll_wait" "RDMACM_1.5" default uiw_cabi::rsocket::exports::repoll_wait;
    // Of librspreload.so, which is of the same version as this library.
    "uiw_sockets_accepted" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_accepted;
    "uiw_sockets_address" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_address;
    "uiw_sockets_bind" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_bind;
    "uiw_sockets_bits" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_bits;
    "uiw_sockets_close_range" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_close_range;
    "uiw_sockets_closing" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_closing;
    "uiw_sockets_connected" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_connected;
    "uiw_sockets_duplicated" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_duplicated;
    "uiw_sockets_enter" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_enter;
    "uiw_sockets_enter_all" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_enter_all;
    "uiw_sockets_epoll_ctl" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_epoll_ctl;
    "uiw_sockets_epoll_wait" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_epoll_wait;
    "uiw_sockets_ioctl" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_ioctl;
    "uiw_sockets_kind" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_kind;
    "uiw_sockets_listening" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_listening;
    "uiw_sockets_loaded" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_loaded;
    "uiw_sockets_made" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_made;
    "uiw_sockets_made_datagram" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_made_datagram;
    "uiw_sockets_on_tcp" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_on_tcp;
    "uiw_sockets_poll" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_poll;
    "uiw_sockets_read" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_read;
    "uiw_sockets_receive" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_receive;
    "uiw_sockets_select" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_select;
    "uiw_sockets_send" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_send;
    "uiw_sockets_sendfile" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_sendfile;
    "uiw_sockets_sendto" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_sendto;
    "uiw_sockets_target" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_target;
    "uiw_sockets_waiting" "UIW_SOCKETS_1" default uiw_cabi::rsocket::preload::exports::uiw_sockets_waiting;
}

// Of the library whose object the first argument is.
by_object! {
    // IBVERBS_1.0
    "ibv_create_comp_channel" "IBVERBS_1.0" default uiw_cabi::channel::ibv_create_comp_channel;
    "ibv_destroy_comp_channel" "IBVERBS_1.0" default uiw_cabi::channel::ibv_destroy_comp_channel;
    // IBVERBS_1.1
    "ibv_ack_cq_events" "IBVERBS_1.1" default uiw_cabi::cq::ibv_ack_cq_events;
    "ibv_alloc_pd" "IBVERBS_1.1" default uiw_cabi::pd::ibv_alloc_pd;
    "ibv_attach_mcast" "IBVERBS_1.1" default uiw_cabi::qp::ibv_attach_mcast;
    "ibv_close_device" "IBVERBS_1.1" default uiw_cabi::open::ibv_close_device;
    "ibv_create_ah" "IBVERBS_1.1" default uiw_cabi::ah::ibv_create_ah;
    "ibv_create_ah_from_wc" "IBVERBS_1.1" default uiw_cabi::ah::ibv_create_ah_from_wc;
    "ibv_create_cq" "IBVERBS_1.1" default uiw_cabi::cq::ibv_create_cq;
    "ibv_create_qp" "IBVERBS_1.1" default uiw_cabi::qp::ibv_create_qp;
    "ibv_create_srq" "IBVERBS_1.1" default uiw_cabi::srq::ibv_create_srq;
    "ibv_dealloc_pd" "IBVERBS_1.1" default uiw_cabi::pd::ibv_dealloc_pd;
    "ibv_dereg_mr" "IBVERBS_1.1" default uiw_cabi::mr::ibv_dereg_mr;
    "ibv_destroy_ah" "IBVERBS_1.1" default uiw_cabi::ah::ibv_destroy_ah;
    "ibv_destroy_cq" "IBVERBS_1.1" default uiw_cabi::cq::ibv_destroy_cq;
    "ibv_destroy_qp" "IBVERBS_1.1" default uiw_cabi::qp::ibv_destroy_qp;
    "ibv_destroy_srq" "IBVERBS_1.1" default uiw_cabi::srq::ibv_destroy_srq;
    "ibv_detach_mcast" "IBVERBS_1.1" default uiw_cabi::qp::ibv_detach_mcast;
    "ibv_get_async_event" "IBVERBS_1.1" default uiw_cabi::async_events::ibv_get_async_event;
    "ibv_get_cq_event" "IBVERBS_1.1" default uiw_cabi::channel::ibv_get_cq_event;
    "ibv_get_device_guid" "IBVERBS_1.1" default uiw_cabi::device::ibv_get_device_guid;
    "ibv_get_device_name" "IBVERBS_1.1" default uiw_cabi::device::ibv_get_device_name;
    "ibv_init_ah_from_wc" "IBVERBS_1.1" default uiw_cabi::ah::ibv_init_ah_from_wc;
    "ibv_modify_qp" "IBVERBS_1.1" default uiw_cabi::qp::ibv_modify_qp;
    "ibv_modify_srq" "IBVERBS_1.1" default uiw_cabi::srq::ibv_modify_srq;
    "ibv_open_device" "IBVERBS_1.1" default uiw_cabi::open::ibv_open_device;
    "ibv_query_device" "IBVERBS_1.1" default uiw_cabi::device::attributes::ibv_query_device;
    "ibv_query_gid" "IBVERBS_1.1" default uiw_cabi::device::port::ibv_query_gid;
    "ibv_query_pkey" "IBVERBS_1.1" default uiw_cabi::device::port::ibv_query_pkey;
    "ibv_query_port" "IBVERBS_1.1" default uiw_cabi::device::port::ibv_query_port;
    "ibv_query_qp" "IBVERBS_1.1" default uiw_cabi::qp::ibv_query_qp;
    "ibv_query_srq" "IBVERBS_1.1" default uiw_cabi::srq::ibv_query_srq;
    "ibv_reg_mr" "IBVERBS_1.1" default uiw_cabi::mr::ibv_reg_mr;
    "ibv_rereg_mr" "IBVERBS_1.1" default uiw_cabi::mr::ibv_rereg_mr;
    "ibv_resize_cq" "IBVERBS_1.1" default uiw_cabi::cq::ibv_resize_cq;
    "ibv_resolve_eth_l2_from_gid" "IBVERBS_1.1" default uiw_cabi::refused::unsupported_minus_one;
    // IBVERBS_1.10
    "ibv_import_mr" "IBVERBS_1.10" default uiw_cabi::refused::unsupported_null;
    "ibv_import_pd" "IBVERBS_1.10" default uiw_cabi::refused::unsupported_null;
    "ibv_query_ece" "IBVERBS_1.10" default uiw_cabi::refused::unsupported;
    "ibv_set_ece" "IBVERBS_1.10" default uiw_cabi::refused::unsupported;
    "ibv_unimport_mr" "IBVERBS_1.10" default uiw_cabi::refused::nothing;
    "ibv_unimport_pd" "IBVERBS_1.10" default uiw_cabi::refused::nothing;
    // IBVERBS_1.11
    "_ibv_query_gid_ex" "IBVERBS_1.11" default uiw_cabi::device::port::_ibv_query_gid_ex;
    "_ibv_query_gid_table" "IBVERBS_1.11" default uiw_cabi::device::port::_ibv_query_gid_table;
    // IBVERBS_1.12
    "ibv_reg_dmabuf_mr" "IBVERBS_1.12" default uiw_cabi::dmabuf::ibv_reg_dmabuf_mr;
    // IBVERBS_1.13
    "ibv_import_dm" "IBVERBS_1.13" default uiw_cabi::refused::unsupported_null;
    "ibv_unimport_dm" "IBVERBS_1.13" default uiw_cabi::refused::nothing;
    // IBVERBS_1.14
    "ibv_query_qp_data_in_order" "IBVERBS_1.14" default uiw_cabi::refused::zero;
    // IBVERBS_1.5
    "ibv_get_pkey_index" "IBVERBS_1.5" default uiw_cabi::device::port::ibv_get_pkey_index;
    // IBVERBS_1.6
    "ibv_qp_to_qp_ex" "IBVERBS_1.6" default uiw_cabi::qp::ibv_qp_to_qp_ex;
    // IBVERBS_1.7
    "ibv_reg_mr_iova" "IBVERBS_1.7" default uiw_cabi::mr::ibv_reg_mr_iova;
    // IBVERBS_1.8
    "ibv_reg_mr_iova2" "IBVERBS_1.8" default uiw_cabi::mr::ibv_reg_mr_iova2;
    // IBVERBS_1.9
    "ibv_get_device_index" "IBVERBS_1.9" default uiw_cabi::device::ibv_get_device_index;
    // IBVERBS_1.15
    "ibv_alloc_dmah" "IBVERBS_1.15" default uiw_cabi::refused::unsupported_null;
    "ibv_dealloc_dmah" "IBVERBS_1.15" default uiw_cabi::refused::unsupported;
    "ibv_reg_mr_ex" "IBVERBS_1.15" default uiw_cabi::buf::ibv_reg_mr_ex;
    // IBVERBS_1.16
    "ibv_dm_export_dmabuf_fd" "IBVERBS_1.16" default uiw_cabi::refused::unsupported_minus_one;
    "ibv_query_port_speed" "IBVERBS_1.16" default uiw_cabi::device::speed::ibv_query_port_speed;
    // IBVERBS_1.17
    "ibv_alloc_buf" "IBVERBS_1.17" default uiw_cabi::buf::ibv_alloc_buf;
    "ibv_free_buf" "IBVERBS_1.17" default uiw_cabi::buf::ibv_free_buf;
    "ibv_reg_buf_mr" "IBVERBS_1.17" default uiw_cabi::buf::ibv_reg_buf_mr;
    // IBVERBS_1.18
    "_ibv_query_comp_cntr_caps" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_create_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported_null;
    "ibv_destroy_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_export_buf_dmabuf_fd" "IBVERBS_1.18" default uiw_cabi::buf::ibv_export_buf_dmabuf_fd;
    "ibv_inc_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_inc_err_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_qp_attach_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_read_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_read_err_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_set_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
    "ibv_set_err_comp_cntr" "IBVERBS_1.18" default uiw_cabi::refused::unsupported;
}

// Of the system's library where it is loaded: for its providers, and for forks, which this library needs nothing for.
forwarded! {
    // IBVERBS_1.0
    "ibv_copy_path_rec_from_kern" "IBVERBS_1.0" default uiw_cabi::refused::nothing;
    "ibv_copy_path_rec_to_kern" "IBVERBS_1.0" default uiw_cabi::refused::nothing;
    "ibv_copy_qp_attr_from_kern" "IBVERBS_1.0" default uiw_cabi::refused::nothing;
    // IBVERBS_1.1
    "ibv_copy_ah_attr_from_kern" "IBVERBS_1.1" default uiw_cabi::refused::nothing;
    "ibv_dofork_range" "IBVERBS_1.1" default uiw_cabi::open::fork_range;
    "ibv_dontfork_range" "IBVERBS_1.1" default uiw_cabi::open::fork_range;
    "ibv_fork_init" "IBVERBS_1.1" default uiw_cabi::open::ibv_fork_init;
    "ibv_register_driver" "IBVERBS_1.1" compat uiw_cabi::refused::nothing;
    // IBVERBS_1.10
    "ibv_import_device" "IBVERBS_1.10" default uiw_cabi::refused::unsupported_null;
    // IBVERBS_1.13
    "ibv_is_fork_initialized" "IBVERBS_1.13" default uiw_cabi::open::ibv_is_fork_initialized;
}

include!(concat!(env!("OUT_DIR"), "/private.rs"));
