//! Connections on the raw layer: a queue pair, its completion queue, and ways to wait for
//! completions.

use crate::shared::fail::{Exit, Failure, Result};
use crate::shared::spin::Spin;
use crate::shared::stop::StopFlag;
use crate::shared::text;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use uiw::raw::cm::{self, CloseReason, CmChannel, CmEventKind, ConnInfo, ConnRequest};
use uiw::raw::{
    Arm, ConnConfig, Cq, CqConfig, Device, Error, Pd, Qp, QpCap, QpInit, QpState, RecvWr, STag,
    SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};

/// Set in the number of every receive, because the opcode of a completion in error is not valid.
pub(crate) const RECV: u64 = 1 << 63;
/// Maximum number of inline bytes.
pub(crate) const MAX_INLINE: u32 = 1024;

/// How a thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WaitMode {
    /// Poll all the time.
    Spin,
    /// Sleep in the device.
    Sleep,
    /// Sleep in poll(2) on the descriptor of the completion channel.
    Descriptor,
}

/// Depths of the queues of a connection.
#[derive(Clone)]
pub(crate) struct QueueDepths {
    pub(crate) send: u32,
    pub(crate) recv: u32,
    pub(crate) sges: u32,
}

impl QueueDepths {
    pub(crate) fn new(send: u32, recv: u32) -> Self {
        Self { send, recv, sges: 1 }
    }
}

/// A queue pair that is not connected yet. Post its receives, then connect or accept.
pub(crate) struct PendingQp {
    pub(crate) device: Device,
    pub(crate) pd: Pd,
    pub(crate) cq: Arc<Cq>,
    pub(crate) qp: Qp,
    channel: Arc<CmChannel>,
}

/// An established connection.
pub(crate) struct Link {
    pub(crate) device: Device,
    pub(crate) cq: Arc<Cq>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) info: ConnInfo,
    channel: Arc<CmChannel>,
    ending: OnceLock<CloseReason>,
}

/// A connection that is being set up.
pub(crate) struct PendingLink {
    pending: PendingQp,
    peer: SocketAddr,
    options: Arc<ConnConfig>,
}

impl PendingLink {
    /// Waits until it is established.
    pub(crate) fn finish(self, until: WaitLimits<'_>) -> Result<Link> {
        let Self { pending, peer, options } = self;
        pending.wait_established(peer, until, |error| Failure::connecting(peer, &options, &error))
    }
}

/// Returns the options of a completion queue with a channel, for callers that wait for its
/// descriptor.
pub(crate) fn cq_options() -> CqConfig {
    CqConfig { channel: Some(Arc::default()), ..CqConfig::default() }
}

impl PendingQp {
    pub(crate) fn new(device: &Device, pd: &Pd, depths: &QueueDepths) -> Result<Self> {
        let cq = device.create_cq(depths.send + depths.recv + 16, cq_options())?;
        Self::with_cq(device, pd, &cq, depths)
    }

    /// Like [`PendingQp::new`], but completes in `cq`.
    pub(crate) fn with_cq(
        device: &Device,
        pd: &Pd,
        cq: &Arc<Cq>,
        depths: &QueueDepths,
    ) -> Result<Self> {
        let cap = QpCap {
            max_send_wr: depths.send,
            max_recv_wr: depths.recv,
            max_send_sge: depths.sges,
            max_recv_sge: depths.sges,
            max_inline: MAX_INLINE,
        };
        let qp = pd.create_qp(QpInit::new(cq, cq).cap(cap).signal_all(false))?;
        let channel = Arc::new(CmChannel::default());
        Ok(Self { device: device.clone(), pd: pd.clone(), cq: Arc::clone(cq), qp, channel })
    }

    pub(crate) fn connect(
        self,
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
    ) -> Result<Link> {
        self.begin(peer, options, private_data)?.finish(WaitLimits::NEVER)
    }

    /// Begins to connect without waiting, so that several connections take the time of one.
    pub(crate) fn begin(
        self,
        peer: SocketAddr,
        options: &ConnConfig,
        private_data: &[u8],
    ) -> Result<PendingLink> {
        let options = Arc::new(options.clone());
        cm::connect(&self.qp, None, peer, &options, private_data, &self.channel)
            .map_err(|error| Failure::connecting(peer, &options, &error))?;
        Ok(PendingLink { pending: self, peer, options })
    }

    pub(crate) fn accept(
        self,
        request: ConnRequest,
        options: &ConnConfig,
        private_data: &[u8],
        until: WaitLimits<'_>,
    ) -> Result<Link> {
        let peer = text::canonical(request.peer_addr());
        let options = Arc::new(options.clone());
        let failed = |error| Failure::lost(format!("cannot accept {peer}"), error);
        request
            .accept(&self.qp, Some(&options), private_data, Some(&self.channel))
            .map_err(failed)?;
        self.wait_established(peer, until, failed)
    }

    fn wait_established(
        self,
        peer: SocketAddr,
        until: WaitLimits<'_>,
        failed: impl FnOnce(Error) -> Failure,
    ) -> Result<Link> {
        let event = self.device.wait(until.deadline, |cx| match until.poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.channel.poll_pop(cx).map(|event| Some(event.kind)),
        });
        let info = match event.flatten() {
            Some(CmEventKind::Established(info)) => info,
            Some(CmEventKind::Failed(error)) => return Err(failed(error)),
            _ if until.deadline.is_some_and(|at| at <= Instant::now()) => {
                let (what, fix) = (
                    format!("cannot connect to {peer}"),
                    "check the address and firewalls on the way",
                );
                return Err(Failure::new(Exit::Unreachable, what, "no answer in time", fix));
            }
            _ => return Err(Failure::lost(peer, "the connection ended while it was set up")),
        };
        let Self { device, cq, qp, channel, .. } = self;
        Ok(Link { device, cq, qp: Arc::new(qp), info, channel, ending: OnceLock::new() })
    }
}

/// Posts receives for these slots, each with at most one element, with one call.
pub(crate) fn post_recvs(qp: &Qp, slots: &[(u64, Option<Sge>)]) -> Result<()> {
    if slots.is_empty() {
        return Ok(());
    }
    let receives =
        slots.iter().map(|(slot, sge)| RecvWr { wr_id: RECV | slot, sges: sge.as_slice() });
    // SAFETY: the commands look at a receive's part of a buffer only after its completion
    // (`crate::shared::memory::Buffer`).
    unsafe { qp.post_recv(receives) }?;
    Ok(())
}

/// Posts a receive for a slot.
pub(crate) fn post_recv(qp: &Qp, slot: u64, sges: &[Sge]) -> Result<()> {
    // SAFETY: as in `post_recvs`.
    unsafe { qp.post_recv([RecvWr { wr_id: RECV | slot, sges }]) }?;
    Ok(())
}

/// Posts one request.
pub(crate) fn post(qp: &Qp, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) -> Result<()> {
    // SAFETY: elements lie in a `crate::shared::memory::Buffer`, whose parts the commands touch
    // only after the completion; inline elements name bytes that are borrowed or owned by
    // the caller during this call.
    unsafe { qp.post_send([SendWr { wr_id, op, sges, flags }]) }?;
    Ok(())
}

/// Posts a chain of requests.
pub(crate) fn post_all<'a>(qp: &Qp, wrs: impl Iterator<Item = SendWr<'a>>) -> Result<()> {
    // SAFETY: as in `post`.
    unsafe { qp.post_send(wrs) }?;
    Ok(())
}

/// Posts a Send of a copy of `bytes`, at most [`MAX_INLINE`] of them.
pub(crate) fn send_copy(qp: &Qp, wr_id: u64, bytes: &[u8]) -> Result<()> {
    send_copy_with(qp, wr_id, bytes, SendFlags::SIGNALED)
}

/// Like [`send_copy`], with other flags.
pub(crate) fn send_copy_with(qp: &Qp, wr_id: u64, bytes: &[u8], flags: SendFlags) -> Result<()> {
    let sge = Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: STag(0) };
    post(qp, wr_id, SendOp::Send, &[sge], flags | SendFlags::INLINE)
}

/// Takes up to `max` completions from `cq`, waiting for the first one. Returns 0 if `until` is
/// reached.
pub(crate) fn completions(
    device: &Device,
    cq: &Cq,
    wait: WaitMode,
    until: WaitLimits<'_>,
    max: usize,
    mut each: impl FnMut(Wc),
) -> usize {
    let mut spin = None;
    loop {
        let taken = cq.poll_with(max, &mut each);
        if taken > 0 || until.is_over() {
            return taken;
        }
        match wait {
            WaitMode::Descriptor => sleep_on_channel(cq),
            WaitMode::Spin if spin.get_or_insert_with(Spin::default).is_permitted() => {
                spin.as_mut().map(Spin::on_empty_poll);
            }
            WaitMode::Spin | WaitMode::Sleep => {
                // Poll both, so that each registers the waker.
                device.wait(until.deadline, |cx| match (cq.poll_ready(cx), until.poll(cx)) {
                    (Poll::Pending, Poll::Pending) => Poll::Pending,
                    _ => Poll::Ready(()),
                });
            }
        }
    }
}

/// Waits like a program with its own event loop: arms the queue, polls once more, and sleeps on the
/// descriptor. Returns at least every 50 ms, so that the caller can check its other conditions.
fn sleep_on_channel(cq: &Cq) {
    const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let Some(channel) = cq.channel() else { return };
    let Ok(fd) = channel.fd() else { return };
    cq.arm(Arm::Any);
    if cq.is_empty() {
        let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&TICK));
    }
    while channel.try_pop().is_some() {}
}

/// Conditions that end a wait early.
#[derive(Clone, Copy, Default)]
pub(crate) struct WaitLimits<'a> {
    pub(crate) stop: Option<&'a StopFlag>,
    pub(crate) deadline: Option<Instant>,
    /// Ends the wait when this connection ends. If nothing is posted on it, no completion reports
    /// the end.
    pub(crate) ended: Option<&'a Link>,
}

impl<'a> WaitLimits<'a> {
    pub(crate) const NEVER: Self = Self { stop: None, deadline: None, ended: None };

    pub(crate) fn stop(stop: &'a StopFlag) -> Self {
        Self { stop: Some(stop), ..Self::NEVER }
    }

    pub(crate) fn deadline(at: Instant) -> Self {
        Self { deadline: Some(at), ..Self::NEVER }
    }

    pub(crate) fn ended(self, link: &'a Link) -> Self {
        Self { ended: Some(link), ..self }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.is_some_and(StopFlag::is_set)
            || self.deadline.is_some_and(|at| Instant::now() >= at)
            || self.ended.is_some_and(|link| link.ending.get().is_some())
    }

    /// Becomes ready when a condition other than the deadline is met.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let stop = self.stop.is_some_and(|stop| stop.poll(cx).is_ready());
        let ended = self.ended.is_some_and(|link| link.poll_ending(cx).is_ready());
        if stop || ended { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Link {
    pub(crate) fn peer(&self) -> SocketAddr {
        text::canonical(self.info.peer)
    }

    /// Returns the next completion, or `None` if `until` is reached first. A completion in error is
    /// returned as an error.
    pub(crate) fn next(&self, wait: WaitMode, until: WaitLimits<'_>) -> Result<Option<Wc>> {
        let mut next = None;
        // Take one at a time, so that no completion is lost if the caller stops in between.
        completions(&self.device, &self.cq, wait, until, 1, |wc| next = Some(wc));
        match next {
            Some(wc) if wc.status != WcStatus::Success => Err(self.failure(&wc)),
            next => Ok(next),
        }
    }

    /// Checks the status of a completion. Returns false if the peer has closed in order, as most
    /// connections of a server end.
    pub(crate) fn goes_on(&self, wc: &Wc) -> Result<bool> {
        let is_orderly =
            || self.wait_ending(Duration::from_secs(1)).is_some_and(|ending| ending.orderly);
        match wc.status {
            WcStatus::Success => Ok(true),
            WcStatus::Flushed if wc.reason.is_none() && is_orderly() => Ok(false),
            _ => Err(self.failure(wc)),
        }
    }

    /// Waits up to `timeout` for the end of the connection, and returns its reason.
    pub(crate) fn wait_ending(&self, timeout: Duration) -> Option<CloseReason> {
        self.device.wait(Instant::now().checked_add(timeout), |cx| self.poll_ending(cx))
    }

    /// Returns the reason of the end of the connection.
    fn poll_ending(&self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        loop {
            if let Some(ending) = self.ending.get() {
                return Poll::Ready(*ending);
            }
            match self.channel.poll_pop(cx) {
                Poll::Ready(event) => {
                    if let CmEventKind::Disconnected(ending) = event.kind {
                        let _ = self.ending.set(ending);
                    }
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Creates the error for a completion in error.
    pub(crate) fn failure(&self, wc: &Wc) -> Failure {
        // A completion in error comes shortly before the event with the reason.
        let ending = self.wait_ending(Duration::from_secs(1));
        let says_nothing =
            matches!(wc.status, WcStatus::Flushed | WcStatus::RetryExceeded) && wc.reason.is_none();
        let mut failure = match ending {
            Some(ending) if ending.silent_for.is_some() => Failure::silent(self.peer(), ending),
            Some(CloseReason { suspect: Some(suspect), .. }) => {
                Failure::completion(self.peer(), wc).with_suspect(suspect)
            }
            Some(ending) if says_nothing && !ending.orderly => Failure::lost(self.peer(), ending),
            _ => Failure::completion(self.peer(), wc),
        };
        failure.is_logged = ending.is_some_and(|ending| !ending.orderly);
        failure
    }

    /// Closes in order, and waits a moment for the peer to do the same.
    pub(crate) fn close(self) {
        Self::close_all([self]);
    }

    /// Like [`Link::close`], but closes several connections in the time of one.
    pub(crate) fn close_all(links: impl IntoIterator<Item = Self>) {
        let closing = |link: &Self| link.qp.state() == QpState::Rts && link.qp.disconnect().is_ok();
        let closing: Vec<_> = links.into_iter().filter(closing).collect();
        let deadline = Instant::now() + Duration::from_secs(2);
        for link in closing {
            let _ = link.wait_ending(deadline.saturating_duration_since(Instant::now()));
        }
    }
}
