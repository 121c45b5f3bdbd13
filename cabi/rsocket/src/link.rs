//! A queue pair with the memory for its messages. This is the only place where requests of rsockets
//! are posted.

use crate::buffer::Buffer;
use crate::receiver::Receiver;
use crate::settings::Sizes;
use crate::wire::{ConnData, Mapping, Message, Order, Target, Variant};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_verbs::{
    Access, Cq, CqConfig, Device, Pd, Qp, QpCap, QpInit, QpState, RecvWr, Remote, STag, SendFlags,
    SendOp, SendWr, Sge, Wc, WcStatus,
};

/// Number of receives in addition to the credits of the peer, for credits, mappings and control
/// messages.
const EXTRA_RECEIVES: u16 = 32;
/// Number of control messages in the send queue: credits, SHUTDOWN and DISCONNECT.
pub(crate) const CONTROL_SLOTS: u16 = 6;
/// Number of entries in the list of targets. The receive buffer has two halves.
pub(crate) const TARGETS: usize = 2;
/// Size of the first targets in bytes. The size of two of them is the amount of data that a program
/// can send before its peer reads. Programs rely on some hundred KiB, because TCP accepts more than
/// that.
const FIRST_TARGET: u32 = 256 << 10;
const CACHE_LINE: u32 = 64;
/// Size of a message sent with Send, in bytes.
const WORD: u32 = 4;
/// Marks the completion of a receive. The other bits contain the slot.
const RECEIVE: u64 = 1 << 63;
/// Number of completions that are handled at a time.
pub(crate) const BATCH: usize = 64;
/// Maximum number of batches of completions that one call handles. A peer may send control messages
/// as fast as they are handled.
pub(crate) const MAX_BATCHES: usize = 16;
/// Number of receives that are posted again at a time. It is less than [`EXTRA_RECEIVES`], so there
/// is a receive for each credit of the peer.
const REPOSTED: usize = 16;

/// Mode of taking completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollMode {
    /// Takes queued completions, and drives the engine if there are none.
    Driving,
    /// Takes only queued completions.
    Queued,
}

/// Completion that was taken.
pub(crate) enum LinkCompletion {
    /// The oldest signaled request in the send queue has completed.
    Sent,
    /// A message of the peer was received.
    Received(u32),
    /// A receive without a message has completed, because the peer violated the protocol.
    Unknown,
}

/// State of the data in TCP. It changes when the peer acknowledges data. The stack may not report
/// all of it: with TLS, the number of acknowledged bytes is unknown.
#[derive(Default, PartialEq)]
pub(crate) struct TransferState {
    /// Number of bytes that the peer has acknowledged.
    acknowledged: Option<u64>,
    /// Number of segments in flight, and of bytes that were not transmitted yet.
    unacknowledged: [Option<u32>; 2],
}

impl TransferState {
    /// Returns whether there is data that the peer has not acknowledged.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        self.unacknowledged.into_iter().flatten().any(|left| left > 0)
    }
}

/// Queue pair and its memory. The fields are dropped in this order, so the memory outlives the
/// queue pair.
pub(crate) struct Link {
    qp: Qp,
    cq: Arc<Cq>,
    pd: Pd,
    variant: Variant,
    /// Ring that the peer writes.
    received: Buffer,
    /// One word for each receive, for messages sent with Send, and from `ring` on the ring from
    /// which data is sent. They are in one region, because the engine caches the last region that
    /// it used.
    local: Buffer,
    ring: u32,
    /// Targets of the peer, followed by its mappings. The peer writes both.
    lists: Buffer,
    mappings: u16,
    half: u32,
    credits: u16,
    receives: u16,
    /// Receives that were used and not posted again. There are fewer than [`REPOSTED`].
    used: Vec<u16>,
}

/// Returns the shard for connections that this thread creates. They are on one shard, because a
/// thread that waits for them drives all of their shards. Shards are assigned to threads in turn.
fn shard_of_thread(device: &Device) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // When the thread ends, its thread-local storage may already be destroyed.
    OWN.try_with(|own| *own).unwrap_or(0) % device.shards()
}

impl Link {
    /// Creates a queue pair, and posts all receives.
    pub(crate) fn new(device: &Device, sizes: &Sizes, variant: Variant) -> Result<Self> {
        let pd = device.alloc_pd()?;
        let (credits, receives) = (sizes.receives, sizes.receives.saturating_add(EXTRA_RECEIVES));
        // In the variant with Sends, each Send follows a Write.
        let sends = 2 * (u32::from(sizes.sends) + u32::from(CONTROL_SLOTS));
        let options = CqConfig { shard: Some(shard_of_thread(device)), ..CqConfig::default() };
        let cq = device.create_cq(sends + u32::from(receives), options)?;
        let cap = QpCap {
            max_send_wr: sends,
            max_recv_wr: receives.into(),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: Mapping::LEN as u32,
        };
        // The completion contains the slot of the receive, so the order in which messages use
        // receives is irrelevant.
        let qp =
            pd.create_qp(QpInit::new(&cq, &cq).cap(cap).signal_all(false).newest_receive_first())?;
        let half = sizes.half();
        let lists = TARGETS * Target::LEN + usize::from(sizes.mappings) * Mapping::LEN;
        let ring = (u32::from(receives) * WORD).next_multiple_of(CACHE_LINE);
        let link = Self {
            received: Buffer::new(&pd, 2 * half as usize, Access::REMOTE_WRITE)?,
            local: Buffer::new(&pd, ring as usize + sizes.sent as usize, Access::empty())?,
            ring,
            lists: Buffer::new(&pd, lists, Access::REMOTE_WRITE)?,
            qp,
            cq,
            pd,
            variant,
            mappings: sizes.mappings,
            half,
            credits,
            receives,
            used: Vec::with_capacity(BATCH + REPOSTED),
        };
        link.receive_again(&(0..receives).collect::<Vec<_>>())?;
        Ok(link)
    }

    pub(crate) fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Returns the state of the data in TCP.
    pub(crate) fn transfer_state(&self) -> TransferState {
        let stream = self.qp.path().map(|path| path.stream).unwrap_or_default();
        TransferState {
            acknowledged: stream.bytes_acked,
            unacknowledged: [stream.unacked, stream.not_sent],
        }
    }

    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    pub(crate) fn variant(&self) -> Variant {
        self.variant
    }

    /// Returns the receiving half of a connection over this link.
    pub(crate) fn receiver(&self) -> Receiver {
        Receiver::new(self.half, FIRST_TARGET, self.credits)
    }

    /// Returns the private data for the peer.
    pub(crate) fn conn_data(&self) -> ConnData {
        ConnData {
            order: Order::HOST,
            variant: Some(self.variant),
            credits: self.credits,
            mappings: self.mappings,
            targets: self.lists.target(0, TARGETS as u32),
            first: self.received.target(0, FIRST_TARGET.min(self.half)),
        }
    }

    /// Returns a part of the receive buffer as a target for the peer.
    pub(crate) fn target(&self, part: Range<u32>) -> Target {
        self.received.target(part.start as usize, part.end - part.start)
    }

    /// Returns the smoothed round-trip time of the connection, if its stack provides it.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let us = self.qp.path()?.stream.rtt_us?;
        Some(Duration::from_micros(us.into()))
    }

    /// Takes entry `index` of the list of targets, if the peer has written it, and clears the
    /// entry.
    pub(crate) fn take_target(&self, index: usize) -> Result<Option<Target>> {
        let at = index % TARGETS * Target::LEN;
        let mut len = [0; 4];
        // The length is the last field and becomes visible last, so an entry with a length is
        // complete.
        self.lists.read(at + 12, &mut len)?;
        if len == [0; 4] {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        let mut entry = [0; Target::LEN];
        self.lists.read(at, &mut entry)?;
        self.lists.write(at + 12, &[0; 4])?;
        Ok(Some(Target::from_bytes(entry, Order::HOST)))
    }

    /// Returns the entries of the list of mappings.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = Mapping> {
        (0..usize::from(self.mappings)).filter_map(|index| {
            let mut entry = [0; Mapping::LEN];
            self.lists.read(TARGETS * Target::LEN + index * Mapping::LEN, &mut entry).ok()?;
            Some(Mapping::from_bytes(entry, Order::HOST))
        })
    }

    /// Copies bytes out of the receive buffer.
    pub(crate) fn copy_received(&self, at: u32, to: &mut [u8]) -> Result<()> {
        self.received.read(at as usize, to)
    }

    /// Copies bytes into the ring from which data is sent.
    pub(crate) fn stage(&self, at: u32, from: &[u8]) -> Result<()> {
        self.local.write((self.ring + at) as usize, from)
    }

    /// Returns an element for bytes in the ring from which data is sent.
    fn staged(&self, part: Range<u32>) -> Sge {
        self.local.sge(self.ring + part.start..self.ring + part.end)
    }

    fn remote(to: Target) -> Remote {
        Remote { addr: to.addr, rkey: STag(to.key) }
    }

    fn post(&self, requests: &[SendWr<'_>]) -> Result<()> {
        // SAFETY: elements are inline, from variables of the callers, or bytes of the ring that
        // `Sender` has given out for this request. It gives them out again only after `completed`
        // has freed them, for a completion of this request or a later one, as the oldest are freed
        // first. The ring stays registered until after `qp`, the first field of `Link`, is dropped.
        unsafe { self.qp.post_send(requests.iter().copied()) }.map_err(|error| {
            tracing::debug!(%error, "posting failed");
            Errno::IO
        })
    }

    /// Posts a Write of `sges` to `to`, followed by `message`.
    fn write_with(
        &self,
        sges: &[Sge],
        inline: SendFlags,
        to: Target,
        message: Message,
    ) -> Result<()> {
        let (remote, word) = (Self::remote(to), message.to_word());
        match self.variant {
            Variant::Immediate => self.post(&[SendWr {
                wr_id: 0,
                op: SendOp::WriteImm { remote, imm: word },
                sges,
                flags: SendFlags::SIGNALED | inline,
            }]),
            Variant::Send => {
                let bytes = word.to_ne_bytes();
                let words = [Sge { addr: bytes.as_ptr() as u64, length: WORD, lkey: STag(0) }];
                self.post(&[
                    SendWr { wr_id: 0, op: SendOp::Write { remote }, sges, flags: inline },
                    SendWr {
                        wr_id: 0,
                        op: SendOp::Send,
                        sges: &words,
                        flags: SendFlags::SIGNALED | SendFlags::INLINE,
                    },
                ])
            }
        }
    }

    /// Posts a message.
    pub(crate) fn post_message(&self, message: Message) -> Result<()> {
        let bytes = message.to_word().to_ne_bytes();
        let words = [Sge { addr: bytes.as_ptr() as u64, length: WORD, lkey: STag(0) }];
        let (op, sges, inline) = match self.variant {
            Variant::Immediate => {
                let remote = Remote { addr: 0, rkey: STag(0) };
                (
                    SendOp::WriteImm { remote, imm: message.to_word() },
                    &words[..0],
                    SendFlags::empty(),
                )
            }
            Variant::Send => (SendOp::Send, &words[..], SendFlags::INLINE),
        };
        self.post(&[SendWr { wr_id: 0, op, sges, flags: SendFlags::SIGNALED | inline }])
    }

    /// Posts a Write of staged bytes and the message that announces it.
    pub(crate) fn write_data(&self, staged: Range<u32>, to: Target) -> Result<()> {
        let len = staged.end - staged.start;
        self.write_with(&[self.staged(staged)], SendFlags::empty(), to, Message::Data { len })
    }

    /// Posts a Write of staged bytes without a message that announces it.
    pub(crate) fn write_direct(&self, staged: Range<u32>, to: Target) -> Result<()> {
        let op = SendOp::Write { remote: Self::remote(to) };
        self.post(&[SendWr {
            wr_id: 0,
            op,
            sges: &[self.staged(staged)],
            flags: SendFlags::SIGNALED,
        }])
    }

    /// Posts a Write of an entry to a list of the peer, and the message that announces it.
    pub(crate) fn write_entry(&self, entry: &[u8], to: Target, message: Message) -> Result<()> {
        let sges = [Sge { addr: entry.as_ptr() as u64, length: entry.len() as u32, lkey: STag(0) }];
        self.write_with(&sges, SendFlags::INLINE, to, message)
    }

    /// Posts the receives of these slots again.
    fn receive_again(&self, slots: &[u16]) -> Result<()> {
        let sges: Vec<Sge> = slots
            .iter()
            .map(|slot| {
                let at = u32::from(slot % self.receives) * WORD;
                self.local.sge(at..at + WORD)
            })
            .collect();
        let used = if self.variant == Variant::Send { 1 } else { 0 };
        let requests = slots.iter().zip(&sges).map(|(slot, sge)| RecvWr {
            wr_id: RECEIVE | u64::from(*slot),
            sges: &std::slice::from_ref(sge)[..used],
        });
        // SAFETY: the word of a slot is in one receive at a time: `new` posts each slot once, and
        // `poll` again only after its completion, when `word` has read it. Nothing else accesses
        // it: `stage` writes only from `ring` on, after the words. They stay registered until after
        // `qp` is dropped, which is the first field of `Link`.
        unsafe { self.qp.post_recv(requests) }.map_err(|_| Errno::IO)
    }

    fn word(&self, wc: &Wc, slot: u16) -> LinkCompletion {
        match (self.variant, wc.imm) {
            (Variant::Immediate, Some(word)) => LinkCompletion::Received(word),
            (Variant::Send, None) if wc.byte_len == WORD => {
                let mut bytes = [0; WORD as usize];
                match self.local.read(usize::from(slot) * WORD as usize, &mut bytes) {
                    Ok(()) => LinkCompletion::Received(u32::from_ne_bytes(bytes)),
                    Err(_) => LinkCompletion::Unknown,
                }
            }
            _ => LinkCompletion::Unknown,
        }
    }

    /// Takes a batch of completions, the oldest first, and returns their number. Completions with
    /// an error are ignored, because an event reports the failure of the connection.
    pub(crate) fn poll(&mut self, take: PollMode, mut each: impl FnMut(LinkCompletion)) -> usize {
        let mut used = std::mem::take(&mut self.used);
        let each = |wc: Wc| {
            if wc.status != WcStatus::Success {
                return;
            }
            if wc.wr_id & RECEIVE == 0 {
                each(LinkCompletion::Sent);
                return;
            }
            let slot = wc.wr_id as u16;
            each(self.word(&wc, slot));
            used.push(slot);
        };
        let taken = match take {
            PollMode::Driving => self.cq.poll_with(BATCH, each),
            PollMode::Queued => self.cq.take_with(BATCH, each),
        };
        if used.len() >= REPOSTED {
            // This fails if the connection has ended, which its event reports.
            let _ = self.receive_again(&used);
            used.clear();
        }
        self.used = used;
        taken
    }

    /// Ends the connection without waiting for data in flight.
    pub(crate) fn abort(&self) {
        let _ = self.qp.modify(QpState::Err);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Instant;
    use uiw_verbs::cm::{self, CmChannel, CmEventKind, Listener};
    use uiw_verbs::{ConnConfig, DeviceConfig};

    const CREDITS: u16 = 40;
    pub(crate) const SIZES: Sizes = Sizes {
        sends: 64,
        receives: CREDITS,
        inline: 0,
        sent: 1 << 16,
        received: 1 << 16,
        mappings: 0,
    };

    /// The links of a thread are on one shard. This also applies to the thread that has opened the
    /// device, whose own completion queues are assigned to all shards in turn.
    #[test]
    fn links_of_thread_share_shard() {
        let device = Device::open_with(DeviceConfig::default().shards(3)).unwrap();
        let shard_of_links = || {
            let links = [(); 5].map(|()| Link::new(&device, &SIZES, Variant::Send).unwrap());
            let shards = links.each_ref().map(|link| link.cq().shard());
            assert!(shards.iter().all(|shard| *shard == shards[0]), "{shards:?}");
            shards[0]
        };
        let mut shards = [false; 3];
        shards[shard_of_links()] = true;
        for _ in 0..12 {
            let shard = std::thread::scope(|scope| scope.spawn(shard_of_links).join().unwrap());
            shards[shard] = true;
        }
        assert_eq!(shards, [true; 3], "threads get them in turn");
    }

    fn wait_for<T>(mut ready: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            match ready() {
                Some(value) => return value,
                None => assert!(start.elapsed() < Duration::from_secs(60), "nothing came"),
            }
        }
    }

    /// Returns two connected ends on one device.
    pub(crate) fn pair(variant: Variant, sizes: &Sizes) -> [Link; 2] {
        let device = Device::open().unwrap();
        let links = [(); 2].map(|()| Link::new(&device, sizes, variant).unwrap());
        let (options, channel) = (Arc::new(ConnConfig::default()), Arc::new(CmChannel::default()));
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&device, any, 8, &options, &channel).unwrap();
        cm::connect(links[0].qp(), None, listener.local_addr(), &options, b"", &channel).unwrap();
        let mut established = 0;
        while established < 2 {
            let until = Some(Instant::now() + Duration::from_secs(60));
            match device.wait(until, |cx| channel.poll_pop(cx)).unwrap().kind {
                CmEventKind::ConnectRequest(request) => {
                    request.accept(links[1].qp(), None, b"", None).unwrap();
                }
                CmEventKind::Established(_) => established += 1,
                other => panic!("{other:?}"),
            }
        }
        links
    }

    /// Sends `count` messages and receives them at the peer. Returns the maximum number of receives
    /// that were not posted again.
    fn carry(links: &mut [Link; 2], count: usize) -> usize {
        let [from, to] = links;
        let (mut sent, mut received, mut most) = (0, 0, 0);
        (0..count).for_each(|_| from.post_message(Message::Credits { limit: 1 }).unwrap());
        wait_for(|| {
            to.poll(PollMode::Driving, |completed| match completed {
                LinkCompletion::Received(_) => received += 1,
                LinkCompletion::Sent | LinkCompletion::Unknown => panic!("no message"),
            });
            from.poll(PollMode::Driving, |completed| match completed {
                LinkCompletion::Sent => sent += 1,
                LinkCompletion::Received(_) | LinkCompletion::Unknown => panic!("a message"),
            });
            most = most.max(to.used.len());
            (sent == count && received == count).then_some(())
        });
        most
    }

    #[test]
    fn receives_reposted_before_credits() {
        for variant in [Variant::Send, Variant::Immediate] {
            let mut links = pair(variant, &SIZES);
            for count in 1..=8 {
                carry(&mut links, 1);
                assert_eq!(links[1].used.len(), count, "none is posted again alone");
            }
            // The maximum number of receives in use is the peer's credits, in addition to those for
            // control messages.
            let most = carry(&mut links, CREDITS.into());
            assert!(most < REPOSTED, "{most}");
            for _ in 0..20 {
                carry(&mut links, CREDITS.into());
            }
            assert!(links[1].used.len() < REPOSTED);
            assert!(usize::from(EXTRA_RECEIVES) > REPOSTED);
        }
    }
}
