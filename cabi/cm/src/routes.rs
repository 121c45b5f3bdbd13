//! Routes from events of the engine to the ids that they concern.
//!
//! The engine identifies connections and listeners by its own numbers, and the first event may
//! arrive before the call that created the connection has returned. No lock is held across that
//! call. Instead, the channel counts the call, and a thread that takes an event without a route
//! waits until the corresponding call has ended. The thread that made the call has left the engine
//! by then, and only has to add the route.

use crate::channel::{Channel, UnroutedCall};
use crate::id::Id;
use crate::registry;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use uiw_cabi_core::fork::{ForkSafe, ForkState};
use uiw_verbs::cm::{CmEvent, CmEventKind, ConnId, ListenerId};

/// Origin of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum EventSource {
    Conn(ConnId),
    Listener(ListenerId),
}

type Hasher = BuildHasherDefault<DefaultHasher>;

struct RouteTable(HashMap<EventSource, Arc<Id>, Hasher>);

impl ForkState for RouteTable {
    const NEW: Self = Self(HashMap::with_hasher(Hasher::new()));

    fn in_child(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::NEW));
    }
}

/// Routes in shards, each with a lock that is held only for the look-up, because every event of a
/// connection is looked up here.
static ROUTES: ForkSafe<RouteTable, 64> = ForkSafe::new();

fn shard(source: EventSource) -> &'static uiw_cabi_core::lock::RwLock<RouteTable> {
    ROUTES.shard(Hasher::new().hash_one(source))
}

fn get(source: EventSource) -> Option<Arc<Id>> {
    shard(source).read().0.get(&source).map(Arc::clone)
}

/// Adds the route from `source` to `id`. Threads that have taken an event of `source` since the
/// start of `call` have waited for this.
pub(crate) fn add(source: EventSource, id: &Arc<Id>, call: Option<UnroutedCall>) {
    let before = shard(source).write().0.insert(source, Arc::clone(id));
    drop(call);
    // The previous entry is dropped after the lock is released, because an id takes locks when it
    // is dropped.
    drop(before);
}

/// Removes the routes of `sources`, for which the engine raises no more events. Removes and returns
/// the events in the channel that `gone` selects.
///
/// This is atomic with regard to [`next`], so an event without a route is always one whose route is
/// still to be added.
pub(crate) fn remove(
    sources: impl Iterator<Item = EventSource>,
    channel: &Channel,
    gone: impl FnMut(&CmEvent) -> bool,
) -> Vec<CmEvent> {
    let _unrouted_calls = channel.lock_unrouted_calls();
    for source in sources {
        let removed = shard(source).write().0.remove(&source);
        drop(removed);
    }
    channel.queue().remove_if(gone)
}

/// Returns the event that must precede a connection request: an earlier connection is established,
/// and the peer has waited for that before it sent the request. The kernel has one queue for both.
/// Here they may be on two shards, each of which reports only what it finds when it is driven.
fn event_before_request(channel: &Channel, request: CmEvent) -> CmEvent {
    let awaited = channel.awaited_connections();
    if awaited.is_empty() {
        return request;
    }
    for connection in &awaited {
        // If the connection has ended, its event is already there.
        let _ = connection.catch_up();
    }
    channel
        .queue()
        .exchange(request, |event| awaited.iter().any(|connection| connection.id() == event.id))
}

/// Returns the oldest event of a channel with the id that it concerns, or without an id if that is
/// being destroyed. For `has_token` see [`CmChannel::pop_with_token`](uiw_verbs::cm::CmChannel).
pub(crate) fn next(channel: &Channel, has_token: bool) -> Option<(CmEvent, Option<Arc<Id>>)> {
    let mut unrouted_calls = channel.lock_unrouted_calls();
    let queue = channel.queue();
    let mut event = if has_token { queue.pop_with_token() } else { queue.try_pop() }?;
    if matches!(event.kind, CmEventKind::ConnectRequest(_)) {
        drop(unrouted_calls);
        event = event_before_request(channel, event);
        unrouted_calls = channel.lock_unrouted_calls();
    }
    let source = match &event.kind {
        CmEventKind::Posted(tag) => {
            let id = registry::id_at(*tag as usize);
            return Some((event, id));
        }
        CmEventKind::ConnectRequest(request) => request.listener().map(EventSource::Listener),
        CmEventKind::ListenerDown { listener, .. } => Some(EventSource::Listener(*listener)),
        CmEventKind::SidrRequest(request) => Some(EventSource::Listener(request.listener())),
        CmEventKind::SidrResolved(_)
        | CmEventKind::Established(_)
        | CmEventKind::Failed(_)
        | CmEventKind::Disconnected(_) => Some(EventSource::Conn(event.id)),
    };
    let Some(source) = source else { return Some((event, None)) };
    loop {
        let id = get(source);
        if id.is_some() {
            return Some((event, id));
        }
        let Some(again) = unrouted_calls.wait() else { return Some((event, None)) };
        unrouted_calls = again;
    }
}
