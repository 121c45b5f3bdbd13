//! From the stream to the socket.

use super::{Conn, QpHost};
use crate::driver::Services;
use std::io;
use std::ops::Range;
use uiw_mem::{IoVec, PinnedSpan, Span};
use uiw_stream::{Batch, Piece, StreamHost, Transmit};

/// Pieces one system call is given: what Linux takes (UIO_MAXIOV).
const MAX_PIECES: usize = 1024;

/// The number is Linux's on every processor.
const EFAULT: i32 = 14;

/// Result of sending a batch.
enum SendOutcome {
    /// The socket took this many bytes.
    Sent {
        bytes: usize,
        full: bool,
    },
    /// Memory of an FPDU was deregistered or unmapped.
    SourceGone,
    Lost(io::Error),
}

/// Next action of the stream.
enum NextStep {
    Nothing,
    Fin,
    Sent { outcome: SendOutcome, more: bool },
}

impl Conn {
    /// Sends what is due, within the budget and as far as the socket takes it, and asks the stack for what is needed to go on.
    pub(super) fn transmit(&mut self, services: &mut Services) {
        self.transmit_turn(services);
        self.report_receives(services);
    }

    #[inline(always)]
    fn transmit_turn(&mut self, services: &mut Services) {
        if self.stream.is_connecting() || self.is_over() {
            return;
        }
        if !self.stream.is_open()
            && let Some(error) = self.lost_sending.take()
        {
            return self.on_lost(&error, services);
        }
        let mut write = false;
        let turn = if self.lost_sending.is_some() { 0 } else { services.turn };
        for round in 1..=turn {
            match self.transmit_batch(services) {
                NextStep::Nothing => break,
                NextStep::Fin => {
                    if let Err(error) = self.socket.shutdown() {
                        self.on_lost_sending(error, services);
                        break;
                    }
                }
                NextStep::Sent { outcome: SendOutcome::Sent { full: true, .. }, .. } => {
                    write = true;
                    break;
                }
                NextStep::Sent { outcome: SendOutcome::Sent { .. }, more } => {
                    if !more && !self.stream.is_ending() {
                        break;
                    }
                    write = round == turn;
                }
                NextStep::Sent { outcome: SendOutcome::SourceGone, .. } => {
                    self.with_stream(services, |stream, host, now| stream.handle_source_gone(host, now));
                }
                NextStep::Sent { outcome: SendOutcome::Lost(error), .. } => {
                    self.on_lost_sending(error, services);
                    break;
                }
            }
        }
        if let Some(buffer) = self.stream.take_buffer() {
            services.pool.give(buffer);
        }
        if self.is_over() {
            return;
        }
        if let Err(error) = self.want(self.reads(), write) {
            self.on_lost(&error, services);
        }
    }

    #[inline]
    fn transmit_batch(&mut self, services: &mut Services) -> NextStep {
        self.stream.give_buffer(|| services.pool.take());
        self.stream.set_emss(self.socket.emss());
        let socket = &mut *self.socket;
        let mut host = QpHost::new(self.qp.as_deref(), &mut self.state, &services.table, &mut services.wakes);
        let step = match self.stream.poll_transmit(&mut host, services.now) {
            None => NextStep::Nothing,
            Some(Transmit::Fin) => NextStep::Fin,
            Some(Transmit::Bytes(batch)) => {
                // What was locked or pinned for building is not held during the system call.
                host.release();
                let (outcome, more) = (send(socket, &batch), batch.has_more());
                if let SendOutcome::Sent { bytes, .. } = outcome {
                    services.moved += bytes;
                    self.liveness.on_sent(self.dead_after, services.now);
                    self.stream.handle_sent(&mut host, bytes, services.now);
                }
                NextStep::Sent { outcome, more }
            }
        };
        drop(host);
        self.take_events(services);
        step
    }
}

/// Gives the socket what it takes of `batch`.
fn send(socket: &mut dyn uiw_llp::TransportStream, batch: &Batch<'_, Span>) -> SendOutcome {
    let (mut sent, mut left, mut pieces) = (0, batch.len(), 0);
    while left > 0 {
        let outcome = match batch.single() {
            Some(bytes) => socket.send(&[IoVec::from(bytes)]).map(|taken| (taken, bytes.len())),
            None => match send_pieces(socket, batch, pieces) {
                Some(outcome) => outcome,
                None => return SendOutcome::SourceGone,
            },
        };
        pieces += MAX_PIECES;
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
            // A program has unmapped what was there when its CRC was computed. What is sent of it is reported by the calls that sent it.
            Err(error) if is_fault(&error) && sent == 0 => return SendOutcome::SourceGone,
            // What was sent before counts; the next call gives the error again.
            Err(_) if sent > 0 => return SendOutcome::Sent { bytes: sent, full: true },
            Err(error) => return SendOutcome::Lost(error),
        }
    }
    SendOutcome::Sent { bytes: sent, full: false }
}

/// A piece of a batch, and the pin of its memory.
enum BatchElement<'a> {
    Bytes(&'a [u8]),
    Memory(&'a PinnedSpan<'a>, Range<usize>),
}

/// Gives the socket as many pieces as one system call takes, behind the first `skip`: how many bytes it took, of how many. `None`:
/// the memory of a piece is gone.
fn send_pieces(
    socket: &mut dyn uiw_llp::TransportStream,
    batch: &Batch<'_, Span>,
    skip: usize,
) -> Option<io::Result<(usize, usize)>> {
    let pieces = || batch.pieces().skip(skip).take(MAX_PIECES);
    // Pieces of the same memory stand in a row and share a pin.
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
            let more = copies_of_protected(elements())?;
            if more.len() > copies.len() {
                copies = more;
                continue;
            }
        }
        return Some(result.map(|taken| (taken, offered)));
    }
}

/// The program's protections bind system calls, unlike [`PinnedSpan::copy_to_vec`]: copies of what it has protected at some time, each with the
/// position of its element. `None`: the memory of one is gone.
fn copies_of_protected<'a>(
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
