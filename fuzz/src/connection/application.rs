//! Application at our end, which posts, polls and destroys according to the input, and records the
//! posted requests.

use std::net::SocketAddr;
use std::sync::Arc;

use uiw_verbs::cm::{self, CmChannel, CmEventKind};
use uiw_verbs::{
    Access, Bind, ConnConfig, Cq, CqConfig, Device, Qp, QpCap, QpInit, QpState, RawMw, RecvWr,
    Remote, STag, SendFlags, SendOp, SendWr, Wc, WcStatus, WindowType,
};

use super::memory::{Arena, Part};
use super::peer::STAG_OF_PEER;
use crate::input::Input;

/// Record of the requests posted to one queue, and of their completions.
#[derive(Default)]
struct PostedBook {
    /// For each posted request, by its number: whether its completion is reported even if it
    /// succeeds.
    signaled: Vec<bool>,
    /// Number of the first request that has not completed.
    done: usize,
    failed: bool,
}

impl PostedBook {
    /// Checks a completion. Requests must complete in order and only once, and none may succeed
    /// after another one has failed. The only failure that does not affect later requests is that
    /// of a request whose extension the peer does not support.
    fn complete(&mut self, wc: &Wc) {
        let at = wc.wr_id as usize;
        assert!(at >= self.done && at < self.signaled.len(), "{wc:?}, {} are over", self.done);
        let success = wc.status == WcStatus::Success;
        for skipped in self.done..at {
            assert!(!self.signaled[skipped] && !self.failed, "{wc:?} before request {skipped}");
        }
        assert!(!success || (self.signaled[at] && !self.failed), "{wc:?} behind a failure");
        self.failed |= !success && wc.status != WcStatus::LocalQpOperation;
        self.done = at + 1;
    }
}

/// Rights that a queue pair may give to its peer.
const RIGHTS: [Access; 4] =
    [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::empty()];

pub(crate) struct Application {
    device: Device,
    qp: Option<Qp>,
    window: Option<RawMw>,
    pub(crate) window_stag: Option<STag>,
    scq: Arc<Cq>,
    rcq: Arc<Cq>,
    channel: Arc<CmChannel>,
    listener: Option<cm::Listener>,
    options: Option<Arc<ConnConfig>>,
    sent: PostedBook,
    received: PostedBook,
    signal_all: bool,
    reject: bool,
    /// All rights that the queue pair has given to the peer at any time.
    pub(crate) rights: Access,
    /// Part to which a window was last bound.
    pub(crate) window_part: Part,
}

impl Application {
    pub(crate) fn new(device: &Device, arena: &Arena, input: &mut Input<'_>) -> Self {
        let scq = device.create_cq(256, CqConfig::default()).expect("a CQ");
        let rcq = device.create_cq(256, CqConfig::default()).expect("a CQ");
        let bits = input.u8();
        let init = QpInit::new(&scq, &rcq)
            .cap(QpCap { max_send_wr: 32, max_recv_wr: 32, ..QpCap::default() })
            .signal_all(bits & 1 == 0);
        let qp = arena.pd.create_qp(init).expect("a QP");
        let mut rights = Access::REMOTE;
        if bits & 2 != 0 {
            rights = RIGHTS[usize::from(bits >> 2) % RIGHTS.len()];
            qp.set_access(rights);
        }
        let window = arena.pd.alloc_window(WindowType::Two).expect("a window");
        let window_stag = Some(window.stag());
        let mut this = Self {
            device: device.clone(),
            qp: Some(qp),
            window: Some(window),
            window_stag,
            scq,
            rcq,
            channel: Arc::default(),
            listener: None,
            options: None,
            sent: PostedBook::default(),
            received: PostedBook::default(),
            signal_all: bits & 1 == 0,
            reject: bits & 0xF0 == 0xF0,
            rights,
            window_part: Part::Granted,
        };
        for n in 0..input.below(8) {
            this.post_recv(arena, n * 500, 300);
        }
        this
    }

    pub(crate) fn options(&self) -> &ConnConfig {
        self.options.as_ref().expect("listening or connecting")
    }

    pub(crate) fn connect(&mut self, to: SocketAddr, options: &ConnConfig) {
        let options = Arc::new(options.clone());
        self.options = Some(Arc::clone(&options));
        if let Some(qp) = &self.qp {
            let _ = cm::connect(qp, None, to, &options, b"hello", &self.channel);
        }
    }

    /// Listens until the end of the run. Returns false if that is not possible.
    pub(crate) fn listen(&mut self, at: SocketAddr, options: &ConnConfig) -> bool {
        let options = Arc::new(options.clone());
        self.options = Some(Arc::clone(&options));
        self.listener = cm::Listener::bind(&self.device, at, 4, &options, &self.channel).ok();
        self.listener.is_some()
    }

    /// Processes the events of the connection manager.
    pub(crate) fn events(&mut self) {
        while let Some(event) = self.channel.try_pop() {
            if let (CmEventKind::ConnectRequest(request), Some(qp)) = (event.kind, &self.qp) {
                if self.reject {
                    let _ = request.reject(b"no");
                } else {
                    let _ = request.accept(qp, None, b"welcome", None);
                }
            }
        }
    }

    pub(crate) fn poll(&mut self) {
        self.events();
        let mut out = Vec::new();
        self.scq.poll(&mut out, 64);
        for wc in out.drain(..) {
            self.sent.complete(&wc);
        }
        self.rcq.poll(&mut out, 64);
        for wc in out {
            self.received.complete(&wc);
        }
    }

    fn post_recv(&mut self, arena: &Arena, offset: usize, len: usize) {
        let sges = [arena.sink(offset, len), arena.sink(offset + len, len / 3)];
        let wr_id = self.received.signaled.len() as u64;
        if let Some(qp) = &self.qp {
            // SAFETY: the arena outlives the queue pair, and nothing reads the sink before both are
            // dropped.
            if unsafe { qp.post_recv([RecvWr { wr_id, sges: &sges }]) }.is_ok() {
                self.received.signaled.push(true);
            }
        }
    }

    fn post(&mut self, op: SendOp, sges: &[uiw_verbs::Sge], flags: SendFlags) {
        let wr_id = self.sent.signaled.len() as u64;
        if let Some(qp) = &self.qp {
            let signaled = self.signal_all || flags.contains(SendFlags::SIGNALED);
            // SAFETY: as in `post_recv`. The call copies inline data.
            if unsafe { qp.post_send([SendWr { wr_id, op, sges, flags }]) }.is_ok() {
                self.sent.signaled.push(signaled);
            }
        }
    }

    pub(crate) fn act(&mut self, arena: &Arena, input: &mut Input<'_>) {
        let mut flags = SendFlags::empty();
        let bits = input.u8();
        flags.set(SendFlags::SIGNALED, bits & 1 == 0);
        flags.set(SendFlags::FENCE, bits & 2 != 0);
        flags.set(SendFlags::SOLICITED, bits & 4 != 0);
        let (offset, len) = (input.below(4000), input.below(3000));
        let remote = Remote { addr: 0x1000, rkey: STag(STAG_OF_PEER) };
        let source = [arena.source(offset, len), arena.source(offset / 2, len / 8)];
        let sink = [arena.sink(offset, len), arena.sink(offset / 2, len / 8)];
        match input.u8() % 20 {
            0..=3 => self.post_recv(arena, offset, len),
            4 => self.post(SendOp::Send, &source, flags),
            5 => self.post(SendOp::Write { remote }, &source, flags),
            6 | 7 => self.post(SendOp::Read { remote, invalidate: None }, &sink, flags),
            8 => self.post(SendOp::SendImm { imm: 9 }, &source, flags),
            9 => self.post(SendOp::WriteImm { remote, imm: 9 }, &source, flags),
            10 => self.post(SendOp::SendInvalidate { stag: STag(STAG_OF_PEER) }, &source, flags),
            11 => self.post(
                SendOp::FetchAdd { remote, add: 1, mask: 0 },
                &[arena.sink(offset, 8)],
                flags,
            ),
            12 => {
                let swap = SendOp::CmpSwap {
                    remote,
                    compare: 0,
                    compare_mask: 0,
                    swap: 1,
                    swap_mask: u64::MAX,
                };
                self.post(swap, &[arena.sink(offset, 8)], flags);
            }
            13 => self.bind(arena, offset, len, input),
            14 => {
                let stag = self.window_stag.unwrap_or_default();
                self.post(SendOp::LocalInvalidate { stag }, &[], flags);
            }
            15 => self.post(SendOp::AtomicWrite { remote }, &[arena.source(offset, 8)], flags),
            16 => match input.u8() {
                0..=39 => arena.take_back(),
                40..=79 => arena.revoke_changes(),
                _ => {}
            },
            17 => {
                let to = input.pick(&[QpState::Sqd, QpState::Rts, QpState::Rts, QpState::Err]);
                if let Some(qp) = &self.qp {
                    let _ = qp.modify(to);
                }
            }
            18 => match input.u8() {
                0..=49 => {
                    if let Some(qp) = &self.qp {
                        let _ = qp.disconnect();
                    }
                }
                50..=59 => self.qp = None,
                60..=79 => {
                    if let Some(qp) = &self.qp {
                        qp.set_access(self.rights & Access::REMOTE_READ);
                        arena.revoke_all_changes();
                    }
                }
                _ => {}
            },
            _ => {
                let stag = self.window_stag.unwrap_or_default();
                self.post(SendOp::Read { remote, invalidate: Some(stag) }, &sink, flags);
            }
        }
    }

    fn bind(&mut self, arena: &Arena, offset: usize, len: usize, input: &mut Input<'_>) {
        let key = input.u8();
        let part = input.pick(&[Part::Shared, Part::Granted, Part::Granted, Part::ReadOnly]);
        let wanted = Access::REMOTE & Access::from_bits_truncate(input.u8().into());
        let (Some(region), Some(window)) = (arena.stag(part), &self.window) else { return };
        let old = self.window_stag.unwrap_or(window.stag());
        let new = STag(old.0 & !0xFF | u32::from(key));
        let bind = Bind {
            window: window.stag(),
            new_stag: new,
            region,
            addr: arena.address(part) + offset as u64,
            length: len as u64,
            access: arena.record_bind(part, offset..offset + len, wanted),
        };
        self.window_stag = Some(new);
        self.window_part = part;
        self.post(SendOp::Bind(bind), &[], SendFlags::SIGNALED);
    }

    /// Ends the connection, so that all requests complete.
    pub(crate) fn finish(&mut self) {
        if let Some(qp) = &self.qp {
            let _ = qp.modify(QpState::Err);
        }
        self.device.pump();
        self.poll();
    }

    /// Checks that each request has completed exactly once, unless the queue pair was destroyed.
    pub(crate) fn check(&mut self) {
        self.poll();
        // If the queue pair was destroyed, its remaining requests are not reported any more.
        let books = [&self.sent, &self.received];
        for book in books.into_iter().filter(|_| self.qp.is_some()) {
            for late in book.done..book.signaled.len() {
                // The next signaled request also reports the success of an unsignaled one.
                assert!(!book.signaled[late], "request {late} never completed");
            }
        }
        self.qp = None;
        self.window = None;
        self.listener = None;
        self.device.pump();
        assert_eq!((self.scq.len(), self.rcq.len()), (0, 0), "nothing is reported twice");
    }
}
