//! Wire format of rsockets, as in `rsocket.c` of rdma-core: private data of the connection,
//! messages of 32 bits, and the two kinds of entries that one end writes to the memory of the
//! other.
//!
//! ```text
//!   private data, big-endian                      a message: 3 bits of type, 29 bits of value
//!    0 version = 1     1 flags                    000 data written              bytes
//!    2 receives posted                            100 credits: data messages    up to which, modulo 2^16
//!    4 0 0 0           7 entries for mappings     110 a mapping is published    its index
//!    8 list of targets: address, key, entries     111 control                   0 disconnect, 1 keep-alive,
//!   24 first target: address, key, bytes                                        2 shutdown
//! ```
//!
//! A *target* is a part of a receive buffer that the peer may write. Targets and mappings in memory
//! have the byte order of the host that reads them, which states its order in its flags. Messages
//! that are transmitted with Sends have the byte order of the sender, so hosts with different byte
//! orders cannot exchange them.

use std::fmt;

/// Version of the private data.
const VERSION: u8 = 1;
/// Flag: the host is big-endian.
const FLAG_BIG: u8 = 1;
/// Flag: the byte at offset 7 is the number of entries for mappings.
const FLAG_MAPPINGS: u8 = 2;
/// Flag of uiw: messages are transmitted with Sends. rdma-core ignores the flag, and does not set
/// it.
const FLAG_BY_SEND: u8 = 0x40;
/// Flag of uiw: messages are transmitted as immediate data of Writes.
const FLAG_BY_IMMEDIATE: u8 = 0x80;

/// Transport of messages. Each end decides it according to the kind of its device; it is not
/// negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Sends of four bytes, on iWARP devices.
    Send,
    /// Immediate data of an RDMA Write, on all other devices.
    Immediate,
}

/// Byte order of integers that the peer reads from its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least significant byte first.
    Little,
    /// The most significant byte first.
    Big,
}

impl Order {
    /// Byte order of this host.
    pub const HOST: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    /// Encodes a number in this byte order.
    pub const fn put_u32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// Decodes a number in this byte order.
    pub const fn get_u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    const fn put_u64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    const fn get_u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// Error for data of a peer that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Private data is shorter than [`ConnData::LEN`].
    Short {
        /// Size in bytes.
        len: usize,
    },
    /// Another version of the protocol, or the peer is not an rsocket.
    Version {
        /// The version found.
        version: u8,
    },
    /// The flags claim both variants.
    Flags {
        /// The flags found.
        flags: u8,
    },
    /// The peer has no receive posted.
    NoCredits,
    /// The list of targets has fewer than two entries. At least two are needed, because the second
    /// one is the first to be written.
    Targets {
        /// The number of entries.
        count: u32,
    },
    /// A message of an unknown type.
    Message {
        /// The message.
        word: u32,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { len } => {
                write!(f, "private data of {len} bytes, expected {}", ConnData::LEN)
            }
            Self::Version { version } => write!(f, "version {version}, expected {VERSION}"),
            Self::Flags { flags } => write!(f, "flags {flags:#04x} name two variants"),
            Self::NoCredits => f.write_str("the peer has no receive posted"),
            Self::Targets { count } => write!(f, "a list of {count} targets, expected at least 2"),
            Self::Message { word } => write!(f, "message {word:#010x} is of an unknown type"),
        }
    }
}

impl std::error::Error for WireError {}

/// Part of a buffer that the peer may write: `rs_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Address of the first byte.
    pub addr: u64,
    /// Key of the region.
    pub key: u32,
    /// Size in bytes. In the list of targets in the private data, the number of entries.
    pub len: u32,
}

impl Target {
    /// Size of an encoded target in bytes.
    pub const LEN: usize = 16;

    /// Encodes the value as the peer reads it from its memory.
    #[must_use]
    pub fn to_bytes(self, order: Order) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&order.put_u64(self.addr));
        out[8..12].copy_from_slice(&order.put_u32(self.key));
        out[12..].copy_from_slice(&order.put_u32(self.len));
        out
    }

    /// Decodes the value as the peer wrote it.
    pub fn from_bytes(bytes: [u8; Self::LEN], order: Order) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = bytes;
        Self {
            addr: order.get_u64([a0, a1, a2, a3, a4, a5, a6, a7]),
            key: order.get_u32([k0, k1, k2, k3]),
            len: order.get_u32([l0, l1, l2, l3]),
        }
    }
}

/// Entry of the list of mappings, `rs_iomap`: a buffer to which the peer's program may write at its
/// own offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Offset of the first byte.
    pub offset: u64,
    /// Target to which the offset refers.
    pub target: Target,
}

impl Mapping {
    /// Size of an encoded mapping in bytes.
    pub const LEN: usize = 24;

    /// Encodes the value as the peer reads it from its memory.
    #[must_use]
    pub fn to_bytes(self, order: Order) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&order.put_u64(self.offset));
        out[8..].copy_from_slice(&self.target.to_bytes(order));
        out
    }

    /// Decodes the value as the peer wrote it.
    pub fn from_bytes(bytes: [u8; Self::LEN], order: Order) -> Self {
        let (mut offset, mut target) = ([0; 8], [0; Target::LEN]);
        offset.copy_from_slice(&bytes[..8]);
        target.copy_from_slice(&bytes[8..]);
        Self { offset: order.get_u64(offset), target: Target::from_bytes(target, order) }
    }
}

/// Private data of the Request and of the Reply: `rs_conn_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnData {
    /// Byte order of integers that the sender reads.
    pub order: Order,
    /// Transport of the sender's messages; `None` if the sender does not announce it. Only uiw
    /// announces it.
    pub variant: Option<Variant>,
    /// Number of data messages that may be sent to the sender before it gives credits.
    pub credits: u16,
    /// Number of mappings that may be published to the sender. Their entries follow the list of
    /// targets.
    pub mappings: u16,
    /// List of targets; `len` counts entries. The first entry is `first`, so the second one is
    /// written first.
    pub targets: Target,
    /// First part of the sender's receive buffer.
    pub first: Target,
}

impl ConnData {
    /// Size in bytes.
    pub const LEN: usize = 40;

    /// Returns the answer that refuses a peer with the other variant. It contains the own variant,
    /// but no memory.
    pub fn refusal(variant: Variant) -> Self {
        let targets = Target { len: 2, ..Target::default() };
        let first = Target::default();
        Self { order: Order::HOST, variant: Some(variant), credits: 1, mappings: 0, targets, first }
    }

    /// Encodes the private data.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = VERSION;
        out[1] = FLAG_MAPPINGS
            | if self.order == Order::Big { FLAG_BIG } else { 0 }
            | match self.variant {
                None => 0,
                Some(Variant::Send) => FLAG_BY_SEND,
                Some(Variant::Immediate) => FLAG_BY_IMMEDIATE,
            };
        out[2..4].copy_from_slice(&self.credits.to_be_bytes());
        out[7] = to_scale(self.mappings);
        out[8..24].copy_from_slice(&self.targets.to_bytes(Order::Big));
        out[24..].copy_from_slice(&self.first.to_bytes(Order::Big));
        out
    }

    /// Decodes the private data of a peer. Bytes after the first [`ConnData::LEN`] are ignored,
    /// because other transports add padding.
    ///
    /// # Errors
    /// [`WireError`] for private data that no rsocket sends.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let short = WireError::Short { len: bytes.len() };
        let bytes: &[u8; Self::LEN] = bytes.first_chunk().ok_or(short)?;
        let [version, flags, c0, c1, _, _, _, scale, rest @ ..] = bytes;
        if *version != VERSION {
            return Err(WireError::Version { version: *version });
        }
        let variant = match flags & (FLAG_BY_SEND | FLAG_BY_IMMEDIATE) {
            0 => None,
            FLAG_BY_SEND => Some(Variant::Send),
            FLAG_BY_IMMEDIATE => Some(Variant::Immediate),
            _ => return Err(WireError::Flags { flags: *flags }),
        };
        let (mut targets, mut first) = ([0; Target::LEN], [0; Target::LEN]);
        targets.copy_from_slice(&rest[..Target::LEN]);
        first.copy_from_slice(&rest[Target::LEN..]);
        let data = Self {
            order: if flags & FLAG_BIG == 0 { Order::Little } else { Order::Big },
            variant,
            credits: u16::from_be_bytes([*c0, *c1]),
            mappings: if flags & FLAG_MAPPINGS == 0 { 0 } else { from_scale(*scale) },
            targets: Target::from_bytes(targets, Order::Big),
            first: Target::from_bytes(first, Order::Big),
        };
        if data.credits == 0 {
            return Err(WireError::NoCredits);
        }
        if data.targets.len < 2 {
            return Err(WireError::Targets { count: data.targets.len });
        }
        Ok(data)
    }
}

/// Encodes a number of mappings in one byte: numbers up to 128 directly, larger ones in units of
/// 256, rounded down. Numbers from 129 to 255 are encoded as 128.
const fn to_scale(value: u16) -> u8 {
    if value <= 0x80 { value as u8 } else { 0x80 | (value >> 8) as u8 }
}

const fn from_scale(scale: u8) -> u16 {
    if scale <= 0x80 { scale as u16 } else { ((scale & 0x7F) as u16) << 8 }
}

/// Returns the number of mappings that is announced for `value`.
pub const fn representable_mappings(value: u16) -> u16 {
    from_scale(to_scale(value))
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Data was written to the current target.
    Data {
        /// Number of bytes.
        len: u32,
    },
    /// Data messages may be sent up to this number, modulo 2^16. There may also be a new target.
    Credits {
        /// Number of the last permitted data message plus one.
        limit: u16,
    },
    /// A mapping was published.
    Mapped {
        /// Index of the mapping.
        index: u16,
    },
    /// The peer neither sends nor receives any more.
    Disconnect,
    /// Message without contents.
    KeepAlive,
    /// The peer sends no more data.
    Shutdown,
}

impl Message {
    const DATA: u32 = 0;
    const CREDITS: u32 = 4;
    const MAPPED: u32 = 6;
    const CONTROL: u32 = 7;
    /// Maximum value in the lower 29 bits of a message.
    pub const MAX_VALUE: u32 = (1 << 29) - 1;

    /// Encodes the message in 32 bits.
    pub const fn to_word(self) -> u32 {
        let (kind, value) = match self {
            Self::Data { len } => (Self::DATA, len & Self::MAX_VALUE),
            Self::Credits { limit } => (Self::CREDITS, limit as u32),
            Self::Mapped { index } => (Self::MAPPED, index as u32),
            Self::Disconnect => (Self::CONTROL, 0),
            Self::KeepAlive => (Self::CONTROL, 1),
            Self::Shutdown => (Self::CONTROL, 2),
        };
        kind << 29 | value
    }

    /// Decodes the message of a peer.
    ///
    /// # Errors
    /// [`WireError::Message`]
    pub const fn from_word(word: u32) -> Result<Self, WireError> {
        let value = word & Self::MAX_VALUE;
        Ok(match (word >> 29, value) {
            (Self::DATA, len) => Self::Data { len },
            // rdma-core adds two 16-bit numbers; the sum is meant modulo 2^16.
            (Self::CREDITS, limit) => Self::Credits { limit: limit as u16 },
            (Self::MAPPED, index) => Self::Mapped { index: index as u16 },
            (Self::CONTROL, 0) => Self::Disconnect,
            (Self::CONTROL, 1) => Self::KeepAlive,
            (Self::CONTROL, 2) => Self::Shutdown,
            _ => return Err(WireError::Message { word }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: ConnData = ConnData {
        order: Order::Little,
        variant: None,
        credits: 384,
        mappings: 5,
        targets: Target { addr: 0x1122_3344_5566_7788, key: 0x0A0B_0C0D, len: 2 },
        first: Target { addr: 0x99, key: 7, len: 65536 },
    };

    /// Bytes that `rs_format_conn_data` creates for the same values.
    #[test]
    fn private_data_matches_rdma_core() {
        let mut expected = vec![1, 2, 1, 0x80, 0, 0, 0, 5];
        expected
            .extend([0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 10, 11, 12, 13, 0, 0, 0, 2]);
        expected.extend([0, 0, 0, 0, 0, 0, 0, 0x99, 0, 0, 0, 7, 0, 1, 0, 0]);
        assert_eq!(DATA.to_bytes()[..], expected);
        expected.extend([0; 52]);
        assert_eq!(ConnData::from_bytes(&expected), Ok(DATA), "padding is no error");
    }

    #[test]
    fn variant_and_order_survive_round_trip() {
        for variant in [None, Some(Variant::Send), Some(Variant::Immediate)] {
            for order in [Order::Little, Order::Big] {
                let data = ConnData { variant, order, ..DATA };
                assert_eq!(ConnData::from_bytes(&data.to_bytes()), Ok(data));
            }
        }
    }

    #[test]
    fn foreign_private_data_refused() {
        let bytes = DATA.to_bytes();
        let with = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            ConnData::from_bytes(&bytes)
        };
        assert_eq!(ConnData::from_bytes(&bytes[..39]), Err(WireError::Short { len: 39 }));
        assert_eq!(with(0, 2), Err(WireError::Version { version: 2 }));
        assert_eq!(with(1, 0xC2), Err(WireError::Flags { flags: 0xC2 }));
        assert_eq!(with(23, 1), Err(WireError::Targets { count: 1 }));
        assert_eq!(
            ConnData::from_bytes(&ConnData { credits: 0, ..DATA }.to_bytes()),
            Err(WireError::NoCredits)
        );
        // rdma-core of 2012 has no mappings.
        assert_eq!(with(1, 0).map(|data| data.mappings), Ok(0));
    }

    #[test]
    fn refusal_understood() {
        for variant in [Variant::Send, Variant::Immediate] {
            let refusal = ConnData::from_bytes(&ConnData::refusal(variant).to_bytes());
            assert_eq!(refusal.map(|data| data.variant), Ok(Some(variant)));
        }
    }

    #[test]
    fn numbers_of_mappings_fit_a_byte() {
        for (value, told) in
            [(0, 0), (128, 128), (129, 128), (255, 128), (256, 256), (1000, 768), (32767, 32512)]
        {
            assert_eq!(representable_mappings(value), told, "{value}");
        }
    }

    #[test]
    fn messages_have_their_bits() {
        for (message, word) in [
            (Message::Data { len: 65536 }, 0x0001_0000),
            (Message::Credits { limit: 0x1234 }, 0x8000_1234),
            (Message::Mapped { index: 3 }, 0xC000_0003),
            (Message::Disconnect, 0xE000_0000),
            (Message::KeepAlive, 0xE000_0001),
            (Message::Shutdown, 0xE000_0002),
        ] {
            assert_eq!(message.to_word(), word);
            assert_eq!(Message::from_word(word), Ok(message));
        }
        assert_eq!(
            Message::from_word(0x8001_0005),
            Ok(Message::Credits { limit: 5 }),
            "the sum of two"
        );
        for word in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xA000_0000, 0xE000_0003] {
            assert_eq!(Message::from_word(word), Err(WireError::Message { word }));
        }
    }

    #[test]
    fn targets_and_mappings_in_reader_order() {
        let target = Target { addr: 0x0102_0304_0506_0708, key: 0x1112_1314, len: 0x2122_2324 };
        let little = target.to_bytes(Order::Little);
        assert_eq!(little, [8, 7, 6, 5, 4, 3, 2, 1, 20, 19, 18, 17, 36, 35, 34, 33]);
        let mapping = Mapping { offset: 9, target };
        for order in [Order::Little, Order::Big] {
            assert_eq!(Target::from_bytes(target.to_bytes(order), order), target);
            assert_eq!(Mapping::from_bytes(mapping.to_bytes(order), order), mapping);
        }
    }
}
