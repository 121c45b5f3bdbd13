//! Syntax tree of a case file.

use std::time::Duration;

/// One test connection to the listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name, by which `--case` selects cases.
    pub name: String,
    /// Subject of the case.
    pub title: String,
    /// Name of the file, for error messages.
    pub file: String,
    /// Conditions. The case is not run unless the listener meets all of them.
    pub needs: Vec<CaseCondition>,
    /// Lines.
    pub steps: Vec<Step>,
}

/// Property of the listener without which a case cannot judge anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseCondition {
    /// The partner program runs at the listener and carries out orders.
    Partner,
    /// The listener accepts a connection without CRCs, for which neither the Request nor the Reply
    /// may ask.
    CrcOff,
    /// The listener accepts a Request that asks for Markers.
    MarkersGranted,
    /// The Reply asks for Markers.
    MarkersAsked,
    /// The Reply is of revision 2 with enhanced data.
    Enhanced,
    /// The listener accepts this number of outstanding Reads.
    Ird(u64),
}

impl CaseCondition {
    /// Names in case files of the conditions without a number.
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
    /// Time to wait before the action.
    pub delay: Duration,
    /// Action of the line.
    pub action: Action,
}

/// Action of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Opens the TCP connection without sending anything.
    Connect,
    /// Performs the usual startup, with these fields of the Request changed.
    Start(Vec<Field>),
    /// Sends a frame.
    Send(SentFrame),
    /// Sends zero-length Reads one after another, each after the response to the one before.
    Reads {
        /// Number of Reads.
        count: u64,
        /// Changed fields of each Read.
        fields: Vec<Field>,
        /// Requirements that are kept if all Reads are answered.
        judges: Vec<String>,
    },
    /// Ends the stream by FIN.
    Fin,
    /// Aborts the stream by RST.
    Reset,
    /// Expects one of several frames.
    Expect {
        /// Number of repetitions.
        times: u64,
        /// The alternatives.
        one_of: Vec<ExpectedFrame>,
    },
    /// Expects that nothing arrives for some time, and that the stream stays open.
    Silence {
        /// Duration.
        time: Duration,
        /// Requirements that are kept if nothing arrives.
        judges: Vec<String>,
    },
    /// Expects that the listener refuses the previous segment: it does not carry the segment out,
    /// and sends a Terminate.
    Refusal {
        /// Requirements that are kept if the segment is not carried out.
        judges: Vec<String>,
        /// Requirements that are kept only if a Terminate arrives.
        terminate: Vec<String>,
        /// Fields of the Terminate.
        fields: Vec<Field>,
    },
    /// Orders an operation, which the partner or this end is going to perform.
    Order {
        /// Operation to order.
        operation: Operation,
        /// `size` and `count`.
        fields: Vec<Field>,
    },
    /// Reports that this end has performed the ordered operation, and waits for the verdict of the
    /// partner.
    Done {
        /// Requirements that are kept if the verdict is positive.
        judges: Vec<String>,
    },
    /// Expects a whole message of the partner, in any number of segments.
    Message {
        /// Expected message.
        expected: ExpectedFrame,
    },
}

/// Operation that can be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Value on the wire in the messages of `uiw siwtest`.
    pub code: u8,
    /// True if the partner performs it, instead of this end.
    pub by_partner: bool,
}

impl Operation {
    /// Names and codes of all operations.
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

/// A frame to send.
#[derive(Clone, Debug, PartialEq)]
pub struct SentFrame {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Given fields.
    pub fields: Vec<Field>,
    /// Number of times that it is sent.
    pub times: u64,
    /// Size of the pieces in which the frame is written, or 0 to write it at once.
    pub cut: u64,
    /// True to send it together with the next frame that is not held.
    pub hold: bool,
}

/// An expected frame, with the requirements that it judges.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedFrame {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// Requirements that are kept if it arrives.
    pub judges: Vec<String>,
    /// Tests of its fields.
    pub fields: Vec<Field>,
}

/// Kind of a frame on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// MPA Request frame.
    Request,
    /// MPA Reply frame.
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
    /// Any segment.
    Segment,
    /// Raw bytes.
    Bytes,
    /// End of the stream, by FIN or RST.
    End,
}

impl FrameKind {
    /// Names in case files.
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

    /// Returns whether it is a startup frame.
    #[must_use]
    pub fn is_startup(self) -> bool {
        matches!(self, Self::Request | Self::Reply)
    }

    /// Returns the RDMAP opcode.
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

    /// Returns the fields that a case file can name.
    #[must_use]
    pub fn fields(self) -> &'static [&'static str] {
        const STARTUP: &[&str] = &[
            "key", "markers", "crc", "reject", "enhanced", "reserved", "revision", "length", "a",
            "b", "c", "d", "ird", "ord", "private",
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

/// A field of a frame, with its value to send or the test of its received value.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// One of [`FrameKind::fields`].
    pub name: String,
    /// Value to send, or test of the received value.
    pub test: Test,
    /// Requirements that are kept if the value passes the test.
    pub judges: Vec<String>,
}

/// Test of the value of a field. A field to send has exactly one value.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// Accepts every value.
    Any,
    /// Accepts every value, and stores it in the variable of this name.
    Bind(String),
    /// Accepts the values for which one of these comparisons holds.
    OneOf(Vec<(Relation, Atom)>),
}

/// Comparison of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Equality.
    Equal,
    /// `<=`.
    AtMost,
    /// `>=`.
    AtLeast,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Atom {
    /// Unsigned number.
    Number(u64),
    /// Value of a variable, plus a number.
    Variable(String, i64),
    /// Literal bytes.
    Bytes(Vec<u8>),
    /// Next bytes of the pattern of the order, with their number.
    Pattern(u64),
    /// Zeros, with their number.
    Zeros(u64),
    /// Layer, type and code of a Terminate.
    Codes([u8; 3]),
}
