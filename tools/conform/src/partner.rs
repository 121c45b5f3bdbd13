//! Messages between the two ends of `uiw siwtest`, and the text form of orders.

use std::fmt;
use std::str::FromStr;
use uiw::raw::Remote;
use uiw::raw::STag;

/// Maximum length of all messages of an order together, in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum number of messages of an order.
const MAX_COUNT: u32 = 400;
/// Maximum number of scatter/gather elements of a message, which is the limit of siw.
pub const MAX_SGES: u32 = 6;

/// Returns byte `at` of message `message` of an order with this seed.
#[must_use]
pub fn pattern_byte(seed: u32, message: u32, at: u32) -> u8 {
    seed.wrapping_add(message.wrapping_mul(7))
        .wrapping_add(at.wrapping_mul(31))
        .wrapping_add((at >> 8).wrapping_mul(17)) as u8
}

/// Ordered operation, with its value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    Send = 1,
    SendSolicited,
    SendInvalidate,
    SendSolicitedInvalidate,
    SendInline,
    Write,
    Read,
    /// Reads, each followed by a fenced Send of the data that was read.
    Fence,
    /// Asks for a description of the machine: device, driver, firmware and kernel. It is the text
    /// of the verdict.
    About,
    // The following operations end the connection.
    BadWrite = 32,
    OutWrite,
    BadRead,
    OutRead,
    ReadOnlyWrite,
    WriteOnlyRead,
    LongSend,
    NoReceive,
    BadInvalidate,
    UsedInvalidate,
    HangUp,
}

impl Op {
    pub const ALL: &[(Self, &str)] = &[
        (Self::Send, "send"),
        (Self::SendSolicited, "sendse"),
        (Self::SendInvalidate, "sendinv"),
        (Self::SendSolicitedInvalidate, "sendseinv"),
        (Self::SendInline, "sendinline"),
        (Self::Write, "write"),
        (Self::Read, "read"),
        (Self::Fence, "fence"),
        (Self::About, "about"),
        (Self::BadWrite, "badwrite"),
        (Self::OutWrite, "outwrite"),
        (Self::BadRead, "badread"),
        (Self::OutRead, "outread"),
        (Self::ReadOnlyWrite, "rowrite"),
        (Self::WriteOnlyRead, "woread"),
        (Self::LongSend, "longsend"),
        (Self::NoReceive, "norecv"),
        (Self::BadInvalidate, "badinv"),
        (Self::UsedInvalidate, "usedinv"),
        (Self::HangUp, "hangup"),
    ];

    /// Returns the operation with this value on the wire.
    pub fn from_wire(value: u8) -> Option<Self> {
        Self::ALL.iter().map(|(op, _)| *op).find(|op| *op as u8 == value)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(op, _)| *op == self).map_or("", |(_, name)| name)
    }

    /// Returns whether its data arrives in receives.
    pub fn is_send(self) -> bool {
        (self as u8) <= Self::SendInline as u8 || self == Self::Fence
    }

    /// Returns whether its data comes from the memory of the other end.
    pub fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::Fence)
    }

    /// Returns whether the operation ends the connection.
    pub fn ends_connection(self) -> bool {
        self as u8 >= Self::BadWrite as u8
    }
}

/// End that performs the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The end that connected.
    Initiator,
    /// The end that accepted.
    Responder,
}

/// Operation to perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub op: Op,
    pub actor: Actor,
    pub size: u32,
    pub count: u32,
    pub sges: u32,
    pub seed: u32,
}

/// Orders in their text form: an operation for one end, or for both ends one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders(pub Vec<Order>);

impl FromStr for Orders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (actors, rest): (&[Actor], &str) = match text.split_once('.') {
            Some(("me", rest)) => (&[Actor::Initiator], rest),
            Some(("you", rest)) => (&[Actor::Responder], rest),
            Some(_) => return Err("expected me. or you. in front".to_owned()),
            None => (&[Actor::Initiator, Actor::Responder], text),
        };
        let (name, numbers) = rest.split_once(':').unwrap_or((rest, "64"));
        let op = Op::ALL.iter().find(|(_, known)| *known == name).map(|(op, _)| *op);
        let names = || Op::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
        let op = op.ok_or_else(|| format!("no operation `{name}`: there are {}", names()))?;
        let mut numbers = numbers.split('x').map(str::parse::<u32>);
        let mut next = |usual: u32| match numbers.next() {
            None => Ok(usual),
            Some(number) => number.map_err(|_| "expected OP[:SIZE[xCOUNT[xELEMENTS]]]".to_owned()),
        };
        let (size, count, sges) = (next(64)?, next(1)?, next(1)?);
        let order = |actor| Order { op, actor, size, count, sges, seed: 0 };
        let orders: Vec<Order> = actors.iter().map(|actor| order(*actor)).collect();
        match orders.iter().all(Order::is_bounded) {
            true => Ok(Self(orders)),
            false => {
                Err("at most 400 messages, 256 MiB in all, 1 to 6 elements a message".to_owned())
            }
        }
    }
}

impl Order {
    pub fn is_bounded(&self) -> bool {
        self.count <= MAX_COUNT
            && (1..=MAX_SGES).contains(&self.sges)
            && u64::from(self.size) * u64::from(self.count) <= MAX_BYTES
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.actor == Actor::Initiator { "me" } else { "you" };
        write!(f, "{end}.{}:{}x{}x{}", self.op.name(), self.size, self.count, self.sges)
    }
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    Order = 1,
    Ready,
    Done,
    Verdict,
}

/// A message of 128 bytes in big-endian order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartnerMessage {
    pub kind: MessageKind,
    pub order: Order,
    /// Memory of the sender for the order.
    pub memory: Remote,
    /// STag of the sender that may be invalidated.
    pub revocable: u32,
    /// Error that the sender found, or the text for [`Op::About`].
    pub wrong: Option<String>,
}

impl PartnerMessage {
    pub const LEN: usize = 128;
    const MAGIC: u32 = 0x7369_7774;
    const TEXT: usize = 44;

    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let Order { op, actor, size, count, sges, seed } = self.order;
        out[..4].copy_from_slice(&Self::MAGIC.to_be_bytes());
        out[4..7].copy_from_slice(&[
            self.kind as u8,
            op as u8,
            u8::from(actor == Actor::Responder),
        ]);
        let mut number =
            |at: usize, number: u32| out[at..at + 4].copy_from_slice(&number.to_be_bytes());
        number(8, size);
        number(12, count);
        number(16, sges);
        number(20, seed);
        number(32, self.memory.rkey.0);
        number(36, self.revocable);
        number(40, u32::from(self.wrong.is_some()));
        out[24..32].copy_from_slice(&self.memory.addr.to_be_bytes());
        let text = self.wrong.as_deref().unwrap_or_default().as_bytes();
        // The last byte stays NUL.
        let len = text.len().min(Self::LEN - Self::TEXT - 1);
        out[Self::TEXT..Self::TEXT + len].copy_from_slice(&text[..len]);
        out
    }

    /// Parses a message. Returns `None` if it is invalid or exceeds the limits.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let number = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let kinds =
            [MessageKind::Order, MessageKind::Ready, MessageKind::Done, MessageKind::Verdict];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == bytes[4])?;
        let actor = match bytes[6] {
            0 => Actor::Initiator,
            1 => Actor::Responder,
            _ => return None,
        };
        let op = Op::from_wire(bytes[5])?;
        let order = Order {
            op,
            actor,
            size: number(8),
            count: number(12),
            sges: number(16),
            seed: number(20),
        };
        if number(0) != Self::MAGIC || !order.is_bounded() {
            return None;
        }
        let text = bytes[Self::TEXT..].split(|byte| *byte == 0).next().unwrap_or_default();
        let shown =
            || String::from_utf8_lossy(text).chars().filter(|char| !char.is_control()).collect();
        let wrong = (number(40) != 0).then(shown);
        let memory = Remote {
            addr: u64::from(number(24)) << 32 | u64::from(number(28)),
            rkey: STag(number(32)),
        };
        Some(Self { kind, order, memory, revocable: number(36), wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_as_they_are_written() {
        let Orders(both) = "write:4096x3x2".parse().unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(both[1].to_string(), "you.write:4096x3x2");
        let Orders(one) = "me.read:0".parse().unwrap();
        assert_eq!((one.len(), one[0].size, one[0].count), (1, 0, 1));
        for wrong in [
            "walk",
            "he.read",
            "read:x",
            "read:1x401",
            "read:300000000",
            "read:1x1x7",
            "read:1x1x0",
        ] {
            assert!(wrong.parse::<Orders>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn talk_survives_the_wire() {
        let order =
            Order { op: Op::Fence, actor: Actor::Responder, size: 1, count: 2, sges: 3, seed: 4 };
        let memory = Remote { addr: 0x0102_0304_0506_0708, rkey: STag(9) };
        let mut talk = PartnerMessage {
            kind: MessageKind::Done,
            order,
            memory,
            revocable: 10,
            wrong: Some("a b".into()),
        };
        assert_eq!(PartnerMessage::parse(&talk.emit()), Some(talk.clone()));
        talk.wrong = None;
        assert_eq!(PartnerMessage::parse(&talk.emit()), Some(talk.clone()));
        talk.order.sges = 7;
        assert_eq!(PartnerMessage::parse(&talk.emit()), None);
        assert_eq!(PartnerMessage::parse(&[0; PartnerMessage::LEN]), None);
    }
}
