//! Sending: moves bytes from the RDMAP stream to the socket.

use super::{Conn, QpHost};
use crate::driver::{ROUND_BYTES, Services};
use std::io;
use std::ops::Range;
use uiw_mem::{IoVec, PinnedSpan, Span};
use uiw_stream::{Batch, BatchLength, Piece, Transmit};

/// Maximum number of buffers passed to one system call (Linux's `UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// Minimum number of bytes that TCP has accepted at once before a longer batch is built for it.
const LONG_AFTER: usize = 128 << 10;

/// Minimum number of bytes that count as one of the batches of a turn ([`Services::turn`]). Several
/// shorter batches, each with a few small responses, count as one.
const FULL_BATCH: usize = 64 << 10;

/// Minimum EMSS, in bytes, with which the first batch of a turn may be long. Segments of this
/// length exist only within a host. On a network, the line would be idle while the batch is built.
const LOCAL_EMSS: usize = 16 << 10;

/// `EFAULT` of Linux, which has the same value on every architecture.
const EFAULT: i32 = 14;

/// Result of sending a batch.
enum SendOutcome {
    /// The socket accepted `bytes`. It is `full` if it accepted less than the batch.
    Sent { bytes: usize, full: bool },
    /// The memory that an FPDU refers to was deregistered or unmapped before it was sent.
    SourceGone,
    /// The transport failed before any byte of the batch was sent.
    Lost(io::Error),
}

/// Result of [`Conn::transmit_batch`].
enum TransmitStep {
    /// The stream has nothing to send.
    Idle,
    /// The stream has sent everything, and TCP's FIN is due.
    Fin,
    /// A batch was given to the socket. `more` is true if the stream has more to send after it.
    Sent { outcome: SendOutcome, more: bool },
}

impl Conn {
    /// Sends pending data until nothing is left, the socket is full, or the budget
    /// ([`Services::turn`]) is spent.
    ///
    /// If data remains, registers for writability so that a later event continues. Then reports the
    /// receives whose acknowledgement TCP has accepted.
    pub(super) fn transmit(&mut self, services: &mut Services) {
        self.transmit_batches(services);
        self.report_acknowledged_receives(services);
    }

    #[inline(always)]
    fn transmit_batches(&mut self, services: &mut Services) {
        if self.stream.is_connecting() || self.stream.is_over() {
            return;
        }
        if !self.stream.is_open()
            && let Some(error) = self.lost_sending.take()
        {
            return self.on_lost(&error, services);
        }
        let mut wants_write = false;
        let mut batches_left = if self.lost_sending.is_some() { 0 } else { services.turn };
        // Bytes of short batches that were not counted yet.
        let mut uncounted = 0;
        let longest = services.longest_batch;
        if self.stream.batch_length() > BatchLength::Usual {
            // Read Responses begin with a short batch, because its bytes wake the requester.
            let is_short = self.socket.emss() < LOCAL_EMSS || self.stream.has_responses();
            let length =
                if is_short { BatchLength::Usual } else { longest.min(self.stream.batch_length()) };
            self.stream.set_batch_length(length);
        }
        while batches_left > 0 {
            match self.transmit_batch(services) {
                TransmitStep::Idle => break,
                TransmitStep::Fin => {
                    if let Err(error) = self.socket.shutdown() {
                        self.on_lost_sending(error, services);
                        break;
                    }
                    batches_left -= 1;
                }
                TransmitStep::Sent { outcome: SendOutcome::Sent { full: true, .. }, .. } => {
                    self.stream.set_batch_length(BatchLength::Usual);
                    wants_write = true;
                    break;
                }
                TransmitStep::Sent { outcome: SendOutcome::Sent { bytes, .. }, more } => {
                    if bytes >= LONG_AFTER {
                        self.stream.set_batch_length(longest);
                    }
                    if !more && !self.stream.is_ending() {
                        break;
                    }
                    uncounted += bytes;
                    if uncounted >= FULL_BATCH {
                        uncounted = 0;
                        batches_left -= 1;
                    }
                    wants_write = batches_left == 0 || services.moved >= ROUND_BYTES;
                    if wants_write {
                        break;
                    }
                }
                TransmitStep::Sent { outcome: SendOutcome::SourceGone, .. } => {
                    self.with_stream(services, |stream, host, now| {
                        stream.handle_source_gone(host, now);
                    });
                    // A Terminate may have to be sent.
                    batches_left -= 1;
                    wants_write = batches_left == 0;
                }
                TransmitStep::Sent { outcome: SendOutcome::Lost(error), .. } => {
                    self.on_lost_sending(error, services);
                    break;
                }
            }
        }
        if let Some(buffer) = self.stream.take_buffer() {
            services.pool.give(buffer);
        }
        if self.stream.is_over() {
            return;
        }
        if let Err(error) = self.set_interest(self.wants_reads(), wants_write) {
            self.on_lost(&error, services);
        }
    }

    /// Builds the stream's next batch and sends it.
    #[inline]
    fn transmit_batch(&mut self, services: &mut Services) -> TransmitStep {
        self.stream.give_buffer(|| services.pool.take());
        self.stream.set_emss(self.socket.emss());
        let socket = &mut *self.socket;
        let now = services.now;
        let mut host = QpHost::new(self.qp.as_deref(), &mut self.state, services);
        let mut moved = 0;
        let step = match self.stream.poll_transmit(&mut host, now) {
            None => TransmitStep::Idle,
            Some(Transmit::Fin) => TransmitStep::Fin,
            Some(Transmit::Bytes(batch)) => {
                // The stream has released the locks and pins with which it built the batch, so they
                // are not held during the system call.
                debug_assert!(host.is_released());
                let (outcome, more) = (send(socket, &batch), batch.has_more());
                if let SendOutcome::Sent { bytes, .. } = outcome {
                    moved = bytes;
                    self.liveness.on_sent(self.dead_after, now);
                    self.stream.handle_sent(&mut host, bytes, now);
                }
                TransmitStep::Sent { outcome, more }
            }
        };
        drop(host);
        services.moved += moved;
        self.take_events(services);
        step
    }
}

/// Sends `batch` until the socket accepts no more, with several system calls if it has more than
/// [`MAX_PIECES`] pieces.
fn send(socket: &mut dyn uiw_llp::TransportStream, batch: &Batch<'_, Span>) -> SendOutcome {
    let (mut sent, mut left, mut skip) = (0, batch.len(), 0);
    while left > 0 {
        let outcome = match batch.single() {
            Some(bytes) => socket.send(&[IoVec::from(bytes)]).map(|taken| (taken, bytes.len())),
            None => match send_pieces(socket, batch, skip) {
                Some(outcome) => outcome,
                None => return SendOutcome::SourceGone,
            },
        };
        skip += MAX_PIECES;
        match outcome {
            Ok((taken, offered)) => {
                sent += taken;
                left -= taken as u64;
                if taken < offered {
                    return SendOutcome::Sent { bytes: sent, full: true };
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return SendOutcome::Sent { bytes: sent, full: true };
            }
            // The program has unmapped a buffer after the CRC over it was computed. Bytes of that
            // FPDU that were sent before have been reported by the calls that sent them.
            Err(error) if is_fault(&error) && sent == 0 => return SendOutcome::SourceGone,
            // Reports the bytes sent by earlier system calls; the next call returns the error
            // again.
            Err(_) if sent > 0 => return SendOutcome::Sent { bytes: sent, full: true },
            Err(error) => return SendOutcome::Lost(error),
        }
    }
    SendOutcome::Sent { bytes: sent, full: false }
}

/// A piece of a batch, with its memory pinned.
enum BatchElement<'a> {
    Bytes(&'a [u8]),
    Memory(&'a PinnedSpan<'a>, Range<usize>),
}

/// Sends up to [`MAX_PIECES`] pieces of `batch`, after the first `skip`, with one system call.
///
/// Returns the number of bytes that the socket accepted and the number offered, or `None` if the
/// memory of a piece is gone. After an EFAULT it tries again, with copies of the pieces that the
/// program has protected, unless the failed attempt had as many copies already.
fn send_pieces(
    socket: &mut dyn uiw_llp::TransportStream,
    batch: &Batch<'_, Span>,
    skip: usize,
) -> Option<io::Result<(usize, usize)>> {
    let pieces = || batch.pieces().skip(skip).take(MAX_PIECES);
    // Pieces of the same memory are adjacent and share one pin.
    let mut pins: Vec<(&Span, PinnedSpan<'_>)> = Vec::new();
    for piece in pieces() {
        if let Piece::Memory { memory, .. } = piece
            && !pins.last().is_some_and(|(last, _)| std::ptr::eq(*last, memory))
        {
            pins.push((memory, memory.pin().ok()?));
        }
    }
    let elements = || {
        let mut pin = 0;
        pieces().map({
            let pins = &pins;
            move |piece| match piece {
                Piece::Bytes(bytes) => BatchElement::Bytes(bytes),
                Piece::Memory { memory, range } => {
                    if !std::ptr::eq(pins[pin].0, memory) {
                        pin += 1;
                    }
                    BatchElement::Memory(&pins[pin].1, range)
                }
            }
        })
    };
    let mut copies = Vec::new();
    loop {
        let mut copied = copies.iter().peekable();
        let mut vecs = Vec::with_capacity(batch.count().saturating_sub(skip).min(MAX_PIECES));
        let mut offered = 0;
        for (at, element) in elements().enumerate() {
            let vec = match (copied.next_if(|copy: &&(usize, Vec<u8>)| copy.0 == at), element) {
                (Some((_, copy)), _) => IoVec::from(&copy[..]),
                (None, BatchElement::Bytes(bytes)) => IoVec::from(bytes),
                (None, BatchElement::Memory(pin, range)) => pin.io_vec(range),
            };
            offered += vec.len();
            vecs.push(vec);
        }
        let result = socket.send(&vecs);
        if result.as_ref().is_err_and(is_fault) {
            let more = copy_protected(elements())?;
            if more.len() > copies.len() {
                copies = more;
                continue;
            }
        }
        return Some(result.map(|taken| (taken, offered)));
    }
}

/// Copies the elements that lie in memory whose pages the program has protected at any time
/// (`mprotect`), and returns each copy with the index of its element. Returns `None` if the memory
/// of an element is gone.
///
/// A system call fails with EFAULT on protected pages; [`PinnedSpan::copy_to_vec`] can read them
/// nevertheless.
fn copy_protected<'a>(
    elements: impl Iterator<Item = BatchElement<'a>>,
) -> Option<Vec<(usize, Vec<u8>)>> {
    let mut copies = Vec::new();
    for (at, element) in elements.enumerate() {
        if let BatchElement::Memory(pin, range) = element
            && pin.is_protected(&range)
        {
            let mut copy = Vec::new();
            pin.copy_to_vec(range, &mut copy).ok()?;
            copies.push((at, copy));
        }
    }
    Some(copies)
}

fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EFAULT)
}
