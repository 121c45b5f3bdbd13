//! Communication identifiers: what C holds, what it has become, and how it ends.

use crate::abi::cm::{RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP};
use crate::abi::qp::IBV_QPT_RC;
use crate::abi::{self, ibv_pd, ibv_qp_init_attr, rdma_cm_id, rdma_event_channel};
use crate::boundary::{self, Result};
use crate::cm::address::{self, Reservation};
use crate::cm::channel::Channel;
use crate::cm::event::{self, Note};
use crate::cm::registry;
use crate::errno::Errno;
use crate::object::Object;
use crate::process;
use crate::qp::Qp;
use crate::users::Unacknowledged;
use parking_lot::{Mutex, MutexGuard};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;
use verbs::cm::{CmEvent, CmEventKind, ConnHandle, ConnId, ConnRequest, Listener};

/// An id: C's structure in front of ours.
#[repr(C)]
pub(crate) struct Id {
    abi: UnsafeCell<rdma_cm_id>,
    state: Mutex<State>,
    /// Events that the program holds.
    events: Unacknowledged,
}

// SAFETY: ours is behind the lock; C's structure is read and written through raw pointers, as C does.
unsafe impl Sync for Id {}
// SAFETY: as above.
unsafe impl Send for Id {}

/// How far an id is.
pub(crate) enum Phase {
    /// New.
    Idle,
    /// It has a local address.
    Bound,
    /// It knows whom to connect to.
    AddrResolved,
    /// And how: on iWARP there is nothing more to find out.
    RouteResolved,
    /// It brings requests.
    Listening(Listener),
    /// A peer asked, and waits for the answer.
    Requested(ConnRequest),
    /// Both sides know, the connection does not stand yet.
    Connecting,
    /// It stands.
    Connected,
    /// The program has disconnected.
    Disconnecting,
    /// The connection came to nothing, or has ended.
    Over,
}

/// What `rdma_set_option` sets.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options {
    pub(crate) tos: Option<u8>,
    pub(crate) reuse: bool,
    pub(crate) v6_only: bool,
    pub(crate) ack_timeout: Option<u8>,
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) channel: Arc<Channel>,
    /// Calls wait for their events, on a channel of the id's own.
    pub(crate) sync: bool,
    /// Whether it connects, rather than accepts.
    pub(crate) active: bool,
    /// Whether the queue pair is one that the program moves itself.
    pub(crate) foreign_qp: bool,
    pub(crate) conn: Option<ConnId>,
    pub(crate) handle: Option<ConnHandle>,
    pub(crate) port: Option<Reservation>,
    /// Real addresses: ports as TCP has them.
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) options: Options,
    /// Of a request: what the peer offers and asks for, as far as one octet goes.
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// Of a listening endpoint: how the queue pairs of its requests are made.
    pub(crate) endpoint: Option<Endpoint>,
    /// Private data that goes before the caller's (`ai_connect`).
    pub(crate) connect_data: Vec<u8>,
    /// Answer of `rdma_resolve_addrinfo`.
    pub(crate) resolved: Option<crate::cm::addrinfo::Resolved>,
    /// Events of our own that were announced in the channel.
    pub(crate) notes: VecDeque<Note>,
    /// Being destroyed.
    gone: bool,
}

/// What `rdma_create_ep` remembers for `rdma_get_request`.
#[derive(Clone, Copy)]
pub(crate) struct Endpoint {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) attr: ibv_qp_init_attr,
}

impl Id {
    /// A new id that C may name.
    pub(crate) fn create(channel: &Arc<Channel>, sync: bool, context: *mut c_void) -> Arc<Self> {
        // SAFETY: integers and pointers.
        let mut abi: rdma_cm_id = unsafe { abi::zeroed() };
        abi.channel = channel.abi();
        abi.context = context;
        abi.ps = RDMA_PS_TCP;
        abi.qp_type = IBV_QPT_RC;
        let state = State {
            phase: Phase::Idle,
            channel: Arc::clone(channel),
            sync,
            active: false,
            foreign_qp: false,
            conn: None,
            handle: None,
            port: None,
            local: None,
            peer: None,
            options: Options::default(),
            responder_resources: 0,
            initiator_depth: 0,
            endpoint: None,
            connect_data: Vec::new(),
            resolved: None,
            notes: VecDeque::new(),
            gone: false,
        };
        let id = Arc::new(Self {
            abi: UnsafeCell::new(abi),
            state: Mutex::new(state),
            events: Unacknowledged::default(),
        });
        process::with(|process| process.cm.add_id(&id));
        id
    }

    /// C's pointer.
    pub(crate) fn abi(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Its state unless it is being destroyed.
    pub(crate) fn lock_alive(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock();
        (!state.gone).then_some(state)
    }

    /// The program's own pointer.
    pub(crate) fn context(&self) -> *mut c_void {
        // SAFETY: the structure is alive; C writes the field, if at all, before it calls.
        unsafe { (*self.abi()).context }
    }

    /// The queue pair that `rdma_create_qp` made.
    pub(crate) fn own_qp(&self) -> Option<&Object<Qp>> {
        // SAFETY: as above; programs destroy the queue pair of an id before the id, by `rdma_destroy_qp`, which clears it.
        unsafe {
            let qp = (*self.abi()).qp;
            if qp.is_null() { None } else { Qp::get(qp).ok() }
        }
    }

    /// Remembers real addresses and shows them with the program's own port numbers.
    pub(crate) fn set_addresses(&self, local: Option<SocketAddr>, peer: Option<SocketAddr>) {
        let mut state = self.lock();
        state.local = local.or(state.local);
        state.peer = peer.or(state.peer);
        // SAFETY: the structure is alive, and the lock orders us; C reads it between its own calls.
        let addr = unsafe { &mut (*self.abi()).route.addr };
        for (to, from) in [(&mut addr.src, local), (&mut addr.dst, peer)] {
            if let Some(from) = from {
                *to = address::shown(from);
            }
        }
    }

    /// Announces an event of our own.
    pub(crate) fn post(&self, note: Note) -> Result<()> {
        let channel = {
            let mut state = self.lock_alive().ok_or(Errno::INVAL)?;
            state.notes.push_back(note);
            Arc::clone(&state.channel)
        };
        channel.queue().post(CmEvent::posted(self.abi().addr() as u64));
        Ok(())
    }

    /// Takes back the events of our own that C has not seen.
    pub(crate) fn forget_notes(&self) {
        let channel = {
            let mut state = self.lock();
            state.notes.clear();
            Arc::clone(&state.channel)
        };
        drop(channel.queue().remove_if(|event| self.is_about(event, None)));
    }

    /// C is about to hold one more event of this id. False when the id is being destroyed.
    pub(crate) fn delivers(&self) -> bool {
        let alive = self.lock_alive();
        if alive.is_some() {
            self.events.deliver();
        }
        alive.is_some()
    }

    /// C is done with one event.
    pub(crate) fn acknowledged(&self) {
        self.events.acknowledge(1);
    }

    /// Ends it: the connection, what waits in the channel, its place among what C may name. Then it waits for acknowledgements.
    pub(crate) fn destroy(&self) {
        self.acknowledge_own();
        self.discard();
        self.events.wait();
    }

    /// As [`Id::destroy`], for an id that C has never seen an event of.
    pub(crate) fn discard(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.gone, true) {
            return;
        }
        let phase = std::mem::replace(&mut state.phase, Phase::Over);
        let (conn, handle) = (state.conn.take(), state.handle.take());
        let (channel, sync) = (Arc::clone(&state.channel), state.sync);
        state.port = None;
        drop(state);
        let listener = match &phase {
            Phase::Listening(listener) => Some(listener.id()),
            _ => None,
        };
        process::with(|process| {
            process.cm.remove_id(self);
            conn.map(|conn| process.cm.conns.remove(&conn));
            listener.map(|listener| process.cm.listeners.remove(&listener));
            if sync {
                process.cm.remove_channel(channel.abi());
            }
        });
        if let Some(handle) = handle {
            // An orderly close goes on by itself; everything else is cut short. Nobody hears of either.
            handle.forget();
            if !matches!(phase, Phase::Disconnecting | Phase::Over) {
                let _ = handle.abort();
            }
        }
        // A listener takes its requests along, a request is rejected.
        drop(phase);
        drop(channel.queue().remove_if(|event| self.is_about(event, conn)));
    }

    /// Acknowledges the event that a synchronous id shows.
    pub(crate) fn acknowledge_own(&self) {
        // SAFETY: the structure is alive.
        let event = unsafe { ptr::replace(&raw mut (*self.abi()).event, ptr::null_mut()) };
        if !event.is_null() {
            let _ = event::acknowledge(event);
        }
    }

    fn is_about(&self, event: &CmEvent, conn: Option<ConnId>) -> bool {
        match event.kind {
            CmEventKind::Posted(tag) => tag == self.abi().addr() as u64,
            _ => Some(event.id) == conn,
        }
    }

    /// Moves it to another channel, pending events included; waits until C has acknowledged what it got from the old one.
    fn migrate(&self, to: &Arc<Channel>, sync: bool) -> Result<()> {
        self.acknowledge_own();
        let mut state = self.lock_alive().ok_or(Errno::INVAL)?;
        let from = std::mem::replace(&mut state.channel, Arc::clone(to));
        let was_sync = std::mem::replace(&mut state.sync, sync);
        let conn = state.conn;
        let ours =
            |event: &CmEvent| matches!(event.kind, CmEventKind::Posted(_)) && self.is_about(event, conn);
        for event in from.queue().remove_if(ours) {
            to.queue().post(event);
        }
        match &state.phase {
            Phase::Listening(listener) => listener.migrate(to.queue()),
            // A peer that has gone away meanwhile shows when the program answers it.
            Phase::Requested(request) => drop(request.migrate(to.queue())),
            _ => {
                let followed = state.handle.as_ref().is_some_and(|handle| handle.migrate(to.queue()).is_ok());
                if !followed {
                    for event in from.queue().remove_if(|event| self.is_about(event, conn)) {
                        to.queue().post(event);
                    }
                }
            }
        }
        // SAFETY: the structure is alive, and the lock orders us.
        unsafe { (*self.abi()).channel = to.abi() };
        drop(state);
        if was_sync {
            process::with(|process| process.cm.remove_channel(from.abi()));
        }
        self.events.wait();
        Ok(())
    }
}

/// `rdma_create_id`; without a channel it is synchronous, and gets one of its own.
///
/// # Safety
/// `id` is NULL or writable.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    boundary::minus_one(|| {
        if id.is_null() {
            return Err(Errno::INVAL);
        }
        check_port_space(ps)?;
        let new = if channel.is_null() {
            Id::create(&Channel::create()?, true, context)
        } else {
            Id::create(&registry::channel(channel)?, false, context)
        };
        // SAFETY: the caller's promise.
        unsafe { *id = new.abi() };
        Ok(())
    })
}

/// iWARP has reliable connections alone.
pub(crate) fn check_port_space(ps: c_int) -> Result<()> {
    match ps {
        RDMA_PS_TCP => Ok(()),
        RDMA_PS_UDP | RDMA_PS_IPOIB | RDMA_PS_IB => Err(Errno::UNSUPPORTED),
        _ => Err(Errno::INVAL),
    }
}

/// `rdma_destroy_id`: in any state; waits until its events are acknowledged.
///
/// # Safety
/// None: what is no id of ours is refused.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    boundary::minus_one(|| {
        if process::with(|process| process.cm.forget_inherited(id)) {
            return Ok(());
        }
        registry::id(id)?.destroy();
        Ok(())
    })
}

/// `rdma_migrate_id`; without a channel the id becomes synchronous.
///
/// # Safety
/// None: what is no id or channel of ours is refused.
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        if channel.is_null() {
            id.migrate(&Channel::create()?, true)
        } else {
            id.migrate(&registry::channel(channel)?, false)
        }
    })
}
