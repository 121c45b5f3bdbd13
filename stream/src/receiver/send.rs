//! Sends and Immediate Data, the messages that take a receive.

use super::{PlacementResult, Receiver, Segment};
use crate::error::{ConnError, LocalError};
use crate::host::{ReceiveError, ReceivedKind, ReceivedMessage, StreamHost, Traffic};
use crate::shared::Shared;
use uiw_ddp::{Untagged, UntaggedError};
use uiw_rdmap::{DeliveryEffects, ImmediateData, Opcode, ProtectionError};

impl Receiver {
    /// Handles a segment of a Send or of Immediate Data on queue 0.
    #[inline]
    pub(super) fn send<H: StreamHost>(
        &mut self,
        header: &Untagged,
        opcode: Opcode,
        segment: &Segment<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<PlacementResult, ConnError> {
        let payload = segment.payload();
        let len = payload.len() as u32;
        // Order and offset are checked first, because an invalid segment must not take a receive.
        let offset = self.queues[0]
            .check(header, len, Some(u32::MAX))
            .map_err(|error| segment.fault(error))?;
        if self.is_rtr_send(header, opcode, len, shared) {
            self.queues[0].placed(header, 0);
            return Ok(PlacementResult::Placed);
        }
        if shared.detached {
            // The message is discarded, as by an RNIC after its queue pair was destroyed.
            self.queues[0].placed(header, len);
            shared.discarded = true;
            return Ok(PlacementResult::Placed);
        }
        let immediate = matches!(opcode, Opcode::Immediate | Opcode::ImmediateSe);
        if self.discards.untagged && self.discards.takes_untagged(immediate) {
            self.discard(header, len, shared);
            return Ok(PlacementResult::Placed);
        }
        let room = match self.receiving {
            Some(room) => room,
            None => match host.begin_receive() {
                Some(room) => {
                    self.discards.waits_no_more = false;
                    *self.receiving.insert(room)
                }
                None if host.is_unreliable() && !self.may_wait(shared) => {
                    self.discard(header, len, shared);
                    return Ok(PlacementResult::Placed);
                }
                None => return Ok(PlacementResult::NoReceive),
            },
        };
        self.only_rtr = false;
        let buffer = if immediate { ImmediateData::LEN as u32 } else { room };
        // `check` has excluded an overflow.
        let message = offset + len;
        if message > buffer {
            if !immediate && host.is_unreliable() {
                // The receive is used for the next message.
                self.discard(header, len, shared);
                return Ok(PlacementResult::Placed);
            }
            if !immediate {
                self.receiving = None;
                host.fail_receive(ReceiveError::TooLong { message });
            }
            return Err(segment.fault(UntaggedError::TooLong { message, buffer }));
        }
        if immediate {
            let place = offset as usize;
            self.control[0][place..place + payload.len()].copy_from_slice(&payload);
        } else if let Err(error) = host.place(offset, payload) {
            if error == LocalError::Protection {
                self.receiving = None;
                host.fail_receive(ReceiveError::Protection);
            }
            return Err(ConnError::Local { request: None, error });
        }
        host.count(
            Traffic::SendReceived,
            header.last.into(),
            if immediate { 0 } else { len.into() },
        );
        if let Some(delivered) = self.queues[0].placed(header, len) {
            self.deliver(header, opcode, delivered.len, segment, shared, host)?;
        }
        Ok(PlacementResult::Placed)
    }

    /// Discards a segment of an unreliable message, and the rest of the message.
    #[cold]
    fn discard(&mut self, header: &Untagged, len: u32, shared: &mut Shared) {
        self.only_rtr = false;
        self.queues[0].placed(header, len);
        self.discards.end_untagged(header.last);
        if header.last {
            self.last_write_len = 0;
        }
        self.message_placed(header.last, shared);
    }

    /// Returns whether a Send is the RTR message, which takes no receive (RFC 6581 section 9.2): a
    /// zero-length Send as the first FPDU of the initiator, if the Reply has offered that kind.
    fn is_rtr_send(&self, header: &Untagged, opcode: Opcode, len: u32, shared: &Shared) -> bool {
        let rtr = !shared.initiator
            && !shared.first_fpdu
            && self.negotiated.as_ref().is_some_and(|n| n.peer_to_peer && n.rtr_kinds.send);
        rtr && len == 0 && header.last && opcode == Opcode::Send
    }

    /// Completes the receive of a message on queue 0.
    fn deliver<H: StreamHost>(
        &mut self,
        header: &Untagged,
        opcode: Opcode,
        len: u32,
        segment: &Segment<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<(), ConnError> {
        let awaits_ack = shared.sends_placement_acks();
        // Immediate Data reports the length of the Write directly before it, so every other message
        // on this queue resets the length.
        let write_len = core::mem::take(&mut self.last_write_len);
        let DeliveryEffects { solicited, invalidate: invalidated, imm } =
            DeliveryEffects::new(opcode, header);
        let kind = match opcode {
            Opcode::Immediate | Opcode::ImmediateSe => {
                let ImmediateData([a, b, c, d, ..]) =
                    ImmediateData::parse(&self.control[0][..len as usize])
                        .map_err(|e| segment.fault(e))?;
                ReceivedKind::Immediate { imm: u32::from_be_bytes([a, b, c, d]), write_len }
            }
            _ => ReceivedKind::Send { len, imm },
        };
        let message = ReceivedMessage { kind, solicited, invalidated, awaits_ack };
        if let Some(stag) = message.invalidated
            && (host.is_unreliable() || host.invalidate(stag).is_err())
        {
            return Err(segment.fault(ProtectionError::CannotInvalidate { stag }));
        }
        self.receiving = None;
        if awaits_ack {
            shared.placement.message_received();
        }
        host.receive(message).map_err(|error| ConnError::Local { request: None, error })
    }
}
