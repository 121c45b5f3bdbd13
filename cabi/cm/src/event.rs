//! Events that C refers to, from their delivery to their acknowledgement.

use crate::id::{Id, LocalEvent, Membership};
use crate::private_data::{MAX_PRIVATE_DATA, PrivateData};
use crate::registry::RegisteredPtr as _;
use crate::{address_vector, membership, registry};
use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use uiw_cabi_core::abi::cm::*;
use uiw_cabi_core::abi::{
    ibv_ah_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_param, rdma_ud_param,
    zeroed,
};
use uiw_cabi_core::arguments::AnyPtr;
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::engine::MAX_RD_ATOMIC;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_verbs::device::gid;

/// Event that C has not acknowledged.
#[repr(C)]
struct UnackedEvent {
    abi: rdma_cm_event,
    private_data: [u8; MAX_PRIVATE_DATA],
    /// Id that counts the acknowledgement.
    owner: Arc<Id>,
    /// Membership that the event is about, if any.
    membership: Option<Arc<Membership>>,
}

/// Event that is about to be passed to C. It has only plain values, because it exists while a
/// thread may be cancelled.
#[derive(Clone, Copy)]
pub(crate) struct DeliveredEvent {
    pub(crate) event: *mut rdma_cm_event,
    pub(crate) id: AnyPtr<rdma_cm_id>,
    /// `RDMA_CM_EVENT_*`
    pub(crate) kind: c_int,
    pub(crate) status: c_int,
}

/// Content of an event about a connection.
pub(crate) struct EventDraft<'a> {
    /// `RDMA_CM_EVENT_*`
    pub(crate) event: c_int,
    /// 0, a negative errno, or a reason of InfiniBand's communication manager.
    pub(crate) status: c_int,
    pub(crate) private_data: Option<PrivateData<'a>>,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// Address vector of an id without a connection.
    pub(crate) ud: Option<UdDestination>,
    /// Membership that the event is about, which has counted it.
    pub(crate) membership: Option<Arc<Membership>>,
}

/// Queue pair or multicast group in an event of an id without a connection.
#[derive(Clone, Copy, Default)]
pub(crate) struct UdDestination {
    pub(crate) ah: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
    /// Pointer that the program has passed for a group, instead of private data.
    pub(crate) context: u64,
}

impl EventDraft<'_> {
    pub(crate) const fn new(event: c_int) -> Self {
        Self {
            event,
            status: 0,
            private_data: None,
            responder_resources: 0,
            initiator_depth: 0,
            ud: None,
            membership: None,
        }
    }
}

/// Converts a number of Reads to C's single byte.
pub(crate) fn reads_in_one_byte(reads: u16) -> u8 {
    reads.min(MAX_RD_ATOMIC) as u8
}

/// Creates an event about `id`. It is counted by `owner`, which is the listener for a request, and
/// `id` itself otherwise. Returns `None` if the owner is being destroyed.
pub(crate) fn create_event(
    owner: &Arc<Id>,
    id: &Id,
    draft: &EventDraft<'_>,
) -> Option<DeliveredEvent> {
    let mut conn: rdma_conn_param = zeroed();
    conn.responder_resources = draft.responder_resources;
    conn.initiator_depth = draft.initiator_depth;
    let listener =
        if std::ptr::eq(Arc::as_ptr(owner), id) { std::ptr::null_mut() } else { owner.abi() };
    let abi = rdma_cm_event {
        id: id.abi(),
        listen_id: listener,
        event: draft.event,
        status: draft.status,
        param: match draft.ud {
            None => rdma_event_param { conn },
            Some(ud) => rdma_event_param {
                ud: rdma_ud_param {
                    private_data: ud.context as usize as *const c_void,
                    private_data_len: 0,
                    ah_attr: ud.ah,
                    qp_num: ud.qp_num,
                    qkey: ud.qkey,
                },
            },
        },
    };
    let private_data = draft.private_data.map(|data| (data, id.lock().peer));
    allocate_event(owner, abi, private_data, draft.membership.clone())
}

/// Creates an event that the connection manager itself has posted.
pub(crate) fn create_local_event(id: &Arc<Id>, note: LocalEvent) -> Option<DeliveredEvent> {
    if let Some(membership) = &note.membership {
        return create_group_event(id, &note, membership);
    }
    // Programs may read any member of the union.
    let mut param: rdma_event_param = zeroed();
    param.arg = note.arg;
    let abi = rdma_cm_event {
        id: id.abi(),
        listen_id: std::ptr::null_mut(),
        event: note.event,
        status: note.status,
        param,
    };
    let private_data = PrivateData::of_event(note.event).map(|data| (data, None));
    allocate_event(id, abi, private_data, None)
}

/// Creates an event about a membership in a multicast group. Returns `None` if the membership has
/// ended.
fn create_group_event(
    id: &Arc<Id>,
    note: &LocalEvent,
    membership: &Arc<Membership>,
) -> Option<DeliveredEvent> {
    if !membership::note_delivered(id, membership) {
        return None;
    }
    let (event, status) = match membership::attach(id, membership) {
        Ok(()) => (note.event, note.status),
        Err(error) => (RDMA_CM_EVENT_MULTICAST_ERROR, -error.0),
    };
    let local = id.lock().local.map(|local| local.ip());
    let ah = local.and_then(|local| {
        address_vector::address_vector(local, gid::from_address(membership.group)).ok()
    });
    let ud = UdDestination {
        ah: ah.unwrap_or_default(),
        qp_num: uiw_datagram::Qpn::MULTICAST.raw(),
        qkey: RDMA_UDP_QKEY,
        context: note.arg,
    };
    let membership = Some(Arc::clone(membership));
    let draft = EventDraft { status, ud: Some(ud), membership, ..EventDraft::new(event) };
    create_event(id, id, &draft)
}

fn allocate_event(
    owner: &Arc<Id>,
    abi: rdma_cm_event,
    private_data: Option<(PrivateData<'_>, Option<SocketAddr>)>,
    membership: Option<Arc<Membership>>,
) -> Option<DeliveredEvent> {
    if !owner.note_delivered() {
        return None;
    }
    let (id, kind, status) = (abi.id.into(), abi.event, abi.status);
    let mut event = Box::new(UnackedEvent {
        abi,
        private_data: [0; MAX_PRIVATE_DATA],
        owner: Arc::clone(owner),
        membership,
    });
    let len = private_data.map_or(0, |(data, peer)| data.fill(&mut event.private_data, peer));
    let event = Box::into_raw(event);
    if len > 0 {
        // Pointer and length have the same offsets in both structures of the union.
        // SAFETY: the event is that of a new box, so it is initialized and aligned, and nothing
        // else refers to it yet. The fields that are written are a plain number and a pointer to
        // `private_data`, which is valid until `acknowledge` frees the event, because nothing moves
        // the content of the box.
        unsafe {
            (*event).abi.param.conn.private_data =
                (&raw const (*event).private_data).cast::<c_void>();
            (*event).abi.param.conn.private_data_len = len as u8;
        }
    }
    let event = event.cast();
    registry::add_event(event);
    Some(DeliveredEvent { event, id, kind, status })
}

/// Takes back an event that C acknowledges.
///
/// # Errors
/// EINVAL if the pointer is not an event, or the event was acknowledged before.
pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<()> {
    if !registry::remove_event(event) {
        return if registry::forget_inherited(event) {
            Ok(())
        } else {
            Err(Errno::INVAL.because("not an event, or already acknowledged"))
        };
    }
    // SAFETY: the pointer was in the registry, so `allocate_event` made it from a box of an
    // `UnackedEvent`, whose first field is C's (`repr(C)`). Only this call has removed it, under a
    // lock. The program does not use an event that it acknowledges (rdma_ack_cm_event(3)), nor that
    // in the field of a synchronous id after its next call (`sync`).
    let event = unsafe { Box::from_raw(event.cast::<UnackedEvent>()) };
    event.owner.note_acknowledged();
    if let Some(membership) = event.membership {
        membership.events.acknowledge(1);
    }
    Ok(())
}

/// `rdma_ack_cm_event`.
pub extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    boundary::minus_one(|| acknowledge(event))
}

/// `rdma_write_cm_event`: posts an event of the program's own.
pub extern "C" fn rdma_write_cm_event(
    id: AnyPtr<rdma_cm_id>,
    event: c_int,
    status: c_int,
    arg: u64,
) -> c_int {
    boundary::minus_one(|| {
        if event != RDMA_CM_EVENT_USER {
            return Err(Errno::INVAL.because("programs can write only RDMA_CM_EVENT_USER"));
        }
        id.get()?.post(LocalEvent { event, status, arg, membership: None })
    })
}

/// `rdma_event_str`.
pub extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    let text = match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        RDMA_CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        RDMA_CM_EVENT_INTERNAL => c"RDMA_CM_EVENT_INTERNAL",
        _ => c"UNKNOWN EVENT",
    };
    text.as_ptr()
}
