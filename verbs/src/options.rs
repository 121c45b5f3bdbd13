//! What a user can set: per device, per listener and per connection.

use std::time::Duration;
use uiw_counters::Publish;
use uiw_llp::StreamOptions;
use uiw_mpa::startup::{Config as MpaConfig, Revision, RtrKinds};
use uiw_stream::{CapabilityExchange, FpduSize};

/// A departure from the RFCs for the sake of one kind of peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerProfile {
    /// None: the RFCs.
    #[default]
    Rfc,
    /// The Linux siw driver with `try_gso`: its private flag 0x08 is set in our Request and returned in our Reply, whereupon it
    /// sends FPDUs larger than a TCP segment. The stock driver has `try_gso` off and takes no notice.
    SiwGso,
}

/// Options of one connection, or of every connection of a listener.
#[derive(Clone, Debug)]
pub struct ConnOptions {
    /// Highest MPA revision.
    pub revision: Revision,
    /// Ask for CRC32C. It is on if either side asks; there is no way to refuse (RFC 5044 section 7.1).
    pub crc: bool,
    /// Ask the peer to put Markers into what it sends us.
    pub markers: bool,
    /// Peer-to-peer mode (RFC 6581 section 9.2): either side may send first.
    pub peer_to_peer: bool,
    /// RTR kinds offered.
    pub rtr: RtrKinds,
    /// Reads and atomics the peer may have outstanding here.
    pub ird: u16,
    /// Reads and atomics we may have outstanding there.
    pub ord: u16,
    /// FPDU size policy.
    pub fpdu: FpduSize,
    /// The exchange of capabilities with uiw peers (ARCHITECTURE.md, "Capability exchange").
    pub capabilities: CapabilityExchange,
    /// A named departure from the RFCs, for one kind of peer.
    pub profile: PeerProfile,
    /// Copies every source before its CRC is computed, for callers that rewrite buffers in flight.
    pub stable_tx: bool,
    /// Acknowledged completion: a Write or Send completes when a zero-length Read behind it has returned, or with the status of
    /// the peer's Terminate, instead of when TCP has taken its bytes. Success then says that the peer has placed it, and an
    /// error lands on the request that caused it; it costs a round trip. Needs an ORD of at least 1.
    pub acknowledged: bool,
    /// A peer that closes in order while nothing of ours is under way leaves the queue pair as it is, waiting for another connection:
    /// in RTS, its receives posted. So does InfiniBand, where a queue pair does not detect the other one's end.
    pub outlives_peer: bool,
    /// Time for TCP and MPA set-up together.
    pub startup_timeout: Duration,
    /// How long a refused TCP connection is retried, from the first refusal on: a program may announce its port before it
    /// listens. Zero: one attempt.
    pub refused_retry_time: Duration,
    /// How long an inbound Send may wait for a receive before the stream is terminated; zero = not at all, [`Duration::MAX`] =
    /// for ever.
    pub no_receive_timeout: Duration,
    /// How long an orderly close may take before the connection is cut.
    pub close_timeout: Duration,
    /// Falls back to MPA revision 1 when a peer closes on revision 2 before any Reply byte.
    pub fallback: bool,
    /// The TCP connection. One that is accepted has been made with the listener's; only another congestion control can still
    /// be had then.
    pub stream: StreamOptions,
}

impl Default for ConnOptions {
    fn default() -> Self {
        Self {
            revision: Revision::Two,
            crc: true,
            markers: false,
            peer_to_peer: true,
            rtr: RtrKinds::ALL,
            ird: 128,
            ord: 128,
            fpdu: FpduSize::Auto,
            capabilities: CapabilityExchange::On,
            profile: PeerProfile::Rfc,
            stable_tx: false,
            acknowledged: false,
            outlives_peer: false,
            startup_timeout: Duration::from_secs(10),
            refused_retry_time: Duration::ZERO,
            no_receive_timeout: Duration::from_secs(1),
            close_timeout: Duration::from_secs(5),
            fallback: true,
            stream: StreamOptions::default(),
        }
    }
}

impl ConnOptions {
    /// What start-up asks for and offers.
    pub(crate) fn startup(&self) -> MpaConfig {
        MpaConfig {
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
    pub(crate) fn stream_config(&self) -> uiw_stream::Config {
        uiw_stream::Config {
            startup: self.startup(),
            fpdu: self.fpdu,
            capabilities: self.capabilities,
            stable_source: self.stable_tx,
            acknowledged: self.acknowledged,
            fallback: self.fallback,
            startup_timeout: self.startup_timeout,
            no_receive_timeout: self.no_receive_timeout,
            close_timeout: self.close_timeout,
        }
    }
}

/// Which thread moves the bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The caller's thread when it polls, posts or waits; a background thread when it does not.
    #[default]
    Thread,
    /// Only calls of [`crate::Device::pump`]: for simulated links and for embedding into a loop of one's own.
    Manual,
}

/// What is done around a thread's work for a device, whichever call brings it to drive.
#[derive(Clone, Copy, Debug)]
pub struct DriveGuard {
    /// Called when the thread has taken the device.
    pub enter: fn() -> i32,
    /// Called with what `enter` gave, when the thread has let go and all that follows from its work is done.
    pub leave: fn(i32),
}

/// Limits of a device; the defaults are no smaller than those of the Linux siw driver.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests in one send or receive queue.
    pub max_qp_wr: u32,
    /// Elements of one request.
    pub max_sge: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Registered regions and windows together.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests in one shared receive queue.
    pub max_srq_wr: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// IRD and ORD.
    pub max_rd_atomic: u16,
    /// Connections in set-up at one listener.
    pub max_half_open: u32,
    /// Bytes held for partly received FPDUs and stalled streams of all connections together.
    pub max_held_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 102_400,
            max_qp_wr: 32_768,
            max_sge: 32,
            max_cqe: 3_276_800,
            max_mr: 1_024_000,
            max_pd: 102_400,
            max_cq: 102_400,
            max_srq: 102_400,
            max_srq_wr: 327_680,
            max_inline: 1024,
            max_rd_atomic: 0x3FFE,
            max_half_open: 1024,
            max_held_bytes: 256 << 20,
        }
    }
}

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Limits.
    pub limits: Limits,
    /// Which thread makes progress.
    pub progress: Progress,
    /// Done around every thread's work.
    pub guard: Option<DriveGuard>,
    /// Shards, each with an event set and a lock of its own: so many threads can move bytes at the same time. By default as many as
    /// the process has cores, at most 8; at most 64. A stack whose connections can only be driven together has one.
    pub shards: Option<usize>,
    /// Publishes the device's counters in a file, which `uiw stat` and other programs of the user read, also after the process was
    /// killed. By default none: a library makes files only if it is configured to, and [`crate::Device::counters`] has the same numbers.
    pub counters: Option<Publish>,
}
