//! iWARP in user space: RDMA over TCP, without RDMA hardware, kernel module or root.
//!
//! Both ends open a [`Device`], allocate a protection domain ([`Pd`]) and connect. A message arrives in the order of its Send; [`Mr`] is
//! memory that a peer can read or write where the program allows it.
//!
//! ```
//! use uiw::blocking::{Connection, Listener};
//! use uiw::{ConnectionConfig, Device};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pd = Device::open()?.alloc_pd()?;
//! let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
//! let address = listener.local_addr();
//!
//! let server = std::thread::spawn(move || -> Result<(), uiw::WcError> {
//!     let connection = listener.accept()?;
//!     // Until the client closes the connection.
//!     while let Some(request) = connection.recv()? {
//!         connection.send_copy(&request)?;
//!     }
//!     Ok(())
//! });
//!
//! let pd = Device::open()?.alloc_pd()?;
//! let connection = Connection::connect(&pd, address, &ConnectionConfig::default())?;
//! connection.send_copy(b"good day")?;
//! assert_eq!(connection.recv()?.as_deref(), Some(&b"good day"[..]));
//! connection.disconnect()?;
//! # server.join().unwrap()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//! * The root: connections for async programs. They need no runtime; feature `tokio` lets tokio's reactor drive a device.
//! * [`blocking`]: the same names, for programs without a runtime.
//! * [`raw`]: verbs one to one: queue pairs, completion queues, work requests, the connection manager.
//! * [`llp`]: the TCP underneath, exchangeable: the kernel's, smoltcp over AF_XDP or AF_PACKET (`smol`), one of your own.
//! * [`impair`]: faults and emulated paths, for tests.
//! * [`counters`]: what [`Device::counters`] returns, and files of them.
//! * [`stream`]: one RDMAP stream without I/O, for programs with a network stack and an event loop of their own.
//!
//! # Features
//! * `tokio`: the module `with_tokio`, whose `drive` makes tokio's reactor the driver of a device.
//! * `mio`: a device is an event source of mio's (`with_mio`).
//! * `smoltcp`: smoltcp as the TCP underneath, over AF_XDP or AF_PACKET (the module `smol`).
//! * `tls`: TLS 1.3 below MPA ([`DeviceConfig`]`::tls` and the module `tls`); both ends authenticate.
//! * `bytes`: `Bytes` and `BytesMut` are buffers of operations, and a received message becomes `Bytes` without a copy.

pub use uiw_impair as impair;
pub use uiw_llp as llp;
#[cfg(feature = "smoltcp")]
pub use uiw_smol as smol;
pub use uiw_stream as stream;
#[cfg(feature = "tls")]
pub use uiw_tls as tls;
pub use uiw_verbs::counters;
#[cfg(feature = "mio")]
pub use uiw_verbs::with_mio;
#[cfg(feature = "tokio")]
pub use uiw_verbs::with_tokio;
pub use uiw_verbs::{
    AcceptFailure, Access, BoundWindow, ByteStream, CapabilityExchange, ConnConfig, Connection,
    ConnectionConfig, Device, DeviceConfig, Error, FpduSize, Incoming, IoBuf, IoBufMut, Limits, Listener,
    Message, Mr, Op, OpError, Pd, PeerProfile, Progress, RegisterError, RemoteMr, Result, Revision, RtrKinds,
    SharedMr, StableTx, TransportConfig, Wc, WcError, WcOpcode, WcStatus, WireReason, blocking,
};

/// Verbs one to one: queue pairs, completion queues, work requests, and the connection manager ([`raw::cm`](uiw_verbs::cm)). The
/// memory rules are in the hands of the caller.
pub mod raw {
    pub use uiw_verbs::{
        AddressHandle, Arm, AsyncEvent, Bind, CompChannel, Cq, CqConfig, DatagramCounts, DatagramPort,
        Destination, EventQueue, FastMr, FastRegister, Memory, Negotiated, Origin, Path, PostError,
        ProgressHooks, Qp, QpAttr, QpCap, QpInit, QpState, RawMr, RawMw, RecvWr, Remote, Rtr, STag,
        SendFlags, SendOp, SendWr, Sge, Srq, SrqAttr, WindowType, cm,
    };
}
