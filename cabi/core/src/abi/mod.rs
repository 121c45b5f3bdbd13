//! The structures of `infiniband/verbs.h` and `rdma/rdma_cma.h`, with the names of C.
//!
//! Every layout is checked at compile time against the layout that a C compiler creates from the
//! headers of rdma-core 44 on a 64-bit machine.

#![expect(non_camel_case_types, reason = "C's names")]
#![expect(missing_docs, reason = "the fields are documented in verbs.h")]
#![expect(clippy::use_self, reason = "functions in C's structures name them as the header does")]

pub mod cm;
pub mod context;
pub mod cq;
pub mod device;
pub mod event;
pub mod mr;
pub mod qp;
pub mod srq;
pub mod wr;

pub use cm::{
    rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param,
    rdma_event_channel, rdma_event_param, rdma_ud_param,
};
pub use context::{ibv_context, ibv_context_ops, ibv_values_ex, verbs_context};
pub use cq::{
    ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_moderate_cq, ibv_modify_cq_attr,
    ibv_poll_cq_attr, ibv_wc_tm_info,
};
pub use device::{
    _compat_ibv_port_attr, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_port_attr,
};
pub use event::{ibv_async_element, ibv_async_event, ibv_event_type};
pub use mr::{
    ibv_ah, ibv_buf, ibv_grh, ibv_mr, ibv_mr_init_attr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
pub use qp::{
    ibv_ah_attr, ibv_ece, ibv_global_route, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_rx_hash_conf,
};
pub use srq::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_tm_cap};
pub use wr::{
    ibv_data_buf, ibv_imm, ibv_recv_wr, ibv_send_bind, ibv_send_tail, ibv_send_target, ibv_send_wr,
    ibv_sge, ibv_target_atomic, ibv_target_rdma, ibv_target_ud, ibv_wc,
};

/// `pthread_mutex_t` or `pthread_cond_t` in a verbs object. This library uses neither. Zeros are
/// their static initializer.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct pthread_words<const N: usize>(pub [u64; N]);

pub type pthread_mutex = pthread_words<5>;
pub type pthread_cond = pthread_words<6>;

/// Asserts the size of a structure and the offsets of its fields.
macro_rules! layout {
    ($name:ident: $size:literal { $($($field:ident).+: $at:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $($field).+) == $at);)*
        };
    };
}
pub(crate) use layout;

/// Structure of C that may consist of zeros.
///
/// # Safety
/// All fields are integers, raw pointers, optional functions, or structures, unions and arrays of
/// these, so zeros are a value of the type, and any other values of the fields are as well.
pub unsafe trait PlainAbi: Sized {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: the declaration, which is in a module above or in the crate `libc`, contains
            // only integers, raw pointers, optional functions, and structures, unions and arrays of
            // these.
            unsafe impl PlainAbi for $name {}
        )*
    };
}

plain! {
    ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr, verbs_context, ibv_async_event,
    ibv_pd, ibv_td, ibv_mr, ibv_mr_init_attr, ibv_mw, ibv_ah, ibv_ah_attr, ibv_buf, ibv_ece,
    ibv_comp_channel, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc, ibv_send_wr, ibv_recv_wr, ibv_srq,
    ibv_srq_init_attr, ibv_qp_ex, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    rdma_addrinfo, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_event_param,
    libc::addrinfo, libc::ifreq, libc::msghdr, libc::sigaction, libc::sigset_t, libc::stat, libc::statfs, libc::Dl_info,
}

/// Returns a structure of C that consists of zeros.
pub const fn zeroed<T: PlainAbi>() -> T {
    // SAFETY: zeros represent an integer, a NULL pointer and an absent function, and a `PlainAbi`
    // type has no other fields.
    unsafe { core::mem::MaybeUninit::zeroed().assume_init() }
}
