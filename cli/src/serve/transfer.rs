//! Server end of `uiw cp` (see `uiw_copy::protocol`).

use super::heartbeat::Activity;
use super::peers::Peer;
use super::{Server, refuse};
use crate::cp::channel::{Channel, SlotMemory};
use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::qp_setup::WaitLimits;
use crate::shared::service::{CpOrder, CpReply};
use crate::shared::text;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;
use uiw::counters::{TransferDirection, TransferResult};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{Device, QpState, RemoteMr};
use uiw_copy::handler::{Handler, OpeningLock, Session};
use uiw_copy::names::RelPath;
use uiw_copy::protocol::{MAX_SLOTS, REVISION, Request};
use uiw_copy::root::LISTING;
use uiw_copy::wire::WireError;
use uiw_mem::STag;

/// Key of a transfer, which all its connections have in common: token, identity of the client,
/// share, and whether the client may write.
type TransferKey = (u64, String, String, bool);

/// Maximum number of failed entries that are logged one by one. The log line of the transfer has
/// their total number.
const MAX_LOGGED: usize = 16;

/// The transfers of all clients.
#[derive(Debug, Default)]
pub(super) struct Transfers(Mutex<TransferTable>);

#[derive(Debug, Default)]
struct TransferTable {
    transfers: HashMap<TransferKey, Weak<SharedTransfer>>,
    /// Locks for opening incomplete files, by client host, as long as the host has a transfer.
    openings: HashMap<IpAddr, Weak<OpeningLock>>,
}

/// One run of `uiw cp`, shared by its connections. It is logged and counted when the last
/// connection has ended.
struct SharedTransfer {
    session: Arc<Session>,
    device: Device,
    peer: IpAddr,
    key: String,
    share: String,
    direction: TransferDirection,
    begun: Instant,
    /// True if there was a request.
    is_used: AtomicBool,
    /// Number of failed entries logged so far.
    logged: AtomicUsize,
}

impl fmt::Debug for SharedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Transfers {
    fn join(
        &self,
        key: TransferKey,
        host: IpAddr,
        begin: impl FnOnce(Arc<OpeningLock>) -> SharedTransfer,
    ) -> Arc<SharedTransfer> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let TransferTable { transfers, openings } = &mut *running;
        transfers.retain(|_, transfer| transfer.strong_count() > 0);
        openings.retain(|_, opening| opening.strong_count() > 0);
        if let Some(transfer) = transfers.get(&key).and_then(Weak::upgrade) {
            return transfer;
        }
        let opening = openings.get(&host).and_then(Weak::upgrade).unwrap_or_default();
        openings.insert(host, Arc::downgrade(&opening));
        let transfer = Arc::new(begin(opening));
        transfers.insert(key, Arc::downgrade(&transfer));
        transfer
    }
}

impl SharedTransfer {
    /// Logs failed entries, with the errors sent to the client.
    fn failed(&self, entries: &[(RelPath, std::io::Error)]) {
        for (path, error) in entries {
            if self.logged.fetch_add(1, Ordering::Relaxed) < MAX_LOGGED {
                let path = path.to_string();
                tracing::warn!(peer = %self.peer, share = self.share, path, %error, "entry not transferred");
            }
        }
    }
}

impl Drop for SharedTransfer {
    fn drop(&mut self) {
        if !*self.is_used.get_mut() {
            return;
        }
        let tally = self.session.tally();
        let is_idle = tally.common_path().is_none() && tally.errors == 0;
        if is_idle && tally.reported == Some(0) {
            // This was `uiw ls`, a dry run, or a copy without anything to do.
            return;
        }
        let (result, name) = match tally.reported {
            Some(0) => (TransferResult::Complete, "complete"),
            Some(_) => (TransferResult::Failed, "failed"),
            None => (TransferResult::Interrupted, "interrupted"),
        };
        let some = |count: u64| (count > 0).then_some(count);
        tracing::info!(
            peer = %self.peer,
            key = Some(self.key.as_str()).filter(|key| !key.is_empty()),
            share = self.share,
            path = tally.common_path().map(ToString::to_string),
            direction = if self.direction == TransferDirection::Upload { "upload" } else { "download" },
            files = tally.files,
            bytes = tally.bytes,
            removed = some(tally.removed),
            errors = some(tally.errors),
            seconds = %format_args!("{:.3}", self.begun.elapsed().as_secs_f64()),
            result = name,
            "transfer"
        );
        self.device.count_transfer(self.direction, result, tally.files, tally.bytes);
    }
}

/// Returns the bytes of memory that a connection needs: slots and messages, buffers to execute a
/// request, and the names of a list.
pub(super) fn required_memory(order: &CpOrder) -> u64 {
    SlotMemory::bytes(order.slots) + 4 * u64::from(uiw_copy::protocol::SLOT) + LISTING
}

pub(super) fn serve(
    server: &Server,
    request: ConnRequest,
    order: &CpOrder,
    holder: &Peer,
) -> Result<()> {
    let peer = text::canonical(request.peer_addr());
    if !(1..=MAX_SLOTS).contains(&order.slots) {
        return refuse(request, &format!("{} slots", order.slots));
    }
    let (share, may_write) = match server.shares.find(&order.share, request.peer_identity()) {
        Ok(found) => found,
        Err(why) => return refuse(request, &why),
    };
    if order.push && !may_write {
        return refuse(request, &format!("share `{}` is read-only for you", share.name));
    }
    let writable = order.push && may_write;
    let identity = request.peer_identity().map(ToString::to_string).unwrap_or_default();
    let key = (order.token, identity.clone(), share.name.clone(), writable);
    let transfer = server.transfers.join(key, holder.host(), |opening| SharedTransfer {
        session: Arc::new(Session::new(Arc::clone(&share.root), writable, order.token, opening)),
        device: server.device.clone(),
        peer: peer.ip(),
        key: identity.clone(),
        share: share.name.clone(),
        direction: if order.push { TransferDirection::Upload } else { TransferDirection::Download },
        begun: Instant::now(),
        is_used: AtomicBool::new(false),
        logged: AtomicUsize::new(0),
    });
    let memory = SlotMemory::new(&server.device, order.slots, order.push)?;
    let at = memory.remote().map(|landing| (landing.addr, landing.rkey.0));
    let reply = serde_json::to_vec(&CpReply { at, pulse: order.pulse, revision: REVISION })
        .unwrap_or_default();
    let (addr, rkey) = order.at;
    let len = usize::from(order.slots) * uiw_copy::protocol::SLOT as usize;
    let remote = RemoteMr { addr, rkey: STag(rkey), len };
    let options = order.peer_options.at(&server.peer_options.own).options();
    let until = WaitLimits::stop(&server.stop);
    let accepted =
        Channel::accept(&server.device, memory, request, &options, &reply, remote, until);
    let Some(channel) = none_if_unused(peer, accepted)? else { return Ok(()) };
    server.watch(&channel.conn.link);
    let activity = Arc::<Activity>::default();
    if order.pulse {
        server.heartbeats.watch(&channel.conn.link, &activity);
    }
    let (qp, stop) = (Arc::downgrade(&channel.conn.link.qp), Arc::clone(&server.stop));
    // A request of a peer that is gone is not continued, because nobody waits for the reply.
    let should_continue =
        move || !stop.is_set() && qp.upgrade().is_some_and(|qp| qp.state() == QpState::Rts);
    let handler = Handler::new(Arc::clone(&transfer.session), should_continue);
    serve_requests(server, channel, &transfer, handler, &activity)
}

/// Turns the loss of a connection before its first message into `None`. A client makes several
/// connections, and may finish a small transfer before it has used all of them.
fn none_if_unused<T>(peer: SocketAddr, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(failure) if matches!(failure.exit, Exit::Lost | Exit::Unreachable) => {
            tracing::debug!(%peer, reason = failure.cause(), "client closed a connection before using it");
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// Executes requests until the client closes.
fn serve_requests(
    server: &Server,
    mut channel: Channel,
    transfer: &SharedTransfer,
    mut handler: Handler,
    activity: &Activity,
) -> Result<()> {
    let until = WaitLimits::stop(&server.stop);
    let mut next = none_if_unused(channel.peer(), channel.next(until))?.flatten();
    while let Some(message) = next {
        let broken = |error: WireError| {
            Failure::lost(channel.peer(), format!("violates the protocol: {error}"))
        };
        let (tag, request) = Request::decode(&message).map_err(broken)?;
        transfer.is_used.store(true, Ordering::Relaxed);
        let working = activity.begin();
        let answer = handler
            .handle(&request, |len| channel.read_slot(tag, len).map_err(InvalidRequest::Failure));
        drop(working);
        transfer.failed(handler.failures());
        let (reply, bytes) = answer.map_err(|error| match error {
            InvalidRequest::Failure(failure) => failure,
            InvalidRequest::Wire(error) => broken(error),
        })?;
        if let Some(bytes) = bytes {
            channel.write(tag, &bytes, until)?;
        }
        if !matches!(request, Request::End { .. }) {
            channel.send(&reply.encode(tag), until)?;
        }
        next = channel.next(until)?;
    }
    channel.close();
    Ok(())
}

/// Reason why a request ends its connection.
enum InvalidRequest {
    Wire(WireError),
    Failure(Failure),
}

impl From<WireError> for InvalidRequest {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}
