//! Opcodes of RDMA messages (RFC 5040 section 4.1, Figure 4; RFC 7306 section 4.1, Figure 2).

use core::fmt;

/// Untagged queue of Sends and immediate data.
pub const QN_SEND: u32 = 0;
/// Untagged queue of Read Requests and Atomic Requests.
pub const QN_READ: u32 = 1;
/// Untagged queue of the Terminate.
pub const QN_TERMINATE: u32 = 2;
/// Untagged queue of Atomic Responses.
pub const QN_ATOMIC_RESPONSE: u32 = 3;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSe = 5,
    /// Send with Solicited Event and Invalidate.
    SendSeInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data (RFC 7306).
    Immediate = 8,
    /// Immediate Data with Solicited Event (RFC 7306).
    ImmediateSe = 9,
    /// Atomic Request (RFC 7306).
    AtomicRequest = 10,
    /// Atomic Response (RFC 7306).
    AtomicResponse = 11,
    /// Send with 32 bits of immediate data. It is not in the RFCs: it uses 15, the opcode for
    /// experiments (RFC 6580), and only between ends that have agreed on it.
    SendImm = 15,
}

impl Opcode {
    /// Returns the message of a raw opcode, or `None` if the opcode is not assigned.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSe,
            6 => Self::SendSeInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSe,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            15 => Self::SendImm,
            _ => return None,
        })
    }

    /// Returns the raw opcode: four bits of the control byte.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        self as u8
    }

    /// Returns the Send with these properties.
    #[must_use]
    pub const fn send(solicited: bool, invalidate: bool) -> Self {
        match (solicited, invalidate) {
            (false, false) => Self::Send,
            (false, true) => Self::SendInvalidate,
            (true, false) => Self::SendSe,
            (true, true) => Self::SendSeInvalidate,
        }
    }

    /// Returns the untagged queue of the message, or `None` if the message is tagged.
    #[inline]
    #[must_use]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSe
            | Self::SendSeInvalidate
            | Self::Immediate
            | Self::ImmediateSe
            | Self::SendImm => Some(QN_SEND),
            Self::ReadRequest | Self::AtomicRequest => Some(QN_READ),
            Self::Terminate => Some(QN_TERMINATE),
            Self::AtomicResponse => Some(QN_ATOMIC_RESPONSE),
        }
    }

    /// Returns whether the message goes to a Tagged Buffer.
    #[inline]
    #[must_use]
    pub const fn tagged(self) -> bool {
        self.queue().is_none()
    }

    /// Returns the name of the message in the RFCs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA Write",
            Self::ReadRequest => "RDMA Read Request",
            Self::ReadResponse => "RDMA Read Response",
            Self::Send => "Send",
            Self::SendInvalidate => "Send with Invalidate",
            Self::SendSe => "Send with SE",
            Self::SendSeInvalidate => "Send with SE and Invalidate",
            Self::Terminate => "Terminate",
            Self::Immediate => "Immediate Data",
            Self::ImmediateSe => "Immediate Data with SE",
            Self::AtomicRequest => "Atomic Request",
            Self::AtomicResponse => "Atomic Response",
            Self::SendImm => "Send with Immediate",
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    /// RFC 5040 Figure 4 and RFC 7306 Figure 3: opcode, queue.
    // [test:RFC5040-4.1-05] [test:RFC5040-4.1-06] [test:RFC5040-4.1-07] [test:RFC7306-4.1-03]
    // [test:RFC5040-5.1-01] [test:RFC5040-5.2.1-01] [test:RFC5040-5.2.2-01] [test:RFC5040-5.3-01]
    // [test:RFC5040-5.4-01] [test:RFC7306-5.2-01] [test:RFC7306-6.3-01]
    #[test]
    fn table_of_messages() {
        let table = [
            (0b0000, Opcode::Write, None),
            (0b0001, Opcode::ReadRequest, Some(1)),
            (0b0010, Opcode::ReadResponse, None),
            (0b0011, Opcode::Send, Some(0)),
            (0b0100, Opcode::SendInvalidate, Some(0)),
            (0b0101, Opcode::SendSe, Some(0)),
            (0b0110, Opcode::SendSeInvalidate, Some(0)),
            (0b0111, Opcode::Terminate, Some(2)),
            (0b1000, Opcode::Immediate, Some(0)),
            (0b1001, Opcode::ImmediateSe, Some(0)),
            (0b1010, Opcode::AtomicRequest, Some(1)),
            (0b1011, Opcode::AtomicResponse, Some(3)),
            (0b1111, Opcode::SendImm, Some(0)),
        ];
        for (raw, opcode, queue) in table {
            assert_eq!(
                (Opcode::from_raw(raw), opcode.raw(), opcode.queue()),
                (Some(opcode), raw, queue)
            );
            assert_eq!(opcode.tagged(), queue.is_none());
        }
        let names: Vec<String> = table.iter().map(|row| row.1.to_string()).collect();
        assert_eq!(
            (&*names[0], &*names[5], &*names[12]),
            ("RDMA Write", "Send with SE", "Send with Immediate")
        );
        assert!(names.iter().all(|name| names.iter().filter(|other| *other == name).count() == 1));
        for raw in (0..=255).filter(|raw| table.iter().all(|row| row.0 != *raw)) {
            assert_eq!(Opcode::from_raw(raw), None);
        }
    }
}
