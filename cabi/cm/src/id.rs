//! Communication identifiers (ids) that C refers to, and their state.

use crate::addrinfo_result::AddrinfoResult;
use crate::channel::Channel;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;
use uiw_cabi_core::abi::cm::{
    RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP,
};
use uiw_cabi_core::abi::qp::{IBV_QPT_RC, IBV_QPT_UD};
use uiw_cabi_core::abi::{ibv_qp, ibv_qp_init_attr, rdma_cm_id, zeroed};
use uiw_cabi_core::abi_cell::AbiCell;
use uiw_cabi_core::address;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::object::Object;
use uiw_cabi_core::ports::PortReservation;
use uiw_cabi_core::users::UnacknowledgedEvents;
use uiw_cabi_verbs::context::OpenContext;
use uiw_cabi_verbs::qp::Qp;
use uiw_verbs::cm::{
    CmEvent, CmEventKind, ConnHandle, ConnId, ConnRequest, Listener, SidrHandle, SidrListener,
    SidrRequest,
};

/// Communication identifier: the structure of C, followed by the state.
#[repr(C)]
pub(crate) struct Id {
    pub(crate) abi: AbiCell<rdma_cm_id>,
    /// Held by calls that change the id's connection or listener, while the engine makes the
    /// change. Events are delivered without this lock.
    control: Mutex<()>,
    state: Mutex<State>,
    /// Events that were delivered and not acknowledged yet.
    events: UnacknowledgedEvents,
}

/// Progress of an id.
pub(crate) enum Phase {
    /// The id is new.
    Idle,
    /// The id has a local address.
    Bound,
    /// The id has the address of the peer.
    AddrResolved,
    /// `rdma_resolve_route` was called. On iWARP there is nothing more to resolve.
    RouteResolved,
    /// Peers can connect.
    Listening(Listener),
    /// The id is a connection request that was not answered yet.
    Requested(ConnRequest),
    /// Peers can request a UD queue pair.
    SidrListening(SidrListener),
    /// The id is a request for a UD queue pair that was not answered yet.
    SidrRequested(SidrRequest),
    /// `rdma_connect` or `rdma_accept` was called, and the connection is not established yet.
    Connecting,
    /// The connection is established.
    Connected,
    /// The program has disconnected.
    Disconnecting,
    /// The connection failed or has ended.
    Over,
}

/// Options set by `rdma_set_option`.
#[derive(Clone, Copy, Default)]
pub(crate) struct IdOptions {
    pub(crate) tos: Option<u8>,
    pub(crate) reuse: bool,
    pub(crate) v6_only: bool,
    pub(crate) ack_timeout: Option<u8>,
}

/// Event that the connection manager itself posts, not the engine.
pub(crate) struct LocalEvent {
    /// `RDMA_CM_EVENT_*`
    pub(crate) event: c_int,
    /// 0 or a negative errno.
    pub(crate) status: c_int,
    /// Argument of `RDMA_CM_EVENT_USER`, and the program's pointer for a multicast group.
    pub(crate) arg: u64,
    /// Membership that the event concerns.
    pub(crate) membership: Option<Arc<Membership>>,
}

/// Membership in a multicast group.
pub(crate) struct Membership {
    pub(crate) group: IpAddr,
    /// Join flags.
    pub(crate) flags: u32,
    /// Events about the membership that were delivered and not acknowledged yet.
    pub(crate) events: UnacknowledgedEvents,
}

impl LocalEvent {
    pub(crate) const fn new(event: c_int, status: c_int) -> Self {
        Self { event, status, arg: 0, membership: None }
    }
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) channel: Arc<Channel>,
    /// True if the id is synchronous: calls wait for their events, on the id's own channel.
    pub(crate) sync: bool,
    /// True if the id connects rather than accepts.
    pub(crate) active: bool,
    /// True if the id connects, on another transport than iWARP, with a queue pair that the program
    /// moves itself. The program gets an event when the peer has answered, and then calls
    /// `rdma_establish`.
    pub(crate) two_steps: bool,
    /// True if the peer has answered and `rdma_establish` was not called yet.
    pub(crate) awaits_establish: bool,
    /// Queue pair of a connection for which the program has none.
    pub(crate) placeholder: Option<Arc<uiw_verbs::Qp>>,
    pub(crate) conn: Option<ConnId>,
    pub(crate) handle: Option<ConnHandle>,
    /// Outstanding request for the peer's UD queue pair.
    pub(crate) sidr: Option<SidrHandle>,
    pub(crate) port: Option<PortReservation>,
    /// Real local address, with the port number of TCP.
    pub(crate) local: Option<SocketAddr>,
    /// Real address of the peer, with the port number of TCP.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) options: IdOptions,
    /// Number of outstanding Reads that the peer of a request asks for, limited to one byte.
    pub(crate) responder_resources: u8,
    /// Number of Reads that the peer of a request offers to serve at once, limited to one byte.
    pub(crate) initiator_depth: u8,
    /// Attributes for the queue pairs of the requests of a listening endpoint.
    pub(crate) endpoint: Option<EndpointAttributes>,
    /// Private data that precedes the caller's (`ai_connect`).
    pub(crate) connect_data: Vec<u8>,
    /// Memberships in multicast groups, oldest first. An id can join a group several times.
    pub(crate) memberships: Vec<Arc<Membership>>,
    /// Result of `rdma_resolve_addrinfo`.
    pub(crate) resolved: Option<AddrinfoResult>,
    /// Local events that are announced in the channel.
    pub(crate) local_events: VecDeque<LocalEvent>,
    /// True if the program got, or is about to get, the event for the removal of its device.
    pub(crate) device_removed: bool,
    /// True if the id is being destroyed.
    pub(crate) destroyed: bool,
}

/// Attributes that `rdma_create_ep` stores for `rdma_get_request`.
#[derive(Clone, Copy)]
pub(crate) struct EndpointAttributes(pub(crate) ibv_qp_init_attr);

// SAFETY: a value only stores the pointers, which any thread may do. Only `qp::create_for_request`
// uses them, as arguments whose objects are looked up with `Object::get`. Any thread may use these
// objects, because a `Body` is `Send` and `Sync`. `qp_context` is only passed on.
unsafe impl Send for EndpointAttributes {}

impl Id {
    /// Creates an id. C does not know it before it is registered.
    pub(crate) fn new(channel: &Arc<Channel>, sync: bool, context: *mut c_void) -> Arc<Self> {
        let mut abi: rdma_cm_id = zeroed();
        abi.channel = channel.abi();
        abi.context = context;
        abi.ps = RDMA_PS_TCP;
        abi.qp_type = IBV_QPT_RC;
        let state = State {
            phase: Phase::Idle,
            channel: Arc::clone(channel),
            sync,
            active: false,
            two_steps: false,
            awaits_establish: false,
            placeholder: None,
            conn: None,
            handle: None,
            sidr: None,
            port: None,
            local: None,
            peer: None,
            options: IdOptions::default(),
            responder_resources: 0,
            initiator_depth: 0,
            endpoint: None,
            connect_data: Vec::new(),
            memberships: Vec::new(),
            resolved: None,
            local_events: VecDeque::new(),
            device_removed: false,
            destroyed: false,
        };
        Arc::new(Self {
            abi: AbiCell::new(abi),
            control: Mutex::default(),
            state: Mutex::new(state),
            events: UnacknowledgedEvents::default(),
        })
    }

    /// Returns C's pointer.
    pub(crate) fn abi(&self) -> *mut rdma_cm_id {
        self.abi.as_ptr()
    }

    /// Sets the port space of a new id.
    pub(crate) fn set_port_space(&self, ps: c_int) {
        self.abi.set(|id| &id.ps, ps);
        self.abi.set(|id| &id.qp_type, self.qp_type());
    }

    /// Returns the type of the id's queue pairs.
    pub(crate) fn qp_type(&self) -> c_int {
        if self.is_ud() { IBV_QPT_UD } else { IBV_QPT_RC }
    }

    /// `RDMA_PS_*`
    pub(crate) fn port_space(&self) -> c_int {
        self.abi.get(|id| &id.ps)
    }

    /// Returns whether the id resolves UD queue pairs instead of connecting.
    pub(crate) fn is_ud(&self) -> bool {
        matches!(self.port_space(), RDMA_PS_UDP | RDMA_PS_IPOIB)
    }

    /// Locks calls that change the connection or listener. This lock is taken before the call of
    /// the engine, and before the lock of the state.
    pub(crate) fn control(&self) -> MutexGuard<'_, ()> {
        self.control.lock()
    }

    /// Locks the state. Delivery of events takes this lock, so it is not held while the engine
    /// connects, accepts, listens or closes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Locks the state, unless the id is being destroyed.
    pub(crate) fn lock_alive(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock();
        (!state.destroyed).then_some(state)
    }

    /// Like [`Id::lock_alive`], for calls of the program.
    ///
    /// # Errors
    /// EINVAL if the id is being destroyed.
    pub(crate) fn lock_checked(&self) -> Result<MutexGuard<'_, State>> {
        self.lock_alive().ok_or_else(|| Errno::INVAL.because("the id is being destroyed"))
    }

    /// Returns the program's own pointer.
    pub(crate) fn context(&self) -> *mut c_void {
        self.abi.get(|id| &id.context)
    }

    /// Returns the context of the id's device.
    ///
    /// # Errors
    /// EINVAL if the id has no device yet.
    pub(crate) fn verbs(&self) -> Result<&Object<OpenContext>> {
        // SAFETY: `Object::get` looks up the pointer. Only `devices::bind` sets the field, to a
        // context that `devices` never closes. The program does not close it while `self` is
        // borrowed, for a call on the id: `OwnedHandle`, the argument type of `ibv_close_device`,
        // requires that no other thread uses it.
        unsafe { Object::get(self.abi.get(|id| &id.verbs)) }
    }

    /// Returns the queue pair that `rdma_create_qp` created, for a call of the program on the id.
    pub(crate) fn own_qp(&self) -> Option<&Object<Qp>> {
        // SAFETY: `Object::get` looks up the pointer. The object is not freed while the result
        // lives. In a call on the id, which uses the queue pair, `OwnedHandle` excludes that
        // another thread destroys it. For events, `with_own_qp` holds the lock for which
        // `rdma_destroy_qp` and `rdma_destroy_id` wait, one of which precedes the destruction.
        unsafe { Object::get(self.abi.get(|id| &id.qp)) }.ok()
    }

    /// Like [`Id::own_qp`], but calls `body` with the queue pair, while [`Id::take_qp`] and the
    /// destruction of the id wait. This is for events: the program does not know which of them use
    /// the queue pair. An id that is being destroyed has none.
    pub(crate) fn with_own_qp<R>(&self, body: impl FnOnce(&Object<Qp>) -> R) -> Option<R> {
        let _state = self.lock_alive()?;
        self.own_qp().map(body)
    }

    /// Removes the queue pair from the id, before it is destroyed.
    pub(crate) fn take_qp(&self) -> *mut ibv_qp {
        let _state = self.lock();
        self.abi.replace(|id| &id.qp, ptr::null_mut())
    }

    /// Returns whether the id has no queue pair of its own: the program uses another one, which it
    /// moves itself and names by number.
    pub(crate) fn has_foreign_qp(&self) -> bool {
        self.abi.get(|id| &id.qp).is_null()
    }

    /// Returns the queue pair of the id, or the queue pair of its device that the program names by
    /// number.
    ///
    /// # Errors
    /// EINVAL if there is no such queue pair.
    pub(crate) fn queue_pair(&self, number: u32) -> Result<&Object<Qp>> {
        // SAFETY: `Object::get` looks up the pointer in both cases. A call on the id borrows `self`
        // and uses the queue pair, its own or the one whose number the program has passed. So no
        // other thread destroys it meanwhile: `OwnedHandle`, the argument type of `ibv_destroy_qp`,
        // requires that no other thread of the program uses it.
        unsafe {
            match self.abi.get(|id| &id.qp) {
                own if own.is_null() => Qp::with_number(self.verbs()?, number),
                own => Object::get(own),
            }
        }
    }

    /// Stores the real addresses, and shows them to the program with its own port numbers.
    pub(crate) fn set_addresses(&self, local: Option<SocketAddr>, peer: Option<SocketAddr>) {
        let mut state = self.lock();
        state.local = local.or(state.local);
        state.peer = peer.or(state.peer);
        // SAFETY: the state of the id is locked. Only this function sets these fields.
        unsafe {
            if let Some(local) = local {
                self.abi.set_long(|id| &id.route.addr.src, address::to_program(local));
            }
            if let Some(peer) = peer {
                self.abi.set_long(|id| &id.route.addr.dst, address::to_program(peer));
            }
        }
    }

    /// Posts a local event.
    pub(crate) fn post(&self, note: LocalEvent) -> Result<()> {
        let mut state = self.lock_checked()?;
        state.local_events.push_back(note);
        // Posted under the lock, so that the id does not migrate to another channel in between.
        state.channel.queue().post(CmEvent::posted(self.abi().addr() as u64));
        Ok(())
    }

    /// Posts an event about the id's device, unless the same event is still queued. The event for
    /// the removal of the device is posted only once.
    pub(crate) fn post_device_event(&self, event: c_int) {
        let is_known = {
            let mut state = self.lock();
            match event {
                RDMA_CM_EVENT_DEVICE_REMOVAL => std::mem::replace(&mut state.device_removed, true),
                _ => state.local_events.iter().any(|note| note.event == event),
            }
        };
        if !is_known {
            // An id that is being destroyed has no events.
            let _ = self.post(LocalEvent::new(event, 0));
        }
    }

    /// Removes the local events that C has not seen.
    pub(crate) fn forget_local_events(&self) {
        let channel = {
            let mut state = self.lock();
            state.local_events.clear();
            Arc::clone(&state.channel)
        };
        drop(channel.queue().remove_if(|event| self.is_about(event, None)));
    }

    /// Removes the events about a membership that C has not seen, because it has ended.
    pub(crate) fn forget_events_about(&self, membership: &Arc<Membership>) {
        let (mut count, channel) = {
            let mut state = self.lock();
            let before = state.local_events.len();
            state.local_events.retain(|note| {
                note.membership.as_ref().is_none_or(|other| !Arc::ptr_eq(other, membership))
            });
            (before - state.local_events.len(), Arc::clone(&state.channel))
        };
        // The events of the channel only announce local events, so any of them may go.
        let removed = channel.queue().remove_if(|event| {
            let goes = count > 0 && self.is_about(event, None);
            count -= usize::from(goes);
            goes
        });
        drop(removed);
    }

    /// Returns whether an event of a channel concerns this id, whose connection is `conn`.
    pub(crate) fn is_about(&self, event: &CmEvent, conn: Option<ConnId>) -> bool {
        match event.kind {
            CmEventKind::Posted(tag) => tag == self.abi().addr() as u64,
            _ => Some(event.id) == conn,
        }
    }

    /// Counts an event of this id that is about to be passed to C. Returns false if the id is being
    /// destroyed.
    pub(crate) fn note_delivered(&self) -> bool {
        let alive = self.lock_alive();
        if alive.is_some() {
            self.events.deliver();
        }
        alive.is_some()
    }

    /// Counts the acknowledgement of an event.
    pub(crate) fn note_acknowledged(&self) {
        self.events.acknowledge(1);
    }

    /// Returns the number of events that were passed to C so far.
    pub(crate) fn delivered_events(&self) -> u64 {
        self.events.delivered()
    }

    /// Waits until C has acknowledged this number of events.
    pub(crate) fn wait_acknowledged(&self, events: u64) {
        self.events.wait_for(events);
    }

    /// Waits until C has acknowledged every event.
    pub(crate) fn wait_all_acknowledged(&self) {
        self.events.wait();
    }
}
