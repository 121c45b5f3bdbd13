//! What one end of a stream is set to.

use crate::CapabilityExchange;
use core::time::Duration;
use uiw_mpa::startup;

/// Size of the FPDUs that the stream sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FpduSize {
    /// Large towards peers that take them, what a TCP segment carries towards others (RFC 5044
    /// section 5).
    #[default]
    Auto,
    /// The payload of a TCP segment.
    Segment,
    /// The largest size that MPA allows (64,768 bytes of ULPDU), whatever the segment.
    Large,
    /// A MULPDU of this many bytes, between 128 and 64,768.
    Fixed(u16),
}

impl core::str::FromStr for FpduSize {
    type Err = FpduSizeError;

    fn from_str(text: &str) -> Result<Self, FpduSizeError> {
        let bytes = || text.parse::<u16>().ok().filter(|bytes| usize::from(*bytes) >= uiw_mpa::MIN_MULPDU);
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

/// Text that is no [`FpduSize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, segment, large or 128 to 64768 bytes")]
pub struct FpduSizeError;

/// Requests whose payload is copied before its CRC is computed. Bytes that change between their CRC
/// and TCP's copy of them end the stream: the peer terminates it with a CRC error (RFC 5044 section
/// 8). Memory that peers can access is always copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StableTx {
    /// None: no source changes before its request completes.
    #[default]
    Off,
    /// Writes, for programs that replicate live memory. A Send's message is complete when it is
    /// posted.
    Writes,
    /// Every request, for callers that rewrite buffers in flight.
    On,
}

/// Settings of one stream.
#[derive(Clone, Debug)]
pub struct RdmapConfig {
    /// Parameters that start-up requests and offers.
    pub startup: startup::StartupConfig,
    /// FPDU size policy.
    pub fpdu: FpduSize,
    /// The capability exchange with the peer.
    pub capabilities: CapabilityExchange,
    /// Requests whose payload is copied before its CRC is computed.
    pub stable_tx: StableTx,
    /// A Write or Send completes when the peer has placed it, or with the status of the peer's
    /// Terminate, instead of when TCP has taken its bytes. A uiw peer acknowledges what it has
    /// placed; with other peers a zero-length Read follows the request. Needs an ORD of at least 1;
    /// otherwise it has no effect.
    pub acknowledged: bool,
    /// Makes an initiator report [`crate::Event::Reconnect`] once, to start again with MPA revision
    /// 1, when the peer closes on revision 2 before any byte of a Reply (RFC 6581 section 10).
    pub fallback: bool,
    /// True if an initiator sends no FPDU before [`crate::RdmapStream::establish`], not even the
    /// RTR message.
    pub awaits_establish: bool,
    /// Time for the connection of TCP and the start-up together.
    pub startup_timeout: Duration,
    /// Time for which an inbound Send may wait for a receive before the stream is terminated; zero:
    /// not at all,
    /// [`Duration::MAX`]: for ever.
    pub no_receive_timeout: Duration,
    /// Time after which an unfinished orderly close becomes an abort.
    pub close_timeout: Duration,
}

impl Default for RdmapConfig {
    /// Revision 2 with every RTR kind, CRCs, no Markers; the capability exchange on; 10 s for
    /// start-up, 1 s for a receive, 5 s for the close.
    fn default() -> Self {
        Self {
            startup: startup::StartupConfig::default(),
            fpdu: FpduSize::Auto,
            capabilities: CapabilityExchange::On,
            stable_tx: StableTx::Off,
            acknowledged: false,
            fallback: true,
            awaits_establish: false,
            startup_timeout: Duration::from_secs(10),
            no_receive_timeout: Duration::from_secs(1),
            close_timeout: Duration::from_secs(5),
        }
    }
}
