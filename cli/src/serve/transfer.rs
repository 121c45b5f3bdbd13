//! The server's end of `uiw cp`: see `uiw_copy::protocol`.

use super::Server;
use super::peers::Peer;
use super::pulse::Activity;
use crate::cp::channel::{Channel, Memory};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::qp_setup::Until;
use crate::shared::service::{CpOrder, CpReply};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{QpState, RemoteMr};
use uiw_copy::handler::{Handler, Opening, Session};
use uiw_copy::protocol::{MAX_SLOTS, Request};
use uiw_copy::wire::WireError;
use uiw_mem::STag;

/// What makes connections those of one client: the token, its identity, the share, and whether it may write.
type Key = (u64, String, String, bool);

/// The sessions of all clients. One ends with its last connection.
#[derive(Debug, Default)]
pub(super) struct Transfers(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    sessions: HashMap<Key, Weak<Session>>,
    /// Incomplete files under verification by address, as long as the address has a session.
    openings: HashMap<IpAddr, Weak<Opening>>,
}

impl Transfers {
    fn join(&self, key: Key, host: IpAddr, begin: impl FnOnce(Arc<Opening>) -> Session) -> Arc<Session> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Running { sessions, openings } = &mut *running;
        sessions.retain(|_, session| session.strong_count() > 0);
        openings.retain(|_, opening| opening.strong_count() > 0);
        if let Some(session) = sessions.get(&key).and_then(Weak::upgrade) {
            return session;
        }
        let opening = openings.get(&host).and_then(Weak::upgrade).unwrap_or_default();
        openings.insert(host, Arc::downgrade(&opening));
        let session = Arc::new(begin(opening));
        sessions.insert(key, Arc::downgrade(&session));
        session
    }
}

/// Bytes of memory that a connection takes: slots and messages, and what is at work on one request.
pub(super) fn memory(order: &CpOrder) -> u64 {
    Memory::bytes(order.slots) + 4 * u64::from(uiw_copy::protocol::SLOT)
}

pub(super) fn serve(server: &Server, request: ConnRequest, order: &CpOrder, holder: &Peer) -> Result<()> {
    let peer = request.peer_addr();
    let refuse = |request: ConnRequest, why: String| {
        let _ = request.reject(why.as_bytes());
        Err(Failure::lost(peer, format!("refused: {why}")))
    };
    if !(1..=MAX_SLOTS).contains(&order.slots) {
        return refuse(request, format!("{} slots", order.slots));
    }
    let (share, may_write) = match server.shares.find(&order.share, request.peer_identity()) {
        Ok(found) => found,
        Err(why) => return refuse(request, why),
    };
    if order.push && !may_write {
        return refuse(request, format!("share `{}` is read-only for you", share.name));
    }
    let writable = order.push && may_write;
    let identity = request.peer_identity().map(ToString::to_string).unwrap_or_default();
    let key = (order.token, identity, share.name.clone(), writable);
    let session = server.transfers.join(key, holder.host(), |opening| {
        Session::new(Arc::clone(&share.root), writable, order.token, opening)
    });
    let memory = Memory::new(&server.device, order.slots, order.push)?;
    let at = memory.remote().map(|landing| (landing.addr, landing.rkey.0));
    let reply = serde_json::to_vec(&CpReply { at, pulse: order.pulse }).unwrap_or_default();
    let (addr, rkey) = order.at;
    let len = usize::from(order.slots) * uiw_copy::protocol::SLOT as usize;
    let remote = RemoteMr { addr, rkey: STag(rkey), len };
    let options = order.peer_options.at(&server.peer_options.own).options();
    let until = Until::stop(&server.stop);
    let accepted = Channel::accept(&server.device, memory, request, &options, &reply, remote, until);
    let Some(channel) = used(peer, accepted)? else { return Ok(()) };
    server.watch(&channel.conn.link);
    let activity = Arc::<Activity>::default();
    if order.pulse {
        server.pulse.watch(&channel.conn.link, &activity);
    }
    let (qp, stop) = (Arc::downgrade(&channel.conn.link.qp), Arc::clone(&server.stop));
    // Nobody waits for the reply of a peer that is gone.
    let goes_on = move || !stop.is_set() && qp.upgrade().is_some_and(|qp| qp.state() == QpState::Rts);
    requests(server, channel, Handler::new(session, goes_on), &activity)
}

/// What came before the first request of a connection; `None` when the client has ended it: it connects several times, and is done with what is
/// small before all of them are of use.
fn used<T>(peer: SocketAddr, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(failure) if matches!(failure.exit, Exit::Lost | Exit::Unreachable) => {
            tracing::info!(%peer, reason = failure.cause(), "the client has ended a connection before using it");
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// Executes what comes, until the client closes.
fn requests(server: &Server, mut channel: Channel, mut handler: Handler, activity: &Activity) -> Result<()> {
    let until = Until::stop(&server.stop);
    let mut next = used(channel.peer(), channel.next(until))?.flatten();
    while let Some(message) = next {
        let broken =
            |error: WireError| Failure::lost(channel.peer(), format!("violates the protocol: {error}"));
        let (tag, request) = Request::decode(&message).map_err(broken)?;
        let working = activity.begin();
        let answer = handler.handle(&request, |len| channel.landed(tag, len).map_err(Broken::Failure));
        drop(working);
        let (reply, bytes) = answer.map_err(|error| match error {
            Broken::Failure(failure) => failure,
            Broken::Wire(error) => broken(error),
        })?;
        if let Some(bytes) = bytes {
            channel.write(tag, &bytes, until)?;
        }
        channel.send(&reply.encode(tag), until)?;
        next = channel.next(until)?;
    }
    channel.close();
    Ok(())
}

/// Why a request ends its connection.
enum Broken {
    Wire(WireError),
    Failure(Failure),
}

impl From<WireError> for Broken {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}
