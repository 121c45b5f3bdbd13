//! Settings of devices, listeners and connections.

use crate::faults::FaultPlan;
use std::sync::Arc;
use std::time::Duration;
use uiw_counters::Publish;
use uiw_impair::fault::Faults;
use uiw_llp::capture::{PcapConfig, PcapSink};
use uiw_mpa::startup::StartupConfig;

/// Deviation from the RFCs for one kind of peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerProfile {
    /// No deviation.
    #[default]
    Rfc,
    /// Linux siw driver with `try_gso`: its private flag 0x08 is set in the Request and returned in
    /// the Reply. The driver then sends FPDUs that are larger than a TCP segment. The stock driver
    /// has `try_gso` disabled and ignores the flag.
    SiwGso,
}

/// Defines a settings type: its fields with their defaults, and a setter for each.
macro_rules! options {
    ($(#[$about:meta])* pub struct $of:ident {
        $($(#[$doc:meta])+ $name:ident: $kind:ty = $default:expr,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $of {
            $($(#[$doc])+ pub $name: $kind,)*
        }

        impl Default for $of {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl $of {
            $(#[doc = concat!("Sets `", stringify!($name), "`.")]
            #[doc = ""]
            $(#[$doc])+
            #[must_use]
            pub fn $name(mut self, $name: $kind) -> Self {
                self.$name = $name;
                self
            })*
        }
    };
}

/// Defines the connection settings: calls `$callback` with `$before` and the fields, each with its
/// documentation, type and default.
///
/// [`ConnConfig`] and the configuration of a connection in the crate `uiw` get the same setters
/// from it.
#[macro_export]
macro_rules! connection_options {
    ($callback:ident, $($before:tt)*) => {
        $callback! { $($before)* {
            /// Highest MPA revision to use. Default: 2.
            revision: $crate::Revision = $crate::Revision::Two,
            /// True if CRC32C is requested. Default: true. It is used if either end requests
            /// it; neither end can refuse (RFC 5044 section 7.1).
            crc: bool = true,
            /// True if the peer is asked to send Markers. Default: false.
            markers: bool = false,
            /// True if the peer-to-peer model (RFC 6581 section 9.2) is used, in which either
            /// end may send first. Revision 1 cannot negotiate it. There, an initiator first sends
            /// a zero-length Read, or a zero-length Write if `rtr` has no Read, as some adapters
            /// require. Default: true.
            peer_to_peer: bool = true,
            /// Kinds of RTR to offer. Default: all.
            rtr: $crate::RtrKinds = $crate::RtrKinds::ALL,
            /// Number of Reads and atomics that the peer may have outstanding (IRD). Default:
            /// 1,024; at most [`Limits::max_rd_atomic`]. Memory is allocated when they arrive, and
            /// released after a burst.
            ird: u16 = 1024,
            /// Number of Reads and atomics that this end may have outstanding (ORD). Default:
            /// 1,024; at most [`Limits::max_rd_atomic`], and never more than the peer's IRD, or 128
            /// if the peer announces none.
            ord: u16 = 1024,
            /// Size of FPDUs. Default: [`FpduSize::Auto`](crate::FpduSize::Auto).
            fpdu: $crate::FpduSize = $crate::FpduSize::Auto,
            /// Exchange of capabilities with uiw peers (`docs/wire-extensions.md`). Default: on.
            capabilities: $crate::CapabilityExchange = $crate::CapabilityExchange::On,
            /// Deviation from the RFCs for one kind of peer. Default: none.
            profile: $crate::PeerProfile = $crate::PeerProfile::Rfc,
            /// Requests that have their payload copied before its CRC is computed, for
            /// programs that modify buffers in flight. Default:
            /// [`StableTx::Off`](crate::StableTx::Off).
            stable_tx: $crate::StableTx = $crate::StableTx::Off,
            /// True if payload may be copied and its CRC computed in one pass. Tests use false to
            /// send from the memory of the program on all processors. Default: true.
            #[doc(hidden)]
            copy_with_crc: bool = true,
            /// Whether long messages are sent in several batches. Tests set it to send in the same
            /// way on all processors. Default: depends on the processor.
            #[doc(hidden)]
            divides_long_messages: Option<bool> = None,
            /// True if completions are acknowledged. A Write or Send then completes when the peer
            /// has placed it, or with the status of the peer's Terminate, instead of when TCP has
            /// accepted its bytes. So an error is reported for the request that has caused it, at
            /// the cost of a round trip. A uiw peer acknowledges placement; for other peers a
            /// zero-length Read is sent after the request, which requires an ORD of at least 1.
            /// Default: false.
            acknowledged: bool = false,
            /// True if the queue pair survives its peer. If the peer closes in order while
            /// nothing of this end is in progress, or if the peer's queue pair enters the error
            /// state (Terminate: local catastrophic error), the queue pair then stays in RTS with
            /// its receives posted, and waits for another connection. InfiniBand behaves like this,
            /// because a queue pair does not detect the end of the other one. A `uiw::Connection`
            /// always ends with its peer. Default: false.
            outlives_peer: bool = false,
            /// Time limit for the setup of TCP and MPA together. Default: 10 s.
            startup_timeout: std::time::Duration = std::time::Duration::from_secs(10),
            /// Time during which a refused TCP connection is retried, from the first refusal on,
            /// because a program may announce its port before it listens. Default: zero, which
            /// means one attempt.
            refused_retry_time: std::time::Duration = std::time::Duration::ZERO,
            /// Time that an incoming Send may wait for a receive before the stream is
            /// terminated. Zero does not wait, and [`Duration::MAX`](std::time::Duration::MAX)
            /// waits for ever. While it waits nothing is read, so that the sender has to wait as
            /// well, as on TCP. Default: 1 s with [`ConnConfig`], for ever with
            /// `uiw::ConnectionConfig`.
            no_receive_timeout: std::time::Duration = std::time::Duration::from_secs(1),
            /// Maximum duration of an orderly close, after which the connection is
            /// aborted. Default: 5 s with [`ConnConfig`], 60 s with `uiw::ConnectionConfig`.
            close_timeout: std::time::Duration = std::time::Duration::from_secs(5),
            /// True if MPA revision 1 is tried when a peer closes or resets the connection on
            /// revision 2 before it sends a byte of the Reply. Default: true.
            fallback: bool = true,
            /// Options of the TCP connection. An accepted connection has those of the
            /// listener already, and only its congestion control can still be changed. Default:
            /// [`TransportConfig::default`](crate::TransportConfig::default).
            stream: $crate::TransportConfig = $crate::TransportConfig::default(),
        } }
    };
}

connection_options! {
    options,
    /// Settings of one connection, or of all connections of a listener, for the raw layer.
    /// `uiw::ConnectionConfig` has the same settings.
    pub struct ConnConfig
}

impl ConnConfig {
    /// Sets the time without any acknowledgement after which the peer counts as dead and the
    /// connection is ended. Idle connections send probes. A busy peer that acknowledges but
    /// receives nothing is not dead.
    ///
    /// Default: 15 minutes; `None` uses the time-out of the OS. On the kernel's TCP, a longer time
    /// than the kernel's own (`tcp_retries2`, about 15 minutes) has no effect while bytes wait for
    /// an acknowledgement.
    #[must_use]
    pub fn dead_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.stream.dead_after = time.into();
        self
    }

    /// Returns the start-up parameters that this end requests and offers.
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

    /// Returns the settings of the stream.
    pub(crate) fn stream_config(&self) -> uiw_stream::RdmapConfig {
        uiw_stream::RdmapConfig {
            startup: self.startup(),
            fpdu: self.fpdu,
            capabilities: self.capabilities,
            stable_tx: self.stable_tx,
            copy_with_crc: self.copy_with_crc,
            divides_long_messages: self.divides_long_messages.unwrap_or_else(gains_from_division),
            acknowledged: self.acknowledged,
            fallback: self.fallback,
            awaits_establish: false,
            startup_timeout: self.startup_timeout,
            no_receive_timeout: self.no_receive_timeout,
            close_timeout: self.close_timeout,
        }
    }
}

/// Returns whether this processor sends long messages faster in several batches. Processors with
/// AVX-512 FP16 do: Intel's from Sapphire Rapids on. On Zen 4, copying into the kernel takes longer
/// while the other processor still has the pages of the last batch in its cache. Other processors
/// were not measured.
fn gains_from_division() -> bool {
    #[cfg(target_arch = "x86_64")]
    let gains = std::arch::is_x86_feature_detected!("avx512fp16");
    #[cfg(not(target_arch = "x86_64"))]
    let gains = false;
    gains
}

/// Selects the thread that moves the bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The caller's thread while it polls, posts or waits; otherwise a background thread.
    #[default]
    Thread,
    /// Only calls of [`crate::Device::pump`], for simulated links and for programs that embed a
    /// device into their own event loop.
    Manual,
}

/// Functions that are called around the work of a thread that drives the device, in whichever call.
/// They are for programs that must change a property of the thread during that time; the C
/// libraries change its cancellation state.
#[derive(Clone, Copy, Debug)]
pub struct ProgressHooks {
    /// Called before the thread works on the device: after it has locked the device, or before it
    /// waits for the lock.
    pub enter: fn() -> i32,
    /// Called with the result of `enter`, after the thread has unlocked the device and done all
    /// remaining work.
    pub leave: fn(i32),
}

options! {
    /// Limits of a device. The defaults are not smaller than those of the Linux siw driver.
    pub struct Limits {
        /// Maximum number of queue pairs. Default: 102,400.
        max_qp: u32 = 102_400,
        /// Maximum number of requests in a send or receive queue. Default: 32,768.
        max_qp_wr: u32 = 32_768,
        /// Maximum number of elements of a request. Default: 32.
        max_sge: u32 = 32,
        /// Maximum number of entries of a completion queue. Default: 3,276,800.
        max_cqe: u32 = 3_276_800,
        /// Maximum number of registered regions and windows together. Default: 1,024,000.
        max_mr: u32 = 1_024_000,
        /// Maximum number of protection domains. Default: 102,400.
        max_pd: u32 = 102_400,
        /// Maximum number of completion queues. Default: 102,400.
        max_cq: u32 = 102_400,
        /// Maximum number of shared receive queues. Default: 102,400.
        max_srq: u32 = 102_400,
        /// Maximum number of receives in a shared receive queue. Default: 327,680.
        max_srq_wr: u32 = 327_680,
        /// Maximum number of bytes of inline data. Default: 1,024.
        max_inline: u32 = 1024,
        /// Maximum IRD and ORD. Default: 0x3FFE, the largest value that RFC 6581 can express.
        max_rd_atomic: u16 = 0x3FFE,
        /// Maximum number of connections in setup at one listener. Default: 1,024.
        max_half_open: u32 = 1024,
        /// Maximum number of bytes kept for partial FPDUs and stalled streams, of all connections
        /// together. With less than 256 KiB, the length of one read, connections receive nothing.
        /// Default: 256 MiB.
        max_held_bytes: usize = 256 << 20,
        /// Maximum number of bytes of incomplete messages that are longer than their receives
        /// (`uiw::ConnectionConfig::max_message`), of all connections together. A connection that
        /// needs more is ended. Default: 1 GiB.
        max_unfinished_bytes: usize = 1 << 30,
    }
}

/// Destination of captured packets.
#[derive(Clone, Debug)]
pub(crate) enum CaptureTarget {
    File(PcapConfig),
    Sink(Arc<PcapSink>),
}

/// Settings of a device.
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
    /// Sets the limits. Default: [`Limits::default`].
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

    /// Sets faults to inject into calls, completions and events, for tests of a program's error
    /// handling. Default: none.
    #[must_use]
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.faults = plan;
        self
    }

    /// Sets functions to call around every thread's work for the device. Default: none.
    #[must_use]
    pub fn progress_hooks(mut self, hooks: ProgressHooks) -> Self {
        self.progress_hooks = Some(hooks);
        self
    }

    /// Sets the number of shards. Each has its own event set and lock, so that as many threads can
    /// move bytes at the same time. Default, and with `None`: one per processor core of the
    /// process, at most 8. The maximum is 64. A stack whose connections can only be driven together
    /// has one shard.
    #[must_use]
    pub fn shards(mut self, shards: impl Into<Option<usize>>) -> Self {
        self.shards = shards.into();
        self
    }

    /// Encrypts all connections with TLS 1.3 and authenticates all peers. Only connections within
    /// this process are not encrypted. Datagrams are refused, unless the configuration allows them.
    /// [`DeviceConfig::capture`] records the encrypted bytes. Default: none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: impl Into<Option<uiw_tls::Tls>>) -> Self {
        self.tls = tls.into();
        self
    }

    /// Captures all connections as pcapng for Wireshark, to `file`, a path or a [`PcapConfig`].
    /// Devices of the process with the same file share the capture; it is complete when the last of
    /// them is dropped. Default: none.
    #[must_use]
    pub fn capture(mut self, file: impl Into<PcapConfig>) -> Self {
        self.capture = Some(CaptureTarget::File(file.into()));
        self
    }

    /// Like [`DeviceConfig::capture`], but for a capture that the program has created.
    #[must_use]
    pub fn capture_to(mut self, sink: impl Into<Option<Arc<PcapSink>>>) -> Self {
        self.capture = sink.into().map(CaptureTarget::Sink);
        self
    }

    /// Injects transport faults below TLS, chosen by the random numbers of a seed: cuts
    /// connections, flips bits, and splits reads and writes. Default: none.
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

    /// Publishes the counters of the device in a file that `uiw stat` and other programs of the
    /// user can read, even after the process was killed. Default: none, because a library creates
    /// files only if it is configured to. [`crate::Device::counters`] returns the same counters.
    #[must_use]
    pub fn counters(mut self, publish: impl Into<Option<Publish>>) -> Self {
        self.counters = publish.into();
        self
    }

    /// Allows peers to invalidate plain regions with Send with Invalidate, as siw does although RFC
    /// 5040 section 8.1.1 forbids it. Default: false.
    #[must_use]
    pub fn lenient_invalidate(mut self, allowed: bool) -> Self {
        self.lenient_invalidate = allowed;
        self
    }
}
