//! Low-level API that follows libibverbs: queue pairs, completion queues, work requests, and the
//! connection manager ([`cm`]).
//!
//! The caller must observe the rules for registered memory, which this layer does not enforce: see
//! the `# Safety` sections.
//!
//! [`Device`] and [`Pd`] differ from the types of the same name in the crate root, which return
//! them with [`crate::Device::as_raw`] and [`crate::Pd::as_raw`]. [`Error`] is
//! [`crate::ErrorKind`].

pub use uiw_verbs::{
    Access, AddressHandle, Arm, AsyncEvent, Bind, Call, CapabilityExchange, CmCall, CmFault,
    CompChannel, ConnConfig, Cq, CqConfig, DatagramCounts, DatagramPort, Destination, Device,
    DeviceConfig, Error, EventQueue, FastMr, FastRegister, FaultPlan, FaultPlanError, FaultTrigger,
    FpduSize, Limits, Memory, Negotiated, PathInfo, Pd, PeerProfile, PollWaiter, PostError,
    Progress, ProgressHooks, Qp, QpAttr, QpCap, QpInit, QpState, RawMr, RawMw, RecvWr, Remote,
    RemoteMr, Result, Revision, Rtr, RtrKinds, STag, SendFlags, SendOp, SendWr, Sge, ShardSet, Srq,
    SrqAttr, StableTx, Suspect, TerminateEncoding, TransportConfig, Wc, WcOpcode, WcStatus,
    WindowType, WireReason,
};

/// Connection manager of the raw layer.
pub mod cm {
    pub use uiw_verbs::cm::{
        AwaitedRequest, CloseReason, CmChannel, CmEvent, CmEventKind, ConnHandle, ConnId, ConnInfo,
        ConnRequest, Listener, ListenerId, SidrHandle, SidrInfo, SidrListener, SidrRequest,
        abandon, accept_open, connect, connect_in_two_steps, connect_open, connect_self,
    };
}
