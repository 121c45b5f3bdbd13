//! iWARP verbs in user space: devices, protection domains, memory, queues, queue pairs, and the
//! connection manager.
//!
//! ```text
//!   application            engine                                        wire
//!   post_send  ─► send_queue ─► conn ─► stream::Sender: rdmap ─► ddp ─► mpa ─► llp
//!   poll_cq    ◄─ cq ◄─ mem ◄─── conn ◄─ stream::Receiver: rdmap ◄─ ddp ◄─ mpa ◄─ llp
//! ```
//!
//! The types at this level are the *raw layer*. They correspond one to one to verbs, and the caller
//! is responsible for the memory rules ([`Qp::post_send`] is `unsafe`). The caller's thread drives
//! a device while it polls, posts or waits; otherwise a background thread does.

#![warn(missing_debug_implementations)]

mod close_reason;
mod comp_channel;
mod conn;
mod cq;
mod device;
mod driver;
mod error;
mod event;
mod faults;
pub mod integration;
mod lingering;
mod mr;
mod notify;
mod options;
mod pd;
mod poll_waiter;
mod qp;
mod srq;
mod suspect;
mod thread;
mod ud;
mod wc;
mod wr;

pub mod cm;

pub use comp_channel::CompChannel;
pub use cq::{Arm, Cq, CqConfig};
pub use device::Device;
pub use error::{Error, PostError, Result};
pub use event::AsyncEvent;
pub use faults::{Call, CmCall, CmFault, FaultPlan, FaultPlanError, FaultTrigger};
pub use mr::{FastMr, RawMr, RawMw, RemoteMr};
pub use notify::EventQueue;
pub use options::{ConnConfig, DeviceConfig, Limits, PeerProfile, Progress, ProgressHooks};
pub use pd::Pd;
pub use poll_waiter::{PollWaiter, ShardSet};
pub use qp::{PathInfo, Qp, QpAttr, QpCap, QpInit, QpState};
pub use srq::{Srq, SrqAttr};
pub use suspect::Suspect;
pub use ud::{AddressHandle, DatagramCounts, DatagramPort, Destination};
pub use wc::{Wc, WcOpcode, WcStatus, WireReason};
pub use wr::{Bind, FastRegister, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge};

pub use uiw_counters as counters;
pub use uiw_ddp::STag;
pub use uiw_llp::TransportConfig;
pub use uiw_mem::{Access, Memory, WindowType};
pub use uiw_mpa::startup::{Negotiated, Revision, Rtr, RtrKinds};
pub use uiw_rdmap::TerminateEncoding;
pub use uiw_stream::{CapabilityExchange, FpduSize, StableTx};
