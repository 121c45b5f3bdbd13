//! Settings of one end of a stream.

use crate::CapabilityExchange;
use core::time::Duration;
use uiw_mpa::startup;

/// Size of the FPDUs that the stream sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FpduSize {
    /// Large for peers that support it. For others, FPDUs fit into the payload of a TCP segment
    /// (RFC 5044 section 5).
    #[default]
    Auto,
    /// The payload of a TCP segment.
    Segment,
    /// The largest size that MPA allows (64,768 bytes of ULPDU), whatever the size of a segment.
    Large,
    /// A MULPDU of this number of bytes, from 128 to 64,768.
    Fixed(u16),
}

impl core::str::FromStr for FpduSize {
    type Err = FpduSizeError;

    fn from_str(text: &str) -> Result<Self, FpduSizeError> {
        let bytes =
            || text.parse::<u16>().ok().filter(|bytes| usize::from(*bytes) >= uiw_mpa::MIN_MULPDU);
        match text {
            "auto" => Ok(Self::Auto),
            "segment" => Ok(Self::Segment),
            "large" => Ok(Self::Large),
            _ => bytes()
                .filter(|bytes| usize::from(*bytes) <= uiw_mpa::MAX_ULPDU)
                .map(Self::Fixed)
                .ok_or(FpduSizeError),
        }
    }
}

impl core::fmt::Display for FpduSize {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Segment => f.write_str("segment"),
            Self::Large => f.write_str("large"),
            Self::Fixed(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Invalid text form of [`FpduSize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, segment, large or 128 to 64768 bytes")]
pub struct FpduSizeError;

/// Requests whose payload is copied before its CRC is computed.
///
/// If the bytes of other requests change between the computation of the CRC and TCP's copy, the
/// peer terminates the stream with a CRC error (RFC 5044 section 8). Memory that peers can access
/// is always copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StableTx {
    /// No request. The source must not change before the request completes.
    #[default]
    Off,
    /// Writes, for programs that replicate memory while it is in use. Such programs do not modify
    /// the message of a Send after they have posted it.
    Writes,
    /// All requests, for programs that modify buffers in flight.
    On,
}

/// Settings of one stream.
#[derive(Clone, Debug)]
pub struct RdmapConfig {
    /// Start-up parameters that this end requests and offers.
    pub startup: startup::StartupConfig,
    /// FPDU size policy.
    pub fpdu: FpduSize,
    /// Capability exchange with the peer.
    pub capabilities: CapabilityExchange,
    /// Requests whose payload is copied before its CRC is computed.
    pub stable_tx: StableTx,
    /// True if payload may be copied and its CRC computed in one pass. Tests use false to send from
    /// the memory of the host on all processors.
    pub copy_with_crc: bool,
    /// True if a long message is sent in several batches: of at most 322 KiB if it has at least
    /// 512 KiB, and two or three if it has at least 64 KiB and is the only one in progress
    /// ([`StreamHost::is_awaited`](crate::StreamHost::is_awaited)). The peer handles one part while
    /// the next one is built, but on some processors the kernel then needs more time for each byte.
    pub divides_long_messages: bool,
    /// True if a Write or Send completes when the peer has placed it, or with the status of the
    /// peer's Terminate, instead of when TCP has accepted its bytes. A uiw peer acknowledges
    /// placement; for other peers a zero-length Read is sent after the request. It has no effect
    /// unless ORD is at least 1.
    pub acknowledged: bool,
    /// True if an initiator reports [`crate::Event::Reconnect`] once, to start again with MPA
    /// revision 1. It does so if the peer closes the connection on revision 2 before it sends a
    /// byte of the Reply (RFC 6581 section 10).
    pub fallback: bool,
    /// True if an initiator sends no FPDU before [`crate::RdmapStream::establish`], not even the
    /// RTR message.
    pub awaits_establish: bool,
    /// Time limit for the TCP connection and the start-up together.
    pub startup_timeout: Duration,
    /// Time for which an incoming Send may wait for a receive before the stream is terminated. Zero
    /// means that the Send does not wait; [`Duration::MAX`] means no limit.
    pub no_receive_timeout: Duration,
    /// Time after which an orderly close that has not finished becomes an abort.
    pub close_timeout: Duration,
}

impl Default for RdmapConfig {
    /// Returns settings with revision 2, all RTR kinds, CRCs, no Markers, the capability exchange,
    /// 10 s for start-up, 1 s for a receive, and 5 s for the close.
    fn default() -> Self {
        Self {
            startup: startup::StartupConfig::default(),
            fpdu: FpduSize::Auto,
            capabilities: CapabilityExchange::On,
            stable_tx: StableTx::Off,
            copy_with_crc: true,
            divides_long_messages: false,
            acknowledged: false,
            fallback: true,
            awaits_establish: false,
            startup_timeout: Duration::from_secs(10),
            no_receive_timeout: Duration::from_secs(1),
            close_timeout: Duration::from_secs(5),
        }
    }
}
