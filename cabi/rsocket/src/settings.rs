//! Sizes of buffers and queues, and the polling time of threads. The values come from rdma-core's
//! defaults, the files of `/etc/rdma/rsocket`, and the options that a program sets.

use crate::wire::{Variant, representable_mappings};
use once_cell::race::OnceBox;
use std::fs;
use std::str::FromStr;
use std::time::Duration;
use uiw_cabi_core::persona::Persona;

/// Directory of the configuration of rdma-core's rsockets.
const FOLDER: &str = "/etc/rdma/rsocket";
/// Minimum size of a queue, in messages.
const MIN_QUEUE: u16 = 16;
/// Maximum size of a queue, in messages.
const MAX_QUEUE: u16 = 16000;
/// Minimum size of a buffer, in bytes.
const MIN_BUFFER: u32 = 4096;
/// Maximum size of a buffer, in bytes.
const MAX_BUFFER: u32 = 1 << 28;

/// Default polling time in microseconds.
const DEFAULT_POLLING: u64 = 100;
/// Maximum polling time in microseconds.
const MAX_POLLING: u64 = 100_000;

/// Sizes of the queues and buffers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Number of data messages in the send queue: `RDMA_SQSIZE`.
    pub(crate) sends: u16,
    /// Number of receives that are announced to the peer: `RDMA_RQSIZE`.
    pub(crate) receives: u16,
    /// Value that `RDMA_INLINE` reports. It has no effect, because every byte is copied once in any
    /// case.
    pub(crate) inline: u16,
    /// Size of the ring from which data is sent, in bytes: SO_SNDBUF.
    pub(crate) sent: u32,
    /// Size of the ring into which data is received, in bytes: SO_RCVBUF.
    pub(crate) received: u32,
    /// Number of mappings that the peer may publish: `RDMA_IOMAPSIZE`.
    pub(crate) mappings: u16,
}

impl Sizes {
    /// Defaults of rdma-core, except for the buffers, which have 128 KiB there. Each half of the
    /// receive buffer can be used again only after a round trip, and a round trip of TCP in
    /// software takes longer than that of an adapter. With 128 KiB, the throughput would be far
    /// below that of TCP even on loopback; long paths need more than 512 KiB (see `Receiver`).
    const DEFAULT: Self = Self {
        sends: 384,
        receives: 384,
        inline: 64,
        sent: 1 << 19,
        received: 1 << 22,
        mappings: 0,
    };

    /// Returns the defaults of this system.
    pub(crate) fn of_system() -> Self {
        static SIZES: OnceBox<Sizes> = OnceBox::new();
        *SIZES.get_or_init(|| {
            Box::new(Self::read(|name| fs::read_to_string(format!("{FOLDER}/{name}")).ok()))
        })
    }

    fn read(file: impl Fn(&str) -> Option<String>) -> Self {
        let default = Self::DEFAULT;
        Self {
            sends: number(file("sqsize_default"), default.sends),
            receives: number(file("rqsize_default"), default.receives),
            inline: number(file("inline_default"), default.inline),
            sent: number(file("wmem_default"), default.sent),
            received: number(file("mem_default"), default.received),
            mappings: representable_mappings(number(file("iomap_size"), default.mappings)),
        }
    }

    /// Limits the values to the range that a connection can have.
    pub(crate) fn bounded(mut self) -> Self {
        self.sends = self.sends.clamp(MIN_QUEUE, MAX_QUEUE);
        self.receives = self.receives.clamp(MIN_QUEUE, MAX_QUEUE);
        self.sent = self.sent.clamp(MIN_BUFFER, MAX_BUFFER);
        self.received = self.received.clamp(MIN_BUFFER, MAX_BUFFER);
        self
    }

    /// Returns the size of each half of the receive buffer, in bytes.
    pub(crate) fn half(&self) -> u32 {
        self.received / 2
    }
}

/// Returns the maximum time for which a thread polls for arrivals before it sleeps, from the file
/// `polling_time`, which contains microseconds. rdma-core's default is 10, but a peer in software
/// cannot answer in this time if it has to be woken. See `Attempts`.
pub(crate) fn polling_time() -> Duration {
    static TIME: OnceBox<Duration> = OnceBox::new();
    *TIME.get_or_init(|| {
        let text = fs::read_to_string(format!("{FOLDER}/polling_time")).ok();
        Box::new(Duration::from_micros(number(text, DEFAULT_POLLING).min(MAX_POLLING)))
    })
}

/// Parses the number at the beginning of a file.
fn number<T: FromStr>(text: Option<String>, default: T) -> T {
    text.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(default)
}

/// Returns the variant of the protocol for devices of this kind.
pub(crate) fn variant(persona: Persona) -> Variant {
    if persona == Persona::Iwarp { Variant::Send } else { Variant::Immediate }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_the_defaults() {
        assert_eq!(Sizes::read(|_| None), Sizes::DEFAULT);
        let sizes = Sizes::read(|name| {
            Some(match name {
                "mem_default" => "1000000\n".to_owned(),
                "sqsize_default" => "many".to_owned(),
                "iomap_size" => "300".to_owned(),
                _ => return None,
            })
        });
        assert_eq!(sizes, Sizes { received: 1_000_000, mappings: 256, ..Sizes::DEFAULT });
    }

    #[test]
    fn sizes_limited_to_possible_values() {
        let least =
            Sizes { sends: 0, receives: 1, inline: 0, sent: 0, received: 3, mappings: 0 }.bounded();
        assert_eq!((least.sends, least.receives, least.sent, least.half()), (16, 16, 4096, 2048));
        let most = Sizes { sends: u16::MAX, received: u32::MAX, ..Sizes::DEFAULT }.bounded();
        assert_eq!((most.sends, most.received), (16000, 1 << 28));
    }

    #[test]
    fn device_kind_decides_variant() {
        assert_eq!(variant(Persona::Iwarp), Variant::Send);
        assert_eq!(variant(Persona::Roce), Variant::Immediate);
        assert_eq!(variant(Persona::Ib), Variant::Immediate);
    }
}
