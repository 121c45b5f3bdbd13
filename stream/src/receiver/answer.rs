//! Responses to Reads and atomics of this end: matched with the oldest outstanding request, placed,
//! and completed.

use super::{Receiver, Segment};
use crate::error::ConnError;
use crate::host::{ATOMIC_BYTES, ResponsePart, StreamHost, Traffic};
use crate::reads::{Outstanding, OutstandingKind, PLACEHOLDER, ReadOrigin};
use crate::shared::Shared;
use uiw_ddp::{Tagged, TaggedError};
use uiw_rdmap::{AtomicResponse, RdmapError};

impl Receiver {
    /// Handles a segment of the response to the oldest Read of this end.
    pub(super) fn read_response<H: StreamHost>(
        &mut self,
        header: &Tagged,
        segment: &Segment<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<(), ConnError> {
        let payload = segment.payload();
        let len = payload.len() as u32;
        let (stag, to) = (header.stag, header.to);
        let sink = match shared.reads.outstanding.front() {
            Some(Outstanding { origin: ReadOrigin::Request(_), .. }) | None => shared.reads.sink,
            Some(_) => PLACEHOLDER.stag,
        };
        let unexpected = || segment.fault(TaggedError::InvalidStag { stag });
        let front = shared.reads.outstanding.front_mut().ok_or_else(unexpected)?;
        let OutstandingKind::Read { sink_to, len: wanted, received } = &mut front.kind else {
            return Err(unexpected());
        };
        let expected_to = *sink_to + u64::from(*received);
        // RFC 5040 section 5.2.1: STag and TO of an empty response are not checked.
        let checked = *wanted > 0 || len > 0;
        if checked && stag != sink {
            return Err(unexpected());
        }
        if checked && (to != expected_to || len > *wanted - *received)
            || header.last != (*received + len == *wanted)
        {
            return Err(segment.fault(TaggedError::BaseOrBounds { stag, to, len }));
        }
        let offset = *received;
        *received += len;
        if len > 0
            && !shared.detached
            && let ReadOrigin::Request(id) = front.origin
        {
            host.place_answer(id, offset, ResponsePart::Read(payload))
                .map_err(|error| ConnError::of_request(id, error))?;
            host.count(Traffic::ReadReceived, header.last.into(), len.into());
        }
        if header.last { Self::answered(shared, host) } else { Ok(()) }
    }

    pub(super) fn atomic_response<H: StreamHost>(
        response: &AtomicResponse,
        segment: &Segment<'_>,
        shared: &mut Shared,
        host: &mut H,
    ) -> Result<(), ConnError> {
        let kind = OutstandingKind::Atomic { request_id: response.request_id };
        let front = shared.reads.outstanding.front().filter(|front| front.kind == kind);
        let Some(&Outstanding { origin: ReadOrigin::Request(id), .. }) = front else {
            let request_id = response.request_id;
            return Err(segment.fault(RdmapError::UnexpectedAtomicResponse { request_id }));
        };
        if !shared.detached {
            host.place_answer(id, 0, ResponsePart::Atomic(response.original))
                .map_err(|error| ConnError::of_request(id, error))?;
            host.count(Traffic::AtomicReceived, 1, ATOMIC_BYTES.into());
        }
        Self::answered(shared, host)
    }

    /// Handles the complete response to the oldest Read or atomic.
    fn answered<H: StreamHost>(shared: &mut Shared, host: &mut H) -> Result<(), ConnError> {
        let Some(&Outstanding { origin, invalidate, .. }) = shared.reads.outstanding.front() else {
            return Ok(());
        };
        shared.reads.end_outstanding();
        shared.reads.lacks_credit = false;
        match origin {
            // Requests of the peer that arrived before its response to the drain Read are still
            // answered.
            ReadOrigin::Drain => {
                shared.fin.wanted = true;
                Ok(())
            }
            _ if shared.detached => Ok(()),
            ReadOrigin::Rtr => Ok(()),
            ReadOrigin::Ack(upto) => {
                shared.reads.acks.answered(upto);
                host.acknowledged(upto).map_err(|error| ConnError::Local { request: None, error })
            }
            ReadOrigin::Request(id) => {
                host.answered(id, invalidate).map_err(|error| ConnError::of_request(id, error))
            }
        }
    }
}
