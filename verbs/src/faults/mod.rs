//! Faults of the verbs: calls that fail, completions with an error status, asynchronous events and
//! slow calls, for tests of a program's own handling of errors. A plan contains the rules for these
//! faults. The calls that match a rule are counted for each device.
//!
//! Faults of the byte stream are those of `uiw_impair::fault`.

mod active;
mod text;
mod when;

pub(crate) use active::Faults;
pub use text::FaultPlanError;
pub use when::FaultTrigger;

use crate::error::Error;
use crate::event::AsyncEvent;
use crate::wc::{WcOpcode, WcStatus};
use std::net::SocketAddr;
use std::time::Duration;

/// Planned faults of a device. The text form is a list of rules with commas:
///
/// | rule | effect |
/// |---|---|
/// | `call:CALL@WHEN=ERRNO` | the call is refused with that error number; nothing else happens |
/// | `wc:OPERATION@WHEN=STATUS` | the request ends with that status, its queue pair in the error state |
/// | `event:EVENT@TIME` | the asynchronous event is raised on every handle of the device |
/// | `cm:CALL@WHEN=OUTCOME` | the call succeeds, and its event reports the outcome |
/// | `slow:CALL@WHEN=TIME` | the calling thread sleeps before the call |
/// | `seed=N` | seed of the chances; the same seed gives the same choices. Default: 0 |
///
/// `WHEN`: see [`FaultTrigger`]; without `@WHEN` the rule is for every call. `TIME`: `250us`,
/// `5ms`, `2s`, `1m`.
///
/// Calls of `call` and `slow`: those of [`Call`]; `slow` has `poll_cq` as well. Calls of `cm`:
/// `connect`, `resolve_addr`, `resolve_route`. Operations: `send`, `write`, `read`, `atomic`,
/// `recv`, `any`. Statuses, events and error numbers have their names in C without `IBV_WC_` and
/// `IBV_EVENT_`. If several rules for one call are due, the first one applies.
///
/// ```
/// # mod uiw { pub use uiw_verbs as raw; }
/// use uiw::raw::{Device, DeviceConfig, Error, FaultPlan};
/// let plan: FaultPlan = "call:alloc_pd@2=ENOMEM".parse()?;
/// let device = Device::open_with(DeviceConfig::default().faults(plan))?;
/// device.alloc_pd()?;
/// assert!(matches!(device.alloc_pd(), Err(Error::Injected { call: "alloc_pd", .. })));
/// device.alloc_pd()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<FaultRule>,
    seed: u64,
}

/// One rule, with its text for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FaultRule {
    fault: FaultAction,
    when: FaultTrigger,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FaultAction {
    Call { call: Call, errno: i32 },
    Completion { of: FaultyOperation, status: WcStatus },
    Event { event: AsyncEvent, at: Duration },
    Cm { call: CmCall, outcome: CmFault },
    Slow { call: Call, time: Duration },
}

/// Call that a [`FaultPlan`] can refuse or delay.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Device::alloc_pd`](crate::Device::alloc_pd), `ibv_alloc_pd`.
    AllocPd,
    /// Every registration; `ibv_reg_mr` and those like it.
    RegMr,
    /// [`Device::create_cq`](crate::Device::create_cq), `ibv_create_cq`.
    CreateCq,
    /// [`Pd::create_qp`](crate::Pd::create_qp), `ibv_create_qp`.
    CreateQp,
    /// [`Pd::create_srq`](crate::Pd::create_srq), `ibv_create_srq`.
    CreateSrq,
    /// `ibv_modify_qp`. No call of the Rust API is affected.
    ModifyQp,
    /// A chain of requests to a send queue.
    PostSend,
    /// A chain of receives to a queue pair.
    PostRecv,
    /// A chain of receives to a shared receive queue.
    PostSrqRecv,
    /// A poll of a completion queue, which cannot be refused.
    PollCq,
}

/// Connection manager call whose outcome is reported as an event.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmCall {
    /// [`cm::connect`](crate::cm::connect), `rdma_connect`.
    Connect,
    /// `rdma_resolve_addr`.
    ResolveAddr,
    /// `rdma_resolve_route`.
    ResolveRoute,
}

/// Planned outcome of a [`CmCall`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmFault {
    /// The peer rejects the connection.
    Rejected,
    /// No program listens.
    Refused,
    /// The peer does not answer.
    Unreachable,
    /// The connection is lost while it is set up.
    ConnectError,
    /// Error event of `resolve_addr`.
    AddrError,
    /// Error event of `resolve_route`.
    RouteError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultyOperation {
    Send,
    Write,
    Read,
    Atomic,
    Recv,
    Any,
}

impl Call {
    /// Returns the name in the text of a plan.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllocPd => "alloc_pd",
            Self::RegMr => "reg_mr",
            Self::CreateCq => "create_cq",
            Self::CreateQp => "create_qp",
            Self::CreateSrq => "create_srq",
            Self::ModifyQp => "modify_qp",
            Self::PostSend => "post_send",
            Self::PostRecv => "post_recv",
            Self::PostSrqRecv => "post_srq_recv",
            Self::PollCq => "poll_cq",
        }
    }
}

impl CmFault {
    /// Returns the error in the event of a connection to `peer` with this `timeout`.
    pub(crate) fn error(self, peer: SocketAddr, timeout: Duration) -> Error {
        match self {
            Self::Rejected => Error::Rejected {
                peer,
                private_data: Vec::new(),
                peer_ird_ord: None,
                markers_asked: false,
            },
            Self::Refused => Error::Refused { peer },
            Self::Unreachable => Error::TimedOut { peer, awaits_reply: false, after: timeout },
            Self::ConnectError | Self::AddrError | Self::RouteError => {
                Error::Lost { peer, source: std::io::ErrorKind::ConnectionReset.into() }
            }
        }
    }

    /// Returns whether `call` can have this outcome.
    const fn is_of(self, call: CmCall) -> bool {
        match self {
            Self::Rejected | Self::Refused | Self::Unreachable | Self::ConnectError => {
                matches!(call, CmCall::Connect)
            }
            Self::AddrError => matches!(call, CmCall::ResolveAddr),
            Self::RouteError => matches!(call, CmCall::ResolveRoute),
        }
    }
}

impl FaultyOperation {
    const fn includes(self, opcode: WcOpcode) -> bool {
        match self {
            Self::Any => true,
            Self::Send => matches!(opcode, WcOpcode::Send),
            Self::Write => matches!(opcode, WcOpcode::Write),
            Self::Read => matches!(opcode, WcOpcode::Read),
            Self::Atomic => {
                matches!(opcode, WcOpcode::CmpSwap | WcOpcode::FetchAdd | WcOpcode::AtomicWrite)
            }
            Self::Recv => matches!(opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm),
        }
    }
}
