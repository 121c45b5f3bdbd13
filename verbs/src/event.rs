//! Asynchronous events: what happened to an object outside of any request.

use crate::notify::{EventQueue, Wakes};
use crate::wc::WireReason;
use uiw_datagram::Qpn;

/// Something that happened to an object of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The port does not work any more. The C libraries raise this and the next three when a
    /// network interface changes; in other programs only a [`FaultPlan`](crate::FaultPlan) does.
    PortError,
    /// The port works again.
    PortActive,
    /// An address of the port has changed.
    GidChange,
    /// The device does not work any more.
    DeviceFatal,
    /// The completion queue overflowed; completions were lost and its queue pairs are in error.
    CqError {
        /// Number.
        cq: u32,
    },
    /// A fatal error of a connection; `reason` says what, in the wire's terms where it has one.
    QpFatal {
        /// Queue pair number.
        qp_num: u32,
        /// The wire's reason.
        reason: Option<WireReason>,
    },
    /// The peer sent something that may not be sent.
    QpRequestError {
        /// Queue pair number.
        qp_num: u32,
        /// The wire's reason.
        reason: Option<WireReason>,
    },
    /// The peer touched memory it may not touch.
    QpAccessError {
        /// Queue pair number.
        qp_num: u32,
        /// The wire's reason.
        reason: Option<WireReason>,
    },
    /// The send queue is drained: the transition to SQD is complete.
    SqDrained {
        /// Queue pair number.
        qp_num: u32,
    },
    /// The last receive that a queue pair in error had taken from a shared receive queue has been
    /// returned.
    LastWqeReached {
        /// Queue pair number.
        qp_num: u32,
    },
    /// The shared receive queue fell below its limit.
    SrqLimitReached {
        /// Number.
        srq: u32,
    },
}

impl AsyncEvent {
    /// Number of the queue pair that it is about.
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

    /// Name in log lines.
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

    /// The queue pair is gone: what was not asked for goes with it.
    pub(crate) fn forget_qp(&self, gone: u32) {
        self.remove_if(|event| event.qp_num() == Some(gone));
    }
}
