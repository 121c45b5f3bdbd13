//! Fault injection for any stack: reads and writes of odd sizes, flipped bits, lost connections,
//! half-closed connections, and spurious `WouldBlock` errors. All faults follow from a seed and
//! from byte positions, and do not depend on time.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use uiw_mem::{IoVec, IoVecMut};

use crate::Random;
pub use crate::Split;
use uiw_llp::{
    Event, Interest, Token, TransportStack, TransportStream, attached_stream, no_bytes,
    wrap::{Origin, StackHooks, StreamHooks, WrappedStack, WrappedStream},
};

/// Faults of one stream. Positions count the bytes of one direction of that stream, from 0.
///
/// ```
/// # mod uiw {
/// #     pub use uiw_impair::fault as impair;
/// #     pub mod llp { pub use uiw_llp::*; pub use uiw_mem::IoVec; }
/// # }
/// use uiw::impair::{FaultHooks, Faults};
/// use uiw::llp::tcp::TcpStack;
/// use uiw::llp::{StackExtensions, TransportConfig, Token};
///
/// let faults = Faults { cut_sent: Some(3), ..Faults::default() };
/// let mut stack = FaultHooks::wrap(Box::new(TcpStack::new()?), 1, faults);
/// let mut stream = stack.connect_self(([127, 0, 0, 1], 0).into(), &TransportConfig::default(), Token(1))?;
/// while !stream.connect_result()? {}
/// let bytes = [uiw::llp::IoVec::from(&b"four"[..])];
/// assert_eq!(stream.send(&bytes)?, 3);
/// assert_eq!(stream.send(&bytes).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Faults {
    /// Number of bytes that one `send` accepts.
    pub send_split: Split,
    /// Number of bytes that one `recv` returns.
    pub recv_split: Split,
    /// Changes of sent bytes.
    pub flip_sent: Vec<Flip>,
    /// Changes of received bytes.
    pub flip_received: Vec<Flip>,
    /// Number of sent bytes after which the connection is reset.
    pub cut_sent: Option<u64>,
    /// Number of received bytes after which the connection is reset.
    pub cut_received: Option<u64>,
    /// Number of sent bytes after which a FIN follows; later calls of `send` return `BrokenPipe`.
    pub fin_sent: Option<u64>,
    /// Interval, in calls of `send` and of `recv`, at which a call returns `WouldBlock` without
    /// need. The value 1 would block forever, so it counts as 2.
    pub would_block_every: Option<u32>,
}

/// Change of one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flip {
    /// Position of the byte.
    pub byte: u64,
    /// Bits to flip.
    pub mask: u8,
}

/// Stack whose streams have injected faults: see [`FaultHooks::wrap`].
pub type FaultStack = WrappedStack<FaultHooks>;

/// State shared by a [`FaultStack`], its listeners and its streams.
#[derive(Clone)]
pub struct FaultHooks {
    plan: Arc<Mutex<SharedPlan>>,
    shard: Arc<Mutex<ShardFaultState>>,
}

/// State that all shards share. It is locked when a stream or a shard is created.
struct SharedPlan {
    /// Function that returns the faults of a stream, given its origin and its number (from 0).
    faults: Box<dyn FnMut(Origin, u64) -> Faults + Send>,
    streams: u64,
    /// Seed of the next shard.
    seed: u64,
}

/// State of the faults that the streams of one shard share.
struct ShardFaultState {
    random: Random,
    /// Streams whose connection was cut. The inner stack reports no events for them.
    cut: BTreeSet<Token>,
}

impl FaultHooks {
    /// Wraps a stack. All streams have these faults; random choices are derived from `seed`.
    pub fn wrap(inner: Box<dyn TransportStack>, seed: u64, faults: Faults) -> FaultStack {
        Self::wrap_with(inner, seed, move |_, _| faults.clone())
    }

    /// Wraps a stack. Each stream has the faults that `plan` returns for its origin and its number
    /// (from 0). The streams of all shards are counted together.
    pub fn wrap_with(
        inner: Box<dyn TransportStack>,
        seed: u64,
        plan: impl FnMut(Origin, u64) -> Faults + Send + 'static,
    ) -> FaultStack {
        let plan = SharedPlan { faults: Box::new(plan), streams: 0, seed };
        WrappedStack { inner, hooks: Self::for_next_shard(&Arc::new(Mutex::new(plan))) }
    }

    /// Creates the hooks of the next shard.
    fn for_next_shard(plan: &Arc<Mutex<SharedPlan>>) -> Self {
        let mut locked = plan.lock();
        let seed = locked.seed;
        locked.seed = seed.wrapping_add(1);
        let shard = ShardFaultState { random: Random::new(seed), cut: BTreeSet::new() };
        Self { plan: Arc::clone(plan), shard: Arc::new(Mutex::new(shard)) }
    }
}

impl fmt::Debug for FaultHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultHooks")
            .field("streams", &self.plan.lock().streams)
            .finish_non_exhaustive()
    }
}

impl StackHooks for FaultHooks {
    type Stream = FaultStream;

    fn stream(&self, _inner: &dyn TransportStream, origin: Origin, token: Token) -> FaultStream {
        let mut plan = self.plan.lock();
        let number = plan.streams;
        plan.streams += 1;
        let faults = (plan.faults)(origin, number);
        drop(plan);
        FaultStream {
            token,
            faults,
            shared: self.clone(),
            sent: 0,
            received: 0,
            calls: [0; 2],
            end: None,
            detached: false,
        }
    }

    fn shard(&self, _inner: &dyn TransportStack) -> Self {
        Self::for_next_shard(&self.plan)
    }

    fn poll(&mut self, inner: &mut dyn TransportStack, events: &mut Vec<Event>) -> io::Result<()> {
        inner.poll(events)?;
        let shard = self.shard.lock();
        events.extend(shard.cut.iter().map(|&token| Event {
            token,
            readable: true,
            writable: true,
        }));
        Ok(())
    }

    fn deadline(&self, inner: &dyn TransportStack) -> Option<Instant> {
        if self.shard.lock().cut.is_empty() { inner.deadline() } else { Some(inner.now()) }
    }

    fn adopt(
        &mut self,
        inner: &mut dyn TransportStack,
        stream: &mut Box<dyn TransportStream>,
        token: Token,
    ) -> io::Result<()> {
        let WrappedStream { inner: stream, hooks: faulty } =
            WrappedStream::<FaultStream>::of(&mut **stream)?;
        if !faulty.detached && faulty.end != Some(InjectedEnd::Aborted) {
            return Err(attached_stream());
        }
        if faulty.end == Some(InjectedEnd::Cut) {
            // The stream is reset for its user, although the inner stack does not know that.
            self.shard.lock().cut.insert(token);
        } else {
            inner.adopt(stream, token)?;
        }
        (faulty.token, faulty.shared, faulty.detached) = (token, self.clone(), false);
        Ok(())
    }
}

/// State of a stream of a [`FaultStack`].
#[derive(Debug)]
pub struct FaultStream {
    token: Token,
    faults: Faults,
    shared: FaultHooks,
    sent: u64,
    received: u64,
    /// Numbers of calls of `send` and `recv`.
    calls: [u32; 2],
    /// How the connection has ended, which determines the results of later calls.
    end: Option<InjectedEnd>,
    detached: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InjectedEnd {
    Cut,
    Fin,
    Aborted,
}

impl FaultStream {
    /// Returns whether this call of `send` (0) or `recv` (1) has to return `WouldBlock`.
    fn must_block(&mut self, which: usize) -> bool {
        self.calls[which] = self.calls[which].wrapping_add(1);
        self.faults
            .would_block_every
            .is_some_and(|every| self.calls[which].is_multiple_of(every.max(2)))
    }

    fn split(&self, split: Split) -> usize {
        split.next(&mut self.shared.shard.lock().random)
    }

    fn cut(&mut self, inner: &mut dyn TransportStream) {
        inner.abort();
        self.end = Some(InjectedEnd::Cut);
        self.shared.shard.lock().cut.insert(self.token);
    }

    /// Makes the shard stop reporting the cut stream. After the stream was detached, another stream
    /// of that shard may have its token.
    fn stop_reporting_cut(&self) {
        if !self.detached {
            self.shared.shard.lock().cut.remove(&self.token);
        }
    }

    /// Cuts the connection or sends the FIN if the position for it is reached.
    fn apply_position(&mut self, inner: &mut dyn TransportStream) {
        let reached = |at: Option<u64>, position| at.is_some_and(|at| position >= at);
        if matches!(self.end, None | Some(InjectedEnd::Fin))
            && (reached(self.faults.cut_sent, self.sent)
                || reached(self.faults.cut_received, self.received))
        {
            self.cut(inner);
        }
        if self.end.is_none()
            && reached(self.faults.fin_sent, self.sent)
            && inner.shutdown().is_ok()
        {
            self.end = Some(InjectedEnd::Fin);
        }
    }
}

/// Returns the number of bytes from `position` to the next position in `at`. Positions that were
/// passed are ignored.
fn bytes_until(at: impl IntoIterator<Item = u64>, position: u64) -> usize {
    let next = at.into_iter().filter(|&at| at > position).min();
    next.map_or(usize::MAX, |at| usize::try_from(at - position).unwrap_or(usize::MAX))
}

fn first_bytes<'a>(bufs: &[IoVec<'a>], mut len: usize) -> Vec<IoVec<'a>> {
    let mut list = Vec::with_capacity(bufs.len());
    for buf in bufs {
        let part = buf.len().min(len);
        list.push(buf.sub(0..part));
        len -= part;
    }
    list
}

impl StreamHooks for FaultStream {
    fn send(&mut self, inner: &mut dyn TransportStream, bufs: &[IoVec<'_>]) -> io::Result<usize> {
        self.apply_position(inner);
        match self.end {
            Some(InjectedEnd::Cut) => return Err(io::ErrorKind::ConnectionReset.into()),
            Some(InjectedEnd::Fin) => return Err(io::ErrorKind::BrokenPipe.into()),
            Some(InjectedEnd::Aborted) => return Err(io::ErrorKind::NotConnected.into()),
            None => {}
        }
        if IoVec::total(bufs) == 0 {
            return Err(no_bytes());
        }
        if self.must_block(0) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let flips = self.faults.flip_sent.iter();
        let mask = flips
            .clone()
            .filter(|flip| flip.byte == self.sent)
            .fold(0, |mask, flip| mask ^ flip.mask);
        let sent = if mask != 0 {
            // The byte to change is sent separately, from a copy, because the program's memory must
            // not change.
            let byte = first_bytes(bufs, 1).into_iter().find(|buf| !buf.is_empty()).map(|buf| {
                let mut byte = [0];
                buf.copy_to(&mut byte);
                [byte[0] ^ mask]
            });
            inner.send(&[IoVec::from(&byte.unwrap_or_default()[..])])?
        } else {
            let stops =
                flips.map(|flip| flip.byte).chain(self.faults.cut_sent).chain(self.faults.fin_sent);
            let len = bytes_until(stops, self.sent).min(self.split(self.faults.send_split));
            if len >= IoVec::total(bufs) {
                inner.send(bufs)?
            } else {
                inner.send(&first_bytes(bufs, len))?
            }
        };
        self.sent += sent as u64;
        self.apply_position(inner);
        Ok(sent)
    }

    fn recv(
        &mut self,
        inner: &mut dyn TransportStream,
        bufs: &mut [IoVecMut<'_>],
    ) -> io::Result<usize> {
        self.apply_position(inner);
        match self.end {
            Some(InjectedEnd::Cut) => return Err(io::ErrorKind::ConnectionReset.into()),
            Some(InjectedEnd::Aborted) => return Err(io::ErrorKind::NotConnected.into()),
            Some(InjectedEnd::Fin) | None => {}
        }
        if IoVecMut::total(bufs) == 0 {
            return Err(no_bytes());
        }
        if self.must_block(1) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut left = bytes_until(self.faults.cut_received, self.received)
            .min(self.split(self.faults.recv_split));
        let mut list = Vec::with_capacity(bufs.len());
        for buf in bufs.iter_mut() {
            let part = buf.len().min(left);
            list.push(buf.sub(0..part));
            left -= part;
        }
        let received = inner.recv(&mut list)?;
        let mut at = self.received;
        let end = at + received as u64;
        for buf in list {
            let here = at..end.min(at + buf.len() as u64);
            flip(buf, &here, &self.faults.flip_received);
            at = here.end;
        }
        self.received = end;
        self.apply_position(inner);
        Ok(received)
    }

    fn set_interest(
        &mut self,
        inner: &mut dyn TransportStream,
        interest: Interest,
    ) -> io::Result<()> {
        if self.end == Some(InjectedEnd::Cut) { Ok(()) } else { inner.set_interest(interest) }
    }

    fn connect_result(&mut self, inner: &mut dyn TransportStream) -> io::Result<bool> {
        if self.end == Some(InjectedEnd::Cut) { Ok(true) } else { inner.connect_result() }
    }

    fn shutdown(&mut self, inner: &mut dyn TransportStream) -> io::Result<()> {
        match self.end {
            Some(InjectedEnd::Cut) => Err(io::ErrorKind::NotConnected.into()),
            Some(InjectedEnd::Fin) => Ok(()),
            Some(InjectedEnd::Aborted) | None => inner.shutdown(),
        }
    }

    fn detach(&mut self, inner: &mut dyn TransportStream) -> io::Result<()> {
        if self.end != Some(InjectedEnd::Cut) {
            // An aborted stream returns an error here.
            inner.detach()?;
        }
        self.stop_reporting_cut();
        self.detached = true;
        Ok(())
    }

    fn abort(&mut self, inner: &mut dyn TransportStream) {
        inner.abort();
        self.end = Some(InjectedEnd::Aborted);
        self.stop_reporting_cut();
    }

    fn before_drop(&mut self, _inner: &mut dyn TransportStream) {
        self.stop_reporting_cut();
    }
}

/// Changes bytes in a buffer that contains the positions `here`.
fn flip(mut buf: IoVecMut<'_>, here: &std::ops::Range<u64>, flips: &[Flip]) {
    for flip in flips.iter().filter(|flip| here.contains(&flip.byte)) {
        let at = (flip.byte - here.start) as usize;
        let mut byte = [0];
        let mut place = buf.sub(at..at + 1);
        place.as_io_vec().copy_to(&mut byte);
        place.copy_from(&[byte[0] ^ flip.mask]);
    }
}
