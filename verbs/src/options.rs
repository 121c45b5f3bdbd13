//! What a user can set: per device, per listener and per connection.

use crate::faults::FaultPlan;
use std::sync::Arc;
use std::time::Duration;
use uiw_counters::Publish;
use uiw_impair::fault::Faults;
use uiw_llp::capture::{PcapFile, PcapSink};
use uiw_mpa::startup::StartupConfig;

/// A departure from the RFCs for the sake of one kind of peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerProfile {
    /// None: the RFCs.
    #[default]
    Rfc,
    /// The Linux siw driver with `try_gso`: its private flag 0x08 is set in our Request and
    /// returned in our Reply, whereupon it sends FPDUs larger than a TCP segment. The stock driver
    /// has `try_gso` off and takes no notice.
    SiwGso,
}

/// Defines a type of options: a field, its default and a setter of each.
macro_rules! options {
    ($(#[$about:meta])* pub struct $of:ident {
        $($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:expr,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $of {
            $($(#[doc = $doc])+ pub $name: $kind,)*
        }

        impl Default for $of {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl $of {
            $($(#[doc = $doc])+
            #[must_use]
            pub fn $name(mut self, $name: $kind) -> Self {
                self.$name = $name;
                self
            })*
        }
    };
}

/// Definition of the connection options: calls `$callback` with `$before` and the fields, each with
/// its documentation, type and default.
///
/// [`ConnConfig`] and the configuration of a safe connection in the crate `uiw` have the same
/// setters by it.
#[macro_export]
macro_rules! connection_options {
    ($callback:ident, $($before:tt)*) => {
        $callback! { $($before)* {
            /// Highest MPA revision. Default: 2.
            revision: $crate::Revision = $crate::Revision::Two,
            /// Asks for CRC32C. Default: true. It is on if either side asks; there is no way to
            /// refuse (RFC 5044 section 7.1).
            crc: bool = true,
            /// Asks the peer to put Markers into what it sends here. Default: false.
            markers: bool = false,
            /// Peer-to-peer mode (RFC 6581 section 9.2): either side may send first. Revision 1
            /// cannot negotiate it: there an initiator sends a zero-length Read (else a zero-length
            /// Write: see `rtr`) before anything else, as some adapters require. Default: true.
            peer_to_peer: bool = true,
            /// RTR kinds offered. Default: all.
            rtr: $crate::RtrKinds = $crate::RtrKinds::ALL,
            /// Reads and atomics that the peer may have outstanding here. Default: 1,024; at most
            /// [`Limits::max_rd_atomic`]. Memory for them is taken when they come, and given back
            /// behind a burst.
            ird: u16 = 1024,
            /// Reads and atomics that this end may have outstanding. Default: 1,024; at most
            /// [`Limits::max_rd_atomic`], and never more than the peer's IRD, or 128 towards a peer
            /// that announces none.
            ord: u16 = 1024,
            /// FPDU size. Default: [`FpduSize::Auto`](crate::FpduSize::Auto).
            fpdu: $crate::FpduSize = $crate::FpduSize::Auto,
            /// The exchange of capabilities with uiw peers (`docs/wire-extensions.md`). Default:
            /// on.
            capabilities: $crate::CapabilityExchange = $crate::CapabilityExchange::On,
            /// A named departure from the RFCs, for one kind of peer. Default: none.
            profile: $crate::PeerProfile = $crate::PeerProfile::Rfc,
            /// Requests whose payload is copied before its CRC is computed, for callers that
            /// rewrite buffers in flight. Default: [`StableTx::Off`](crate::StableTx::Off).
            stable_tx: $crate::StableTx = $crate::StableTx::Off,
            /// Acknowledged completion: a Write or Send completes when a zero-length Read behind it
            /// has returned, or with the status of the peer's Terminate, instead of when TCP has
            /// taken its bytes. Success then says that the peer has placed it, and an error lands
            /// on the request that caused it; it costs a round trip. Needs an ORD of at least 1.
            /// Default: false.
            acknowledged: bool = false,
            /// A peer that closes in order while nothing of this end is under way, or whose queue
            /// pair enters the error state (Terminate: local catastrophic error), leaves the queue
            /// pair as it is, waiting for another connection: in RTS, its receives posted. So does
            /// InfiniBand, where a queue pair does not detect the other one's end. Default: false.
            outlives_peer: bool = false,
            /// Time for TCP and MPA set-up together. Default: 10 s.
            startup_timeout: std::time::Duration = std::time::Duration::from_secs(10),
            /// Time during which a refused TCP connection is retried, from the first refusal on: a
            /// program may announce its port before it listens. Default: zero, which is one
            /// attempt.
            refused_retry_time: std::time::Duration = std::time::Duration::ZERO,
            /// Time that an inbound Send may wait for a receive before the stream is terminated:
            /// zero is not at all, [`Duration::MAX`](std::time::Duration::MAX) for ever. While it
            /// waits nothing is read, so that the sender waits as on TCP. Default: 1 s with
            /// [`ConnConfig`], for ever with `uiw::ConnectionConfig`.
            no_receive_timeout: std::time::Duration = std::time::Duration::from_secs(1),
            /// Longest time of an orderly close, after which the connection is cut. Default: 5 s
            /// with [`ConnConfig`], 60 s with `uiw::ConnectionConfig`.
            close_timeout: std::time::Duration = std::time::Duration::from_secs(5),
            /// Falls back to MPA revision 1 when a peer closes or resets the connection on revision
            /// 2 before any Reply byte. Default: true.
            fallback: bool = true,
            /// The TCP connection. One that is accepted has been made with the listener's; only
            /// another congestion control can still be had then. Default:
            /// [`TransportConfig::default`](crate::TransportConfig::default).
            stream: $crate::TransportConfig = $crate::TransportConfig::default(),
        } }
    };
}

connection_options! {
    options,
    /// Options of one connection, or of every connection of a listener, for the raw layer.
    /// `uiw::ConnectionConfig` has the same ones.
    pub struct ConnConfig
}

impl ConnConfig {
    /// Time without any acknowledgement after which the peer counts as dead, which ends the
    /// connection: on a busy connection, and on an idle one by probes. A peer that acknowledges but
    /// receives nothing, as it is busy, is not dead. Default: 15 minutes; `None` is the system's
    /// own time. On the kernel's TCP a longer time than the kernel's (`tcp_retries2`, about 15
    /// minutes) has no effect while bytes wait for an acknowledgement.
    #[must_use]
    pub fn dead_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.stream.dead_after = time.into();
        self
    }

    /// Returns the parameters that start-up requests and offers.
    pub(crate) fn startup(&self) -> StartupConfig {
        StartupConfig {
            revision: self.revision,
            crc: self.crc,
            want_markers: self.markers,
            peer_to_peer: self.peer_to_peer,
            rtr: self.rtr,
            ird: self.ird,
            ord: self.ord,
            siw_gso: self.profile == PeerProfile::SiwGso,
        }
    }

    /// Settings of the stream.
    pub(crate) fn stream_config(&self) -> uiw_stream::RdmapConfig {
        uiw_stream::RdmapConfig {
            startup: self.startup(),
            fpdu: self.fpdu,
            capabilities: self.capabilities,
            stable_tx: self.stable_tx,
            acknowledged: self.acknowledged,
            fallback: self.fallback,
            awaits_establish: false,
            startup_timeout: self.startup_timeout,
            no_receive_timeout: self.no_receive_timeout,
            close_timeout: self.close_timeout,
        }
    }
}

/// Thread that moves the bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The caller's thread when it polls, posts or waits; a background thread when it does not.
    #[default]
    Thread,
    /// Only calls of [`crate::Device::pump`]: for simulated links and for embedding into a loop of
    /// one's own.
    Manual,
}

/// Functions called before and after a thread's work for a device, whichever call brings it to
/// drive: for a program that has to change a property of the thread meanwhile, as the C libraries
/// do with cancellation.
#[derive(Clone, Copy, Debug)]
pub struct ProgressHooks {
    /// Called when the thread has taken the device.
    pub enter: fn() -> i32,
    /// Called with what `enter` returned, when the thread has let go and all that follows from its
    /// work is done.
    pub leave: fn(i32),
}

options! {
    /// Limits of a device; the defaults are no smaller than those of the Linux siw driver.
    pub struct Limits {
        /// Queue pairs. Default: 102,400.
        max_qp: u32 = 102_400,
        /// Requests in one send or receive queue. Default: 32,768.
        max_qp_wr: u32 = 32_768,
        /// Elements of one request. Default: 32.
        max_sge: u32 = 32,
        /// Entries of one completion queue. Default: 3,276,800.
        max_cqe: u32 = 3_276_800,
        /// Registered regions and windows together. Default: 1,024,000.
        max_mr: u32 = 1_024_000,
        /// Protection domains. Default: 102,400.
        max_pd: u32 = 102_400,
        /// Completion queues. Default: 102,400.
        max_cq: u32 = 102_400,
        /// Shared receive queues. Default: 102,400.
        max_srq: u32 = 102_400,
        /// Requests in one shared receive queue. Default: 327,680.
        max_srq_wr: u32 = 327_680,
        /// Bytes of inline data. Default: 1,024.
        max_inline: u32 = 1024,
        /// IRD and ORD. Default: 0x3FFE, the largest that RFC 6581 can express.
        max_rd_atomic: u16 = 0x3FFE,
        /// Connections in set-up at one listener. Default: 1,024.
        max_half_open: u32 = 1024,
        /// Bytes held for partly received FPDUs and for stalled streams, of all connections
        /// together. Default: 256 MiB.
        max_held_bytes: usize = 256 << 20,
        /// Bytes of messages that are longer than their receive buffer and have not come as a
        /// whole, of all connections together (`uiw::ConnectionConfig::max_message`). A connection
        /// that needs more ends. Default: 1 GiB.
        max_unfinished_bytes: usize = 1 << 30,
    }
}

/// Destination of the packets that a device captures.
#[derive(Clone, Debug)]
pub(crate) enum CaptureTarget {
    File(PcapFile),
    Sink(Arc<PcapSink>),
}

/// Settings for opening a device.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeviceConfig {
    pub(crate) limits: Limits,
    pub(crate) progress: Progress,
    pub(crate) progress_hooks: Option<ProgressHooks>,
    pub(crate) shards: Option<usize>,
    pub(crate) capture: Option<CaptureTarget>,
    pub(crate) transport_faults: Option<(u64, Faults)>,
    pub(crate) lenient_invalidate: bool,
    pub(crate) counters: Option<Publish>,
    pub(crate) faults: FaultPlan,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<uiw_tls::Tls>,
}

impl DeviceConfig {
    /// Limits. Default: [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Selects the thread that makes progress. Default: [`Progress::Thread`].
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Faults of calls, completions and events, for tests of a program's handling of errors.
    /// Default: none.
    #[must_use]
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.faults = plan;
        self
    }

    /// Calls around every thread's work for the device. Default: none.
    #[must_use]
    pub fn progress_hooks(mut self, hooks: ProgressHooks) -> Self {
        self.progress_hooks = Some(hooks);
        self
    }

    /// Shards, each with an event set and a lock of its own: so many threads can move bytes at the
    /// same time. Default: as many as the process has cores, at most 8, which `None` means too. At
    /// most 64. A stack whose connections can only be driven together has one.
    #[must_use]
    pub fn shards(mut self, shards: impl Into<Option<usize>>) -> Self {
        self.shards = shards.into();
        self
    }

    /// Encrypts every connection by TLS 1.3 and authenticates every peer; only connections of the
    /// device to itself are in the clear. Datagrams are refused, unless the configuration lets them
    /// pass. What [`DeviceConfig::capture`] writes is what is on the wire. Default: none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: impl Into<Option<uiw_tls::Tls>>) -> Self {
        self.tls = tls.into();
        self
    }

    /// Captures every connection to `file`, a path or a [`PcapFile`], as pcapng for Wireshark.
    /// Devices of the process that name the same file share it; it is complete when the last of
    /// them is dropped. Default: none.
    #[must_use]
    pub fn capture(mut self, file: impl Into<PcapFile>) -> Self {
        self.capture = Some(CaptureTarget::File(file.into()));
        self
    }

    /// Like [`DeviceConfig::capture`], for a capture file that the program has created.
    #[must_use]
    pub fn capture_to(mut self, sink: impl Into<Option<Arc<PcapSink>>>) -> Self {
        self.capture = sink.into().map(CaptureTarget::Sink);
        self
    }

    /// Cuts connections, flips bits and splits reads and writes below TLS, as chosen by the random
    /// numbers of a seed. Default: none.
    #[must_use]
    pub fn transport_faults(mut self, faults: impl Into<Option<(u64, Faults)>>) -> Self {
        self.transport_faults = faults.into();
        self
    }

    /// Returns whether the wire is encrypted.
    pub(crate) fn encrypts(&self) -> bool {
        #[cfg(feature = "tls")]
        let encrypts = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let encrypts = false;
        encrypts
    }

    /// Publishes the device's counters in a file, which `uiw stat` and other programs of the user
    /// read, also after the process was killed. Default: none, as a library makes files only if it
    /// is configured to; [`crate::Device::counters`] has the same numbers.
    #[must_use]
    pub fn counters(mut self, publish: impl Into<Option<Publish>>) -> Self {
        self.counters = publish.into();
        self
    }

    /// Allows a peer to invalidate plain regions with Send with Invalidate, as siw does and RFC
    /// 5040 section 8.1.1 forbids. Default: false.
    #[must_use]
    pub fn lenient_invalidate(mut self, allowed: bool) -> Self {
        self.lenient_invalidate = allowed;
        self
    }
}
