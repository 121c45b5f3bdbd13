//! The id that an event of the engine is about.
//!
//! The engine names connections and listeners by numbers that it gives out, and the first event may
//! come before the call that made the connection has returned. No lock is held across that call:
//! the channel counts it as an opening instead, and a thread that takes an event without a route
//! waits until the opening it belongs to has ended. That opening's thread has left the engine by
//! then and only has to add the route.

use crate::channel::{Channel, Opening};
use crate::id::Id;
use crate::registry;
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use uiw_cabi_core::fork::{ForkSafe, Forked};
use uiw_verbs::cm::{CmEvent, CmEventKind, ConnId, ListenerId};

/// Origin of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Source {
    Conn(ConnId),
    Listener(ListenerId),
}

type Hasher = BuildHasherDefault<DefaultHasher>;

struct RouteTable(HashMap<Source, Arc<Id>, Hasher>);

impl Forked for RouteTable {
    const NEW: Self = Self(HashMap::with_hasher(Hasher::new()));

    fn in_child(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::NEW));
    }
}

/// Routes in shards, each with a lock that is held for the look-up alone: every event of a
/// connection is looked up here.
static ROUTES: ForkSafe<RouteTable, 64> = ForkSafe::new();

fn shard(source: Source) -> &'static uiw_cabi_core::lock::RwLock<RouteTable> {
    ROUTES.shard(Hasher::new().hash_one(source))
}

fn get(source: Source) -> Option<Arc<Id>> {
    shard(source).read().0.get(&source).map(Arc::clone)
}

/// Events of `source` are about `id` from now on; those taken since `opening` began have waited for
/// this.
pub(crate) fn add(source: Source, id: &Arc<Id>, opening: Option<Opening>) {
    let before = shard(source).write().0.insert(source, Arc::clone(id));
    drop(opening);
    // Unlocked: an id takes locks when it is dropped.
    drop(before);
}

/// Events of `sources` are about no id any more; returns those in the channel, and those that
/// `gone` selects. The engine adds none any more.
///
/// Atomic towards [`next`]: an event without a route is one whose route is yet to come.
pub(crate) fn remove(
    sources: impl Iterator<Item = Source>,
    channel: &Channel,
    gone: impl FnMut(&CmEvent) -> bool,
) -> Vec<CmEvent> {
    let _openings = channel.openings();
    for source in sources {
        let removed = shard(source).write().0.remove(&source);
        drop(removed);
    }
    channel.queue().remove_if(gone)
}

/// Returns the events that precede a connection request: that an earlier connection is established,
/// where the peer has waited for that before it sent the request. The kernel has one queue for
/// both; here they may be on two shards, each of which reports what it finds when it looks.
fn before_request(channel: &Channel, request: CmEvent) -> CmEvent {
    let awaited = channel.awaited();
    if awaited.is_empty() {
        return request;
    }
    for connection in &awaited {
        // Of one that is over the event is there already.
        let _ = connection.catch_up();
    }
    channel.queue().exchange(request, |event| awaited.iter().any(|connection| connection.id() == event.id))
}

/// The oldest event of a channel with the id that it is about; no id when that is being destroyed.
/// `has_token`: see [`CmChannel::pop_with_token`](uiw_verbs::cm::CmChannel).
pub(crate) fn next(channel: &Channel, has_token: bool) -> Option<(CmEvent, Option<Arc<Id>>)> {
    let mut openings = channel.openings();
    let queue = channel.queue();
    let mut event = if has_token { queue.pop_with_token() } else { queue.try_pop() }?;
    if matches!(event.kind, CmEventKind::ConnectRequest(_)) {
        drop(openings);
        event = before_request(channel, event);
        openings = channel.openings();
    }
    let source = match &event.kind {
        CmEventKind::Posted(tag) => {
            let id = registry::id_at(*tag as usize);
            return Some((event, id));
        }
        CmEventKind::ConnectRequest(request) => request.listener().map(Source::Listener),
        CmEventKind::ListenerDown { listener, .. } => Some(Source::Listener(*listener)),
        CmEventKind::SidrRequest(request) => Some(Source::Listener(request.listener())),
        CmEventKind::SidrResolved(_)
        | CmEventKind::Established(_)
        | CmEventKind::Failed(_)
        | CmEventKind::Disconnected(_) => Some(Source::Conn(event.id)),
    };
    let Some(source) = source else { return Some((event, None)) };
    loop {
        let id = get(source);
        if id.is_some() || !openings.wait() {
            return Some((event, id));
        }
    }
}
