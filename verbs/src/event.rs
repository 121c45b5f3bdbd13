//! Asynchronous events, which report changes of an object outside of any request.

use crate::notify::{EventQueue, Wakes};
use crate::wc::WireReason;
use uiw_datagram::Qpn;

/// Asynchronous event about an object of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The port no longer works. The C libraries raise this event and the next three when a network
    /// interface changes; in other programs only a [`FaultPlan`](crate::FaultPlan) does.
    PortError,
    /// The port works again.
    PortActive,
    /// An address of the port has changed.
    GidChange,
    /// The device no longer works.
    DeviceFatal,
    /// The completion queue has overflowed. Completions were lost, and its queue pairs are in the
    /// error state.
    CqError {
        /// Number of the completion queue.
        cq: u32,
    },
    /// A connection has failed. `reason` has the codes of the Terminate, if there was one.
    QpFatal {
        /// Queue pair number.
        qp_num: u32,
        /// Reason on the wire.
        reason: Option<WireReason>,
    },
    /// The peer has sent an invalid message.
    QpRequestError {
        /// Queue pair number.
        qp_num: u32,
        /// Reason on the wire.
        reason: Option<WireReason>,
    },
    /// The peer has accessed memory without permission.
    QpAccessError {
        /// Queue pair number.
        qp_num: u32,
        /// Reason on the wire.
        reason: Option<WireReason>,
    },
    /// The send queue is drained, so the transition to SQD is complete.
    SqDrained {
        /// Queue pair number.
        qp_num: u32,
    },
    /// The last receive that a failed queue pair had taken from a shared receive queue has
    /// completed.
    LastWqeReached {
        /// Queue pair number.
        qp_num: u32,
    },
    /// The number of receives in the shared receive queue fell below its limit.
    SrqLimitReached {
        /// Number of the shared receive queue.
        srq: u32,
    },
}

impl AsyncEvent {
    /// Returns the number of the queue pair that the event refers to.
    fn qp_num(&self) -> Option<u32> {
        match self {
            Self::QpFatal { qp_num, .. }
            | Self::QpRequestError { qp_num, .. }
            | Self::QpAccessError { qp_num, .. }
            | Self::SqDrained { qp_num }
            | Self::LastWqeReached { qp_num } => Some(*qp_num),
            Self::PortError
            | Self::PortActive
            | Self::GidChange
            | Self::DeviceFatal
            | Self::CqError { .. }
            | Self::SrqLimitReached { .. } => None,
        }
    }

    /// Returns the name used in log lines.
    fn name(&self) -> &'static str {
        match self {
            Self::PortError => "PortError",
            Self::PortActive => "PortActive",
            Self::GidChange => "GidChange",
            Self::DeviceFatal => "DeviceFatal",
            Self::CqError { .. } => "CqError",
            Self::QpFatal { .. } => "QpFatal",
            Self::QpRequestError { .. } => "QpRequestError",
            Self::QpAccessError { .. } => "QpAccessError",
            Self::SqDrained { .. } => "SqDrained",
            Self::LastWqeReached { .. } => "LastWqeReached",
            Self::SrqLimitReached { .. } => "SrqLimitReached",
        }
    }
}

impl EventQueue<AsyncEvent> {
    pub(crate) fn raise(&self, event: AsyncEvent, wakes: &mut Wakes) {
        let qp = event.qp_num().map(|number| tracing::field::display(Qpn::from_raw(number)));
        tracing::debug!(qp, kind = event.name(), "asynchronous event");
        self.push(event, wakes);
    }

    /// Removes the events of a destroyed queue pair that were not taken.
    pub(crate) fn forget_qp(&self, gone: u32) {
        self.remove_if(|event| event.qp_num() == Some(gone));
    }
}
