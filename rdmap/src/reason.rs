//! Table of Terminate codes (RFC 5040 section 4.8 Figure 9, RFC 5041 section 7.2, RFC 5044 section
//! 8, RFC 6581 section 8).

use core::fmt;

/// Generates [`TerminateReason`] and its functions from the table below.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $layer:literal / $etype:literal / $code:literal, $description:literal;)*) => {
        /// Reason for the termination of a stream: one row of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum TerminateReason {
            $(
                #[doc = concat!($layer, "/", $etype, "/", $code, ": ", $description, ".")]
                $name,
            )*
            /// A combination of codes that no RFC defines.
            Unknown {
                /// Layer, four bits.
                layer: u8,
                /// Error Type, four bits.
                etype: u8,
                /// Error Code.
                code: u8,
            },
        }

        impl TerminateReason {
            /// The rows of the table.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the row with these codes.
            #[must_use]
            pub const fn from_codes(layer: u8, etype: u8, code: u8) -> Self {
                // A local catastrophic error has no code, so any value is accepted.
                let code = if layer == 0 && etype == 0 { 0 } else { code };
                match (layer, etype, code) {
                    $(($layer, $etype, $code) => Self::$name,)*
                    _ => Self::Unknown { layer, etype, code },
                }
            }

            /// Returns Layer, Error Type and Error Code.
            #[must_use]
            pub const fn codes(self) -> (u8, u8, u8) {
                match self {
                    $(Self::$name => ($layer, $etype, $code),)*
                    Self::Unknown { layer, etype, code } => (layer, etype, code),
                }
            }

            const fn description(self) -> &'static str {
                match self {
                    $(Self::$name => $description,)*
                    Self::Unknown { .. } => "unknown reason",
                }
            }
        }
    };
}

reasons! {
    LocalCatastrophic = 0x0 / 0x0 / 0x00, "RDMAP: local catastrophic error";
    ProtectionInvalidStag = 0x0 / 0x1 / 0x00, "RDMAP: remote protection: invalid STag";
    ProtectionBaseOrBounds = 0x0 / 0x1 / 0x01, "RDMAP: remote protection: base or bounds violation";
    ProtectionAccessRights = 0x0 / 0x1 / 0x02, "RDMAP: remote protection: access rights violation";
    ProtectionNotAssociated = 0x0 / 0x1 / 0x03, "RDMAP: remote protection: STag not associated with the stream";
    ProtectionToWrap = 0x0 / 0x1 / 0x04, "RDMAP: remote protection: TO wrap";
    ProtectionCannotInvalidate = 0x0 / 0x1 / 0x09, "RDMAP: remote protection: STag cannot be invalidated";
    ProtectionUnspecified = 0x0 / 0x1 / 0xFF, "RDMAP: remote protection: unspecified error";
    RdmapVersion = 0x0 / 0x2 / 0x05, "RDMAP: remote operation: invalid RDMAP version";
    UnexpectedOpcode = 0x0 / 0x2 / 0x06, "RDMAP: remote operation: unexpected opcode";
    StreamCatastrophic = 0x0 / 0x2 / 0x07, "RDMAP: remote operation: catastrophic error of this stream";
    GlobalCatastrophic = 0x0 / 0x2 / 0x08, "RDMAP: remote operation: catastrophic error, global";
    OperationCannotInvalidate = 0x0 / 0x2 / 0x09, "RDMAP: remote operation: STag cannot be invalidated";
    OperationUnspecified = 0x0 / 0x2 / 0xFF, "RDMAP: remote operation: unspecified error";
    DdpLocalCatastrophic = 0x1 / 0x0 / 0x00, "DDP: local catastrophic error";
    TaggedInvalidStag = 0x1 / 0x1 / 0x00, "DDP: tagged buffer: invalid STag";
    TaggedBaseOrBounds = 0x1 / 0x1 / 0x01, "DDP: tagged buffer: base or bounds violation";
    TaggedNotAssociated = 0x1 / 0x1 / 0x02, "DDP: tagged buffer: STag not associated with the stream";
    TaggedToWrap = 0x1 / 0x1 / 0x03, "DDP: tagged buffer: TO wrap";
    TaggedVersion = 0x1 / 0x1 / 0x04, "DDP: tagged buffer: invalid DDP version";
    UntaggedInvalidQn = 0x1 / 0x2 / 0x01, "DDP: untagged buffer: invalid QN";
    UntaggedNoBuffer = 0x1 / 0x2 / 0x02, "DDP: untagged buffer: invalid MSN, no buffer available";
    UntaggedMsnRange = 0x1 / 0x2 / 0x03, "DDP: untagged buffer: invalid MSN, out of range";
    UntaggedMo = 0x1 / 0x2 / 0x04, "DDP: untagged buffer: invalid MO";
    UntaggedTooLong = 0x1 / 0x2 / 0x05, "DDP: untagged buffer: message too long for the buffer";
    UntaggedVersion = 0x1 / 0x2 / 0x06, "DDP: untagged buffer: invalid DDP version";
    LlpClosed = 0x2 / 0x0 / 0x01, "MPA: TCP connection closed, terminated or lost";
    LlpCrc = 0x2 / 0x0 / 0x02, "MPA: CRC error";
    LlpMarker = 0x2 / 0x0 / 0x03, "MPA: Marker and ULPDU_Length disagree";
    LlpStartupFrame = 0x2 / 0x0 / 0x04, "MPA: invalid Request or Reply frame";
    LlpLocalCatastrophic = 0x2 / 0x0 / 0x05, "MPA: local catastrophic error";
    LlpInsufficientIrd = 0x2 / 0x0 / 0x06, "MPA: insufficient IRD resources";
    LlpNoMatchingRtr = 0x2 / 0x0 / 0x07, "MPA: no matching RTR option";
}

impl TerminateReason {
    /// Returns whether an RFC defines the codes.
    #[must_use]
    pub const fn is_known(self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}

impl fmt::Display for TerminateReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, etype, code) = self.codes();
        write!(f, "{} ({layer}/{etype}/{code:#04x})", self.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    // [test:RFC5040-4.8-03] [test:RFC5041-7.2-01]
    #[test]
    fn reasons_found_by_codes() {
        assert_eq!(TerminateReason::ALL.len(), 33);
        for reason in TerminateReason::ALL {
            let (layer, etype, code) = reason.codes();
            assert_eq!(TerminateReason::from_codes(layer, etype, code), *reason);
        }
        let known = (0..=0xFFF)
            .filter(|n| {
                TerminateReason::from_codes((n >> 12) as u8, (n >> 8) as u8, *n as u8).is_known()
            })
            .count();
        assert_eq!(known, 256 + 7 + 6, "0/0 with any code, seven codes of 0/1, six of 0/2");
    }

    #[test]
    fn unknown_codes_kept() {
        let reason = TerminateReason::from_codes(1, 2, 0);
        assert_eq!(reason, TerminateReason::Unknown { layer: 1, etype: 2, code: 0 });
        assert_eq!(reason.to_string(), "unknown reason (1/2/0x00)");
        assert_eq!(TerminateReason::LlpCrc.to_string(), "MPA: CRC error (2/0/0x02)");
    }
}
