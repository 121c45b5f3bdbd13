//! Reads and Atomics that wait for their responses.

use std::collections::VecDeque;

use uiw_ddp::STag;

use super::event::Event;

/// Maximum number of Reads and Atomics that are remembered: twice the maximum IRD.
const MAX_OUTSTANDING: usize = 32_768;

/// A Read or an Atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutstandingRequest {
    Read { sink_stag: STag, sink_to: u64, len: u32 },
    Atomic { request_id: u32 },
}

/// Requests that one end has sent to the other.
#[derive(Debug, Default)]
pub(super) struct OutstandingRequests {
    requests: VecDeque<OutstandingRequest>,
    /// IRD of the peer, if its startup frame contained it.
    pub(super) limit: Option<u16>,
    /// True after missing bytes or a wrong CRC, which may hide a request or a response. Departures
    /// are then not reported.
    pub(super) uncertain: bool,
}

/// State of a Read Response, including its latest segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartialResponse {
    /// STag of its first segment.
    pub(super) stag: STag,
    pub(super) to: u64,
    pub(super) length: u64,
    pub(super) segments: u64,
    pub(super) last: bool,
    /// True if part of it is missing.
    pub(super) partial: bool,
}

impl OutstandingRequests {
    pub(super) fn add(&mut self, request: OutstandingRequest, out: &mut Vec<Event>) {
        if self.requests.len() < MAX_OUTSTANDING {
            self.requests.push_back(request);
        }
        let count = self.requests.len();
        if let Some(limit) = self.limit
            && !self.uncertain
            && count > usize::from(limit)
        {
            let what = format!("{count} Reads and Atomics outstanding, the peer's IRD is {limit}");
            out.push(Event::departure("RFC 5040 6.1", what));
        }
    }

    /// Compares a Read Response with the oldest outstanding Read. The last segment completes the
    /// Read.
    pub(super) fn read_response(&mut self, response: &PartialResponse, out: &mut Vec<Event>) {
        let reads = self.requests.iter().enumerate().find_map(|(at, request)| match *request {
            OutstandingRequest::Read { sink_stag, sink_to, len } => {
                Some((at, sink_stag, sink_to, u64::from(len)))
            }
            OutstandingRequest::Atomic { .. } => None,
        });
        let Some((at, sink_stag, sink_to, asked)) = reads else {
            if !self.uncertain && response.segments == 1 {
                out.push(Event::departure(
                    "RFC 5040 5.2.2",
                    "an RDMA Read Response without a request",
                ));
            }
            return;
        };
        let PartialResponse { stag, to, length, segments, last, partial } = *response;
        // STag and TO of a tagged segment without payload have no meaning (RFC 5041 section 5.2).
        if !self.uncertain && segments == 1 && length > 0 && (stag, to) != (sink_stag, sink_to) {
            let what = format!(
                "RDMA Read Response to STag {stag} TO {to:#x}, its request named STag {sink_stag} TO {sink_to:#x}"
            );
            out.push(Event::departure("RFC 5040 4.4", what));
        }
        if !self.uncertain && !partial && (length > asked || last && length != asked) {
            let what =
                format!("RDMA Read Response of {length} bytes, its request asked for {asked}");
            out.push(Event::departure("RFC 5040 5.2.1", what));
        }
        if last {
            self.requests.remove(at);
        }
    }

    pub(super) fn atomic_response(&mut self, request_id: u32, out: &mut Vec<Event>) {
        let at = self
            .requests
            .iter()
            .position(|request| *request == OutstandingRequest::Atomic { request_id });
        if let Some(at) = at {
            self.requests.remove(at);
        } else if !self.uncertain {
            let what = format!("an Atomic Response to request {request_id}, which was not sent");
            out.push(Event::departure("RFC 7306 5.2", what));
        }
    }
}
