//! SIDR: the number and Q_Key of a listener's UD queue pair, by one request and one reply (`docs/datagrams.md`).

use crate::cm::{CmChannel, CmEvent, CmEventKind, ConnId, ListenerId};
use crate::device::Device;
use crate::driver::{Core, Driver, Services, Slot};
use crate::error::{Error, Result};
use crate::notify::Wakes;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use uiw_datagram::Qpn;
use uiw_datagram::sidr::{LEN, Reply, Request, Status};
use uiw_llp::{DATAGRAM_BUFFER, DatagramOptions, DatagramSocket, Incoming, Interest, Outgoing, Token};
use uiw_stream::Time;

/// Requests of one transaction, and the time until the first repetition; it doubles, up to the longest.
const REQUESTS: u32 = 8;
const FIRST_TIMEOUT: Duration = Duration::from_millis(250);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a responder remembers a transaction, and how many it remembers.
const REMEMBERED: Duration = Duration::from_secs(30);
const MAX_TRANSACTIONS: usize = 1024;

/// A queue pair that a peer has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrInfo {
    /// Our address.
    pub local: SocketAddr,
    /// The responder's address.
    pub peer: SocketAddr,
    /// The number of its queue pair.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its private data.
    pub private_data: Vec<u8>,
}

/// The shard's side of a responder or requester.
pub(crate) struct SidrSlot {
    sockets: Vec<Box<dyn DatagramSocket>>,
    channel: Arc<CmChannel>,
    role: Role,
}

enum Role {
    Responder { listener: ListenerId, transactions: VecDeque<Transaction> },
    Requester(Requester),
}

struct Transaction {
    peer: SocketAddr,
    number: u64,
    since: Time,
    /// The reply, once the application has decided.
    reply: Option<Box<[u8; LEN]>>,
}

struct Requester {
    id: ConnId,
    peer: SocketAddr,
    number: u64,
    request: Box<[u8; LEN]>,
    sent: u32,
    timeout: Duration,
    deadline: Time,
}

/// Addresses at which requests are answered. Dropping it closes them; requests that are not decided get no reply any more.
pub struct SidrListener {
    driver: Arc<Driver>,
    token: Token,
    local: SocketAddr,
}

impl std::fmt::Debug for SidrListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SidrListener").field("local_addr", &self.local).finish_non_exhaustive()
    }
}

impl SidrListener {
    /// Listens at `addresses`, for UDP; a port of 0 takes a free one, the same for all. Of several, those that the system does not have are
    /// left out. Requests come as
    /// [`CmEventKind::SidrRequest`] on `channel`.
    ///
    /// # Errors
    /// [`Error::Io`] when an address cannot be had or the stack has no datagrams, [`Error::Zero`] without an address.
    pub fn bind(device: &Device, addresses: &[SocketAddr], channel: &Arc<CmChannel>) -> Result<Self> {
        let driver = Arc::clone(device.driver());
        let shard = driver.shard_for_listener();
        shard.start()?;
        let (addresses, channel) = (addresses.to_vec(), Arc::clone(channel));
        let (token, local) = shard.call(move |core| {
            let token = core.next_token();
            let mut sockets = Vec::new();
            let (mut port, several) = (0, addresses.len() > 1);
            for mut address in addresses {
                if address.port() == 0 {
                    address.set_port(port);
                }
                let socket = match bind(core, address, token) {
                    Ok(socket) => socket,
                    // Gone since the list was made, or an IPv6 address that is still being checked.
                    Err(Error::Io { source, .. }) if several && is_not_available(&source) => continue,
                    Err(error) => return Err(error),
                };
                port = socket.local_addr().port();
                sockets.push(socket);
            }
            let local = sockets.first().ok_or(Error::Zero { what: "number of addresses" })?.local_addr();
            let role = Role::Responder { listener: ListenerId(token.0), transactions: VecDeque::new() };
            core.fill(token, Slot::Sidr(Box::new(SidrSlot { sockets, channel, role })));
            Ok::<_, Error>((token, local))
        })?;
        Ok(Self { driver, token, local })
    }

    /// The first of its addresses.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Which listener it is: see [`SidrRequest::listener`].
    #[must_use]
    pub fn id(&self) -> ListenerId {
        ListenerId(self.token.0)
    }

    /// Requests go to another channel: those not taken yet, in order, and all later ones.
    pub fn migrate(&self, channel: &Arc<CmChannel>) {
        let (token, id, channel) = (self.token, self.id(), Arc::clone(channel));
        let before = self.driver.shard(token).call(move |core| {
            let Slot::Sidr(slot) = core.any_slot(token)? else { return None };
            let before = std::mem::replace(&mut slot.channel, Arc::clone(&channel));
            if !Arc::ptr_eq(&before, &channel) {
                let moved = |event: &CmEvent| {
                    matches!(&event.kind, CmEventKind::SidrRequest(request) if request.listener() == id)
                };
                before.move_to(&channel, moved, &mut core.services.wakes);
            }
            Some(before)
        });
        drop(before);
    }
}

impl Drop for SidrListener {
    fn drop(&mut self) {
        let (token, id) = (self.token, self.id());
        let slot = self.driver.shard(token).call(move |core| core.remove(token));
        // Requests call their shard when they are dropped.
        if let Some(Slot::Sidr(slot)) = slot {
            drop(slot.channel.remove_if(
                |event| matches!(&event.kind, CmEventKind::SidrRequest(request) if request.listener() == id),
            ));
        }
    }
}

/// A peer asks for a queue pair. Dropped without an answer it is rejected.
pub struct SidrRequest {
    driver: Arc<Driver>,
    listener: Token,
    id: ConnId,
    local: SocketAddr,
    peer: SocketAddr,
    number: u64,
    private_data: Vec<u8>,
    decided: bool,
}

impl std::fmt::Debug for SidrRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SidrRequest").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl SidrRequest {
    /// Which request it is.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// The listener that it came to.
    #[must_use]
    pub fn listener(&self) -> ListenerId {
        ListenerId(self.listener.0)
    }

    /// The address that it was sent to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// The peer's private data.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Replies with a queue pair.
    ///
    /// # Errors
    /// [`Error::Limit`] for more private data than a reply has room for.
    pub fn accept(mut self, qpn: u32, qkey: u32, private_data: &[u8]) -> Result<()> {
        self.reply(Status::Valid, Qpn::from_raw(qpn), qkey, private_data)
    }

    /// Replies without a queue pair.
    ///
    /// # Errors
    /// As [`SidrRequest::accept`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<()> {
        self.reply(Status::Rejected, Qpn::from_raw(0), 0, private_data)
    }

    fn reply(&mut self, status: Status, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<()> {
        let reply = Reply { transaction: self.number, status, qpn, qkey, private_data };
        let reply = reply.emit().map_err(too_long)?;
        self.decided = true;
        let (token, local, peer, number) = (self.listener, self.local, self.peer, self.number);
        self.driver.shard(token).call(move |core| {
            if let Some(Slot::Sidr(slot)) = core.any_slot(token) {
                slot.decide(local, peer, number, reply);
            }
        });
        Ok(())
    }
}

impl Drop for SidrRequest {
    fn drop(&mut self) {
        if !self.decided {
            let _ = self.reply(Status::Rejected, Qpn::from_raw(0), 0, &[]);
        }
    }
}

fn too_long(error: uiw_datagram::DatagramError) -> Error {
    match error {
        uiw_datagram::DatagramError::PrivateData { len, max } => {
            Error::Limit { what: "private data", asked: len as u64, limit: max as u64 }
        }
        _ => Error::Misuse("not a SIDR message"),
    }
}

/// A request that is repeated until its reply comes. Dropping it ends that.
pub struct SidrHandle {
    driver: Arc<Driver>,
    token: Token,
    id: ConnId,
    local: SocketAddr,
}

impl std::fmt::Debug for SidrHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SidrHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SidrHandle {
    /// Asks the listener at `peer` for its queue pair, from `local`. [`CmEventKind::SidrResolved`] or [`CmEventKind::Failed`] come on
    /// `channel`.
    ///
    /// # Errors
    /// [`Error::Io`] when the address cannot be had or the stack has no datagrams, [`Error::Limit`] for too much private data.
    pub fn request(
        device: &Device,
        local: SocketAddr,
        peer: SocketAddr,
        private_data: &[u8],
        channel: &Arc<CmChannel>,
    ) -> Result<Self> {
        let driver = Arc::clone(device.driver());
        let number = getrandom::u64().map_err(|error| Error::Io {
            what: "drawing a transaction number",
            source: io::Error::other(error),
        })?;
        let request = Request { transaction: number, private_data }.emit().map_err(too_long)?;
        let id = ConnId(driver.shared.next_stream().0);
        let shard = driver.shard_for_listener();
        shard.start()?;
        let channel = Arc::clone(channel);
        let (token, local) = shard.call(move |core| {
            let token = core.next_token();
            let socket = bind(core, local, token)?;
            let local = socket.local_addr();
            let requester = Requester {
                id,
                peer,
                number,
                request: Box::new(request),
                sent: 0,
                timeout: FIRST_TIMEOUT,
                deadline: Time::NEVER,
            };
            let slot = SidrSlot { sockets: vec![socket], channel, role: Role::Requester(requester) };
            core.fill(token, Slot::Sidr(Box::new(slot)));
            on_timer(core, token);
            Ok::<_, Error>((token, local))
        })?;
        Ok(Self { driver, token, id, local })
    }

    /// Which request it is.
    #[must_use]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Our address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Its event goes to another channel, also one that was not taken yet.
    pub fn migrate(&self, channel: &Arc<CmChannel>) {
        let (token, id, channel) = (self.token, self.id, Arc::clone(channel));
        let before = self.driver.shard(token).call(move |core| {
            let Slot::Sidr(slot) = core.any_slot(token)? else { return None };
            let before = std::mem::replace(&mut slot.channel, Arc::clone(&channel));
            if !Arc::ptr_eq(&before, &channel) {
                before.move_to(&channel, |event| event.id == id, &mut core.services.wakes);
            }
            Some(before)
        });
        drop(before);
    }
}

impl Drop for SidrHandle {
    fn drop(&mut self) {
        let token = self.token;
        drop(self.driver.shard(token).call(move |core| core.remove(token)));
    }
}

fn is_not_available(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

fn bind(core: &mut Core, local: SocketAddr, token: Token) -> Result<Box<dyn DatagramSocket>> {
    let bound = core.stack.bind_datagrams(local, &DatagramOptions::default(), token);
    let mut socket = bound.map_err(Error::io("binding a UDP port"))?;
    socket.set_interest(Interest::READ).map_err(Error::io("waiting for datagrams"))?;
    Ok(socket)
}

/// Datagrams came.
pub(crate) fn on_event(core: &mut Core, token: Token) {
    let mut buffer = vec![0; DATAGRAM_BUFFER];
    let mut incoming = Vec::new();
    let mut at = 0;
    loop {
        let driver = core.services.driver.clone();
        let Some((Slot::Sidr(slot), services)) = core.slot_and_services(token) else { return };
        let Some(socket) = slot.sockets.get_mut(at) else { return };
        incoming.clear();
        let local = socket.local_addr();
        if socket.recv(&mut buffer, &mut incoming).is_err() {
            at += 1;
            continue;
        }
        for Incoming { peer, bytes } in incoming.drain(..) {
            let datagram = &buffer[bytes];
            match &slot.role {
                Role::Responder { .. } => {
                    if let Some(driver) = driver.upgrade() {
                        slot.on_request(token, &driver, (local, peer), datagram, services);
                    }
                }
                Role::Requester(_) => slot.on_reply((local, peer), datagram, services),
            }
        }
        if slot.is_over() {
            // The handle keeps the token; nothing has it as an event any more.
            slot.sockets.clear();
            return;
        }
    }
}

/// A request is repeated, or given up.
pub(crate) fn on_timer(core: &mut Core, token: Token) {
    let Some((Slot::Sidr(slot), services)) = core.slot_and_services(token) else { return };
    slot.repeat(token, services);
}

impl SidrSlot {
    fn is_over(&self) -> bool {
        matches!(&self.role, Role::Requester(requester) if requester.sent > REQUESTS)
    }

    fn on_request(
        &mut self,
        token: Token,
        driver: &Arc<Driver>,
        (local, peer): (SocketAddr, SocketAddr),
        datagram: &[u8],
        services: &mut Services,
    ) {
        let request = match Request::parse(datagram) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%peer, %error, "a SIDR request is dropped");
                return;
            }
        };
        if peer.port() == 0 || peer.ip().is_multicast() || peer.ip().is_unspecified() {
            return;
        }
        let Role::Responder { listener, transactions } = &mut self.role else { return };
        let now = services.now;
        while transactions.front().is_some_and(|oldest| oldest.since.after(REMEMBERED) <= now) {
            transactions.pop_front();
        }
        let number = request.transaction;
        if let Some(known) = transactions.iter().find(|known| known.peer == peer && known.number == number) {
            if let Some(reply) = &known.reply {
                send(&mut self.sockets, local, peer, &reply[..]);
            }
            return;
        }
        if transactions.len() >= MAX_TRANSACTIONS {
            tracing::debug!(%peer, "a SIDR request is dropped: too many are remembered");
            return;
        }
        transactions.push_back(Transaction { peer, number, since: now, reply: None });
        let request = SidrRequest {
            driver: Arc::clone(driver),
            listener: Token(listener.0),
            id: ConnId(services.shared.next_stream().0),
            local,
            peer,
            number,
            private_data: request.private_data.to_vec(),
            decided: false,
        };
        debug_assert_eq!(request.listener, token);
        let event = CmEvent { id: request.id, kind: CmEventKind::SidrRequest(request) };
        self.channel.push(event, &mut services.wakes);
    }

    /// The application has decided.
    fn decide(&mut self, local: SocketAddr, peer: SocketAddr, number: u64, reply: [u8; LEN]) {
        let Role::Responder { transactions, .. } = &mut self.role else { return };
        if let Some(known) =
            transactions.iter_mut().find(|known| known.peer == peer && known.number == number)
        {
            known.reply = Some(Box::new(reply));
        }
        send(&mut self.sockets, local, peer, &reply);
    }

    fn on_reply(
        &mut self,
        (local, from): (SocketAddr, SocketAddr),
        datagram: &[u8],
        services: &mut Services,
    ) {
        let Role::Requester(requester) = &mut self.role else { return };
        let reply = match Reply::parse(datagram) {
            Ok(reply) => reply,
            Err(error) => {
                tracing::debug!(peer = %from, %error, "a SIDR reply is dropped");
                return;
            }
        };
        // One that anyone else sends, or that is late.
        if from != requester.peer || reply.transaction != requester.number || requester.sent > REQUESTS {
            return;
        }
        let kind = match reply.status {
            Status::Valid => CmEventKind::SidrResolved(SidrInfo {
                local,
                peer: from,
                qpn: reply.qpn.raw(),
                qkey: reply.qkey,
                private_data: reply.private_data.to_vec(),
            }),
            Status::Rejected | Status::NoQp => CmEventKind::Failed(Error::Rejected {
                peer: from,
                private_data: reply.private_data.to_vec(),
                peer_ird_ord: None,
                markers_asked: false,
            }),
        };
        let id = requester.end();
        self.report(id, kind, &mut services.wakes);
    }

    fn report(&self, id: ConnId, kind: CmEventKind, wakes: &mut Wakes) {
        self.channel.push(CmEvent { id, kind }, wakes);
    }

    fn repeat(&mut self, token: Token, services: &mut Services) {
        let Role::Requester(requester) = &mut self.role else { return };
        let due = requester.sent == 0 || requester.deadline <= services.now;
        if !due || requester.sent > REQUESTS {
            return;
        }
        if requester.sent == REQUESTS {
            let kind = CmEventKind::Failed(Error::TimedOut { peer: requester.peer, after: total_timeout() });
            let id = requester.end();
            self.report(id, kind, &mut services.wakes);
            return;
        }
        requester.sent += 1;
        requester.deadline = services.now.after(requester.timeout);
        requester.timeout = (requester.timeout * 2).min(LONGEST_TIMEOUT);
        services.timers.add(requester.deadline, token);
        let (request, peer) = (requester.request.clone(), requester.peer);
        if let Some(local) = self.sockets.first().map(|socket| socket.local_addr()) {
            send(&mut self.sockets, local, peer, &request[..]);
        }
    }
}

impl Requester {
    /// No reply is expected any more.
    fn end(&mut self) -> ConnId {
        self.sent = REQUESTS + 1;
        self.deadline = Time::NEVER;
        self.id
    }
}

/// The time from the first request until the last one is given up.
fn total_timeout() -> Duration {
    (0..REQUESTS).map(|sent| (FIRST_TIMEOUT * (1 << sent)).min(LONGEST_TIMEOUT)).sum()
}

/// Sends one datagram from `local`. One that cannot be sent is lost, and repeated by the protocol.
fn send(sockets: &mut [Box<dyn DatagramSocket>], local: SocketAddr, peer: SocketAddr, datagram: &[u8]) {
    let Some(socket) = sockets.iter_mut().find(|socket| socket.local_addr() == local) else { return };
    if let Err(error) = socket.send(datagram, &[Outgoing { peer, len: datagram.len() }]) {
        tracing::debug!(%error, %peer, "a SIDR message cannot be sent");
    }
}
