//! Messages on the queues of the stream itself: Read Request, Atomic Request, Terminate, Atomic
//! Response.

use super::{CONTROL_LEN, Receiver, Segment};
use crate::error::ConnError;
use crate::host::StreamHost;
use crate::reads::{InboundKind, InboundRead};
use crate::shared::Shared;
use alloc::boxed::Box;
use uiw_ddp::{Untagged, UntaggedError};
use uiw_rdmap::{AtomicRequest, AtomicResponse, Opcode, RdmapError, ReadRequest, Terminate};

impl Receiver {
    pub(super) fn control<H: StreamHost>(
        &mut self,
        header: &Untagged,
        opcode: Opcode,
        segment: &Segment<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<(), ConnError> {
        let payload = segment.payload();
        let len = payload.len() as u32;
        let qn = header.qn as usize & 3;
        let queue = &mut self.queues[qn];
        let place =
            queue.check(header, len, Some(CONTROL_LEN as u32)).map_err(|e| segment.fault(e))?;
        let place = place as usize;
        let is_whole = place == 0 && header.last;
        if !is_whole {
            self.control[qn][place..place + payload.len()].copy_from_slice(&payload);
        }
        let Some(message) = queue.placed(header, len) else { return Ok(()) };
        let assembled;
        let bytes = if is_whole {
            &payload[..]
        } else {
            assembled = self.control[qn];
            &assembled[..message.len as usize]
        };
        // An unreliable connection supports only Sends and Writes. Empty Reads are used to set it
        // up and to end it.
        let refused = || segment.fault(RdmapError::UnexpectedOpcode { opcode: opcode.raw() });
        match opcode {
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(bytes).map_err(|error| segment.fault(error))?;
                if request.len > 0 && host.is_unreliable() {
                    return Err(refused());
                }
                if request.len > 0 || shared.first_fpdu {
                    self.only_rtr = false;
                }
                self.add_inbound(InboundKind::Read(request), segment, shared)
            }
            Opcode::AtomicRequest => {
                self.only_rtr = false;
                if host.is_unreliable() {
                    return Err(refused());
                }
                let request = AtomicRequest::parse(bytes).map_err(|error| segment.fault(error))?;
                self.add_inbound(InboundKind::Atomic(request), segment, shared)
            }
            Opcode::AtomicResponse => {
                let response =
                    AtomicResponse::parse(bytes).map_err(|error| segment.fault(error))?;
                Self::atomic_response(&response, segment, shared, host)
            }
            _ => {
                let refuses_reply = !shared.initiator && !shared.first_fpdu;
                let (terminate, encoding) = Terminate::parse_at(bytes, refuses_reply)
                    .map_err(|error| segment.fault(error))?;
                Err(ConnError::Terminated(Box::new(terminate), encoding))
            }
        }
    }

    /// Adds a Read or atomic of the peer to the queue of those that the sending half answers.
    fn add_inbound(
        &self,
        kind: InboundKind,
        segment: &Segment<'_>,
        shared: &mut Shared,
    ) -> Result<(), ConnError> {
        if shared.fin.sent || shared.discarded && !shared.caps.sends_placement_acks() {
            // The peer learns from the FIN that no response will come.
            return Ok(());
        }
        if !shared.reads.has_inbound_room() {
            // The peer has exceeded the negotiated IRD: queue 1 has no buffer for the request (RFC
            // 5041 section 7.1).
            let msn = self.queues[1].expected_msn().wrapping_sub(1);
            return Err(segment.fault(UntaggedError::NoBuffer { msn }));
        }
        shared.reads.add_inbound(InboundRead { kind, segment: segment.quoted() });
        Ok(())
    }
}
