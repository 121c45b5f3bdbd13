//! What a case file says, as values.

use std::time::Duration;

/// One exchange with the listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name that `--case` selects by.
    pub name: String,
    /// Subject of the case.
    pub title: String,
    /// The file, for messages.
    pub file: String,
    /// Conditions without which the case is not run.
    pub needs: Vec<CaseCondition>,
    /// Lines.
    pub steps: Vec<Step>,
}

/// Condition that a case has for the listener. Without it the case judges nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseCondition {
    /// The partner program answers orders there.
    Partner,
    /// Neither Request nor Reply asks for CRCs.
    CrcOff,
    /// The listener accepts a Request that asks for Markers.
    MarkersGranted,
    /// The Reply asks for Markers.
    MarkersAsked,
    /// The Reply is of revision 2 with enhanced data.
    Enhanced,
    /// The listener takes so many Reads at a time.
    Ird(u64),
}

impl CaseCondition {
    /// The name in a case file of those without a number.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("partner", Self::Partner),
        ("crc-off", Self::CrcOff),
        ("markers-granted", Self::MarkersGranted),
        ("markers-asked", Self::MarkersAsked),
        ("enhanced", Self::Enhanced),
    ];
}

/// A line of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Line number, starting at 1.
    pub line: u32,
    /// The wait in front of it.
    pub delay: Duration,
    /// Action of the line.
    pub action: Action,
}

/// Action of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// TCP's connection, without a byte.
    Connect,
    /// The usual start-up, with these fields of the Request changed.
    Start(Vec<Field>),
    /// A frame leaves.
    Send(SentFrame),
    /// Sends Reads of no bytes with these fields, each answered before the next leaves.
    Reads {
        /// Number of Reads.
        count: u64,
        /// Changed fields of each Read.
        fields: Vec<Field>,
        /// Requirements that the answers keep.
        judges: Vec<String>,
    },
    /// FIN.
    Fin,
    /// RST.
    Reset,
    /// One of these comes.
    Expect {
        /// Number of repetitions.
        times: u64,
        /// The alternatives.
        one_of: Vec<ExpectedFrame>,
    },
    /// Expects that nothing comes for this time, and that the stream stays open.
    Silence {
        /// Duration.
        time: Duration,
        /// Requirements that the silence keeps.
        judges: Vec<String>,
    },
    /// The segment before is refused: `judges` if it is not carried out, the Terminate's own
    /// sentences if there is one.
    Refusal {
        /// Requirements that are kept by not carrying it out.
        judges: Vec<String>,
        /// Requirements that need a Terminate.
        terminate: Vec<String>,
        /// Fields of the Terminate.
        fields: Vec<Field>,
    },
    /// The partner is ordered to do something, or this end is going to.
    Order {
        /// Operation to order.
        operation: Operation,
        /// `size` and `count`.
        fields: Vec<Field>,
    },
    /// This end has done what it had ordered of itself; the partner's verdict is awaited.
    Done {
        /// Requirements that the verdict keeps.
        judges: Vec<String>,
    },
    /// A whole message of the partner comes: its segments are put together.
    Message {
        /// Expected verdict.
        expected: ExpectedFrame,
    },
}

/// Operation that the partner program can be ordered to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The value on the wire, as `siwtest` has it.
    pub code: u8,
    /// True if the partner acts, instead of this end.
    pub by_partner: bool,
}

impl Operation {
    /// Name and code of each.
    pub const NAMES: [(&'static str, u8); 8] = [
        ("send", 1),
        ("send-solicited", 2),
        ("send-invalidate", 3),
        ("send-solicited-invalidate", 4),
        ("write", 6),
        ("read", 7),
        ("read-only-write", 36),
        ("write-only-read", 37),
    ];
}

/// A frame as it is to leave.
#[derive(Clone, Debug, PartialEq)]
pub struct SentFrame {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Given fields.
    pub fields: Vec<Field>,
    /// Number of times that it is sent.
    pub times: u64,
    /// Bytes of each TCP segment; 0 leaves it to TCP.
    pub cut: u64,
    /// Leaves with the next frame that is not held.
    pub hold: bool,
}

/// A frame that is awaited, with what is judged by its coming.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedFrame {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Requirements that its arrival keeps.
    pub judges: Vec<String>,
    /// Tests of its fields.
    pub fields: Vec<Field>,
}

/// Kind of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// MPA Request Frame.
    Request,
    /// MPA Reply Frame.
    Reply,
    /// RDMA Write.
    Write,
    /// RDMA Read Request.
    ReadRequest,
    /// RDMA Read Response.
    ReadResponse,
    /// Send.
    Send,
    /// Send with Invalidate.
    SendInvalidate,
    /// Send with Solicited Event.
    SendSolicited,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate,
    /// Terminate.
    Terminate,
    /// A segment whose every field is given.
    Segment,
    /// Bytes as they are.
    Bytes,
    /// The end of the stream, by FIN or RST.
    End,
}

impl FrameKind {
    /// Each with its name in a case file.
    pub const NAMES: [(&'static str, Self); 13] = [
        ("request", Self::Request),
        ("reply", Self::Reply),
        ("write", Self::Write),
        ("read-request", Self::ReadRequest),
        ("read-response", Self::ReadResponse),
        ("send", Self::Send),
        ("send-invalidate", Self::SendInvalidate),
        ("send-solicited", Self::SendSolicited),
        ("send-solicited-invalidate", Self::SendSolicitedInvalidate),
        ("terminate", Self::Terminate),
        ("segment", Self::Segment),
        ("bytes", Self::Bytes),
        ("end", Self::End),
    ];

    /// Returns the name in a case file.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Returns whether it is a start-up frame.
    #[must_use]
    pub fn is_startup(self) -> bool {
        matches!(self, Self::Request | Self::Reply)
    }

    /// RDMAP's opcode.
    #[must_use]
    pub fn opcode(self) -> Option<u8> {
        Some(match self {
            Self::Write => 0,
            Self::ReadRequest => 1,
            Self::ReadResponse => 2,
            Self::Send => 3,
            Self::SendInvalidate => 4,
            Self::SendSolicited => 5,
            Self::SendSolicitedInvalidate => 6,
            Self::Terminate => 7,
            _ => return None,
        })
    }

    /// Returns the kind with this opcode.
    #[must_use]
    pub fn from_opcode(opcode: u8) -> Option<Self> {
        Self::NAMES.iter().map(|(_, kind)| *kind).find(|kind| kind.opcode() == Some(opcode))
    }

    /// The fields that a case file may name.
    #[must_use]
    pub fn fields(self) -> &'static [&'static str] {
        const STARTUP: &[&str] = &[
            "key", "markers", "crc", "reject", "enhanced", "reserved", "revision", "length", "a", "b", "c",
            "d", "ird", "ord", "private",
        ];
        const SEGMENT: &[&str] = &[
            "tagged",
            "last",
            "ddp-reserved",
            "ddp-version",
            "version",
            "reserved",
            "opcode",
            "stag",
            "to",
            "invalidate",
            "qn",
            "msn",
            "mo",
            "payload",
            "sink-stag",
            "sink-to",
            "size",
            "source-stag",
            "source-to",
            "codes",
            "length",
            "pad",
            "crc-xor",
            "marker-reserved",
            "marker-xor",
            "segment-length",
            "quotes",
        ];
        match self {
            Self::Request | Self::Reply => STARTUP,
            Self::Bytes => &["payload"],
            Self::End => &[],
            _ => SEGMENT,
        }
    }
}

/// A field of a frame with its value, or with what its value must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// One of [`FrameKind::fields`].
    pub name: String,
    /// The value, or what it must be.
    pub test: Test,
    /// Requirements that the value keeps.
    pub judges: Vec<String>,
}

/// Test of a field's value. A field that is sent has one value.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// Whatever it is.
    Any,
    /// Whatever it is, kept under this name.
    Bind(String),
    /// One of these.
    OneOf(Vec<(Relation, Atom)>),
}

/// Comparison of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The value itself.
    Equal,
    /// `<=`.
    AtMost,
    /// `>=`.
    AtLeast,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Atom {
    /// Up to 64 bits.
    Number(u64),
    /// A variable and a number added to it.
    Variable(String, i64),
    /// These bytes.
    Bytes(Vec<u8>),
    /// This number of bytes of the order's pattern.
    Pattern(u64),
    /// This number of zeros.
    Zeros(u64),
    /// Layer, type and code of a Terminate.
    Codes([u8; 3]),
}
