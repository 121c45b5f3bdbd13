//! iWARP in user space: RDMA over TCP, without RDMA hardware, kernel module or root.
//!
//! Both ends open a [`Device`], allocate a protection domain ([`Pd`]) and connect. Messages arrive
//! in the order in which they were sent. An [`Mr`] is a registered buffer for the program's own
//! operations; no peer can access it. A [`SharedMr`] is memory that peers can read and write, with
//! the rights that the program grants.
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
//! let server = std::thread::spawn(move || -> uiw::Result<()> {
//!     let connection = listener.accept()?;
//!     // Ends when the client closes the connection.
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
//! * The crate root: connections for async programs. They need no runtime; the feature `tokio` lets
//!   tokio's reactor drive a device.
//! * [`blocking`]: the same types for programs without a runtime. Each call blocks its thread.
//! * [`raw`]: the RDMA verbs themselves: queue pairs, completion queues, work requests, the
//!   connection manager.
//! * [`llp`]: the interface to the transport below the device (lower layer protocol). A program can
//!   choose the kernel's TCP, smoltcp over AF_XDP or AF_PACKET (`smol`), or its own stack.
//! * [`impair`]: injected faults and emulated network paths, for tests.
//! * [`counters`]: types of the snapshot that [`Device::counters`] returns, and files with
//!   published counters.
//! * [`stream`]: a single RDMAP stream without I/O, for programs that have their own network stack
//!   and event loop.
//!
//! # Features
//! * `tokio`: adds the module `with_tokio`, whose function `drive` lets tokio's reactor drive a
//!   device.
//! * `mio`: adds the module `with_mio`, which makes a device an event source for mio.
//! * `smoltcp`: adds the module `smol`, with smoltcp as the TCP stack, over AF_XDP or AF_PACKET.
//! * `tls`: adds `DeviceConfig::tls` and the module `tls`: TLS 1.3 between TCP and MPA, with mutual
//!   authentication.
//! * `bytes`: operations take `Bytes` and `BytesMut` as buffers, and a received message converts to
//!   `Bytes` without a copy.

#![warn(missing_debug_implementations)]

mod buf;
mod byte_stream;
#[cfg(feature = "bytes")]
mod bytes;
mod completions;
mod connection;
mod device;
mod dispatcher;
mod error;
mod handshakes;
mod listener;
mod message;
mod op;
mod pd;
mod settings;
mod shared;
mod waiting;

pub mod blocking;
pub mod raw;
#[cfg(feature = "mio")]
pub mod with_mio;
#[cfg(feature = "tokio")]
pub mod with_tokio;

pub use buf::{BufferError, IoBuf, IoBufMut, Mr};
pub use byte_stream::ByteStream;
pub use connection::Connection;
pub use device::Device;
pub use error::{Error, ErrorKind, Result};
pub use handshakes::AcceptFailure;
pub use listener::{Incoming, Listener};
pub use message::Message;
pub use op::{BufferOp, Op};
pub use pd::Pd;
pub use settings::ConnectionConfig;
pub use shared::{BoundWindow, SharedMr};

pub use uiw_counters::Snapshot;
pub use uiw_verbs::cm::{CloseReason, ConnInfo};
pub use uiw_verbs::{
    Access, AsyncEvent, CapabilityExchange, ConnConfig, DeviceConfig, EventQueue, FpduSize, Limits,
    PeerProfile, Progress, RemoteMr, Revision, RtrKinds, STag, StableTx, TransportConfig, WcStatus,
    WireReason,
};

/// Types of the snapshot that [`Device::counters`] returns, and files with published counters.
pub mod counters {
    pub use uiw_counters::{
        AddressCounts, ConnectionCounters, Count, CounterFile, DatagramQueuePair, Datagrams,
        Directions, Directory, DirectoryKind, DropReason, FileError, Operations, Owner,
        ProcessCounters, Publish, QueuePairCounters, RejectReason, ShardCounts, Snapshot,
        TerminateCount, TrafficClass, TransferCounts, TransferDirection, TransferResult, Transfers,
        WaitCounts,
    };
}

/// Injected faults and emulated network paths, for tests.
pub mod impair {
    pub use uiw_impair::fault::{FaultHooks, FaultStack, Faults, Flip};
    pub use uiw_impair::wan::{Counts, Direction, Profile, ProfileError};
    pub use uiw_impair::{Random, Split};
}

/// Transport below a device (lower layer protocol): the interface for your own stack, and the stack
/// that uses the kernel's TCP.
pub mod llp {
    pub use uiw_llp::{
        Clock, DatagramConfig, DatagramSocket, Event, Fingerprint, Incoming, Interest, Interface,
        ListenConfig, Multipath, OptionError, Outgoing, PeerIdentity, Readable, RecvBuf,
        RemainingBytes, StackExtensions, StreamChange, StreamExtensions, StreamInfo, Token,
        TransportConfig, TransportListener, TransportStack, TransportStream,
    };
    pub use uiw_mem::{IoVec, IoVecMut};

    /// Packet captures of a device's connections, for Wireshark and `uiw decode`.
    pub mod capture {
        pub use uiw_llp::capture::{CaptureStack, PcapConfig, PcapConfigError, PcapSink};
    }

    /// Queries about the kernel's TCP connections, by address (`NETLINK_SOCK_DIAG`).
    pub mod sock_diag {
        pub use uiw_llp::sock_diag::info;
    }

    /// Transport stack on the kernel's TCP.
    pub mod tcp {
        pub use uiw_llp::tcp::{TcpStack, TcpStream};
    }
}

/// Transport stack with smoltcp as its TCP, over AF_XDP or AF_PACKET.
#[cfg(feature = "smoltcp")]
pub mod smol {
    pub use uiw_smol::packet::PacketLink;
    pub use uiw_smol::pipe::{PipeLink, pipe};
    pub use uiw_smol::xdp::{XdpFeatures, XdpLink, XdpMode};
    pub use uiw_smol::{
        Capabilities, ConfigError, Frame, Link, Segmentation, SmolConfig, SmolStack, Spec,
        SpecError,
    };
}

/// A single RDMAP stream without I/O, for programs that have their own network stack and event
/// loop.
pub mod stream {
    pub use uiw_mpa::Verified;
    pub use uiw_rdmap::{AtomicRequest, TerminateReason};
    pub use uiw_stream::{
        AccessError, AffectedRequest, AtomicError, Batch, Capabilities, CapabilityExchange,
        ConnError, EstablishedStream, Event, FpduSize, FpduSizeError, LocalError, Op, Payload,
        PeerKind, Piece, QuotedSegment, RdmapConfig, RdmapStream, ReceiveError, ReceivedKind,
        ReceivedMessage, Remote, Request, ResponsePart, SourceGone, StableTx, StartupFailure,
        StreamEnd, StreamHost, Time, Traffic, Transmit, Wait,
    };
    pub use uiw_verbs::STag;
}

/// TLS 1.3 between TCP and MPA: keys, certificates and the stack.
///
/// ```
/// use uiw::tls::{PinnedKeys, SecretKey, Tls, TlsConfig};
/// use uiw::{ConnectionConfig, Device, DeviceConfig, blocking::{Connection, Listener}};
/// let keys = [SecretKey::generate()?, SecretKey::generate()?];
/// let device = |own: usize, name: &str| {
///     let mut pinned = PinnedKeys::default();
///     pinned.add(keys[1 - own].public_key(), name);
///     let tls = Tls::new(TlsConfig::raw_keys(&keys[own], pinned)?)?;
///     Ok::<_, Box<dyn std::error::Error>>(Device::open_with(DeviceConfig::default().tls(tls))?)
/// };
/// let (server, client) = (device(0, "the client")?, device(1, "the server")?);
/// let settings = ConnectionConfig::default();
/// let listener = Listener::bind(&server.alloc_pd()?, "127.0.0.1:0".parse()?, &settings)?;
/// let address = listener.local_addr();
/// let accepted = std::thread::spawn(move || listener.accept());
/// let connection = Connection::connect(&client.alloc_pd()?, address, &settings)?;
/// let identity = connection.info().peer_identity.as_ref().unwrap().to_string();
/// assert!(identity.starts_with("the server (SHA256:"));
/// # accepted.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "tls")]
pub mod tls {
    pub use uiw_tls::{
        CertificateDer, HANDSHAKE_TIMEOUT, KeyError, LineError, MAX_HANDSHAKES, PinnedKeys,
        PinnedLine, PublicKey, SecretKey, Tls, TlsConfig, TlsCounts, TlsError, TlsStack,
        read_certificates, read_protected,
    };
}
