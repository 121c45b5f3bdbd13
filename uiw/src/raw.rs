//! Raw layer, which corresponds directly to the RDMA verbs: queue pairs, completion queues, work requests, and the connection manager ([`cm`]).
//!
//! The caller is responsible for memory safety: see the `# Safety` sections.
//!
//! The raw forms of a device and of a protection domain are [`Device`] and [`Pd`], which [`crate::Device::as_raw`] and [`crate::Pd::as_raw`]
//! return. [`Error`] is the same type as [`crate::ErrorKind`].

pub use uiw_verbs::{
    Access, AddressHandle, Arm, AsyncEvent, Bind, Call, CapabilityExchange, CmCall, CmFault, CompChannel,
    ConnConfig, Cq, CqConfig, DatagramCounts, DatagramPort, Destination, Device, DeviceConfig, Error,
    EventQueue, FastMr, FastRegister, FaultPlan, FaultPlanError, FaultTrigger, FpduSize, Limits, Memory,
    Negotiated, Origin, Path, Pd, PeerProfile, PollWaiter, PostError, Progress, ProgressHooks, Qp, QpAttr,
    QpCap, QpInit, QpState, RawMr, RawMw, RecvWr, Remote, RemoteMr, Result, Revision, Rtr, RtrKinds, STag,
    SendFlags, SendOp, SendWr, Sge, ShardSet, Srq, SrqAttr, StableTx, Suspect, TransportConfig, Wc, WcOpcode,
    WcStatus, WindowType, WireReason,
};

/// Connection manager of the raw layer.
pub mod cm {
    pub use uiw_verbs::cm::{
        AwaitedRequest, CloseReason, CmChannel, CmEvent, CmEventKind, ConnHandle, ConnId, ConnInfo,
        ConnRequest, Listener, ListenerId, SidrHandle, SidrInfo, SidrListener, SidrRequest, abandon,
        accept_open, connect, connect_in_two_steps, connect_open, connect_self,
    };
}
