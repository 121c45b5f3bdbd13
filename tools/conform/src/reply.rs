//! The Reply, and its checks of RFC 5044 section 7.1 and RFC 6581.

use super::judge::Judgements;
use super::values::{Value, Values, hex};
use uiw_mpa::wire::startup::{
    Enhanced, HEADER_LEN, KEY_REPLY, KEY_REQUEST, MAX_PRIVATE_DATA, NOT_NEGOTIATED,
};

const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;
const KEY_LEN: usize = 16;
/// Length of the part of the Key that names the protocol, "MPA ID ".
const PROTOCOL: usize = 7;

/// A received Reply.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) bytes: Vec<u8>,
    flags: u8,
    pub(super) revision: u8,
    pub(super) length: u16,
    /// Enhanced data at the front of the private data, if S is set.
    pub(super) enhanced: Option<Enhanced>,
}

impl Reply {
    /// Returns whether `bytes` may begin a startup frame, perhaps with a wrong Key.
    pub(super) fn may_begin(bytes: &[u8]) -> bool {
        let known = bytes.len().min(PROTOCOL);
        bytes[..known] == KEY_REPLY[..known]
    }

    /// Parses the Reply at the front of `bytes`. Returns `None` if it is incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..HEADER_LEN)?;
        let (flags, revision) = (header[16], header[17]);
        let length = u16::from_be_bytes([header[18], header[19]]);
        // An excessive length is judged without waiting for the bytes.
        let expected = if usize::from(length) > MAX_PRIVATE_DATA { 0 } else { usize::from(length) };
        let private = bytes.get(HEADER_LEN..HEADER_LEN + expected)?;
        let enhanced =
            (revision >= 2 && flags & S != 0).then(|| private.first_chunk().copied()).flatten();
        let bytes = bytes[..HEADER_LEN + expected].to_vec();
        Some(Self { bytes, flags, revision, length, enhanced: enhanced.map(Enhanced::parse) })
    }

    /// Returns whether it has the Key of a Request.
    pub(super) fn is_request(&self) -> bool {
        self.bytes[..KEY_LEN] == KEY_REQUEST
    }

    pub(super) fn markers(&self) -> bool {
        self.flags & M != 0
    }

    pub(super) fn crc(&self) -> bool {
        self.flags & C != 0
    }

    pub(super) fn rejects(&self) -> bool {
        self.flags & R != 0
    }

    fn has_s(&self) -> bool {
        self.revision >= 2 && self.flags & S != 0
    }

    fn reserved(&self) -> u8 {
        self.flags & if self.revision >= 2 { 0x0F } else { 0x1F }
    }

    /// Returns the value of a field by its name in case files.
    pub(super) fn field(&self, name: &str) -> Option<Value> {
        let bit = |on: bool| Some(Value::Number(u64::from(on)));
        let enhanced = self.enhanced.unwrap_or_default();
        match name {
            "key" => Some(Value::Bytes(self.bytes[..KEY_LEN].to_vec())),
            "markers" => bit(self.markers()),
            "crc" => bit(self.crc()),
            "reject" => bit(self.rejects()),
            "enhanced" => bit(self.has_s()),
            "reserved" => Some(Value::Number(u64::from(self.reserved()))),
            "revision" => Some(Value::Number(u64::from(self.revision))),
            "length" => Some(Value::Number(u64::from(self.length))),
            "a" => bit(enhanced.peer_to_peer),
            "b" => bit(enhanced.rtr_send),
            "c" => bit(enhanced.rtr_write),
            "d" => bit(enhanced.rtr_read),
            "ird" => Some(Value::Number(u64::from(enhanced.ird))),
            "ord" => Some(Value::Number(u64::from(enhanced.ord))),
            "private" => {
                let front = HEADER_LEN + if self.enhanced.is_some() { Enhanced::LEN } else { 0 };
                Some(Value::Bytes(self.bytes[front..].to_vec()))
            }
            _ => None,
        }
    }

    /// Describes the Reply in one line.
    pub(super) fn describe(&self) -> String {
        let bit = |on: bool| u8::from(on);
        let mut text = format!(
            "reply revision {} markers {} crc {} reject {} length {}",
            self.revision,
            bit(self.markers()),
            bit(self.crc()),
            bit(self.rejects()),
            self.length
        );
        if let Some(e) = self.enhanced {
            let [a, b, c, d] = [e.peer_to_peer, e.rtr_send, e.rtr_write, e.rtr_read].map(bit);
            text += &format!(" a {a} b {b} c {c} d {d} ird {} ord {}", e.ird, e.ord);
        }
        if self.reserved() != 0 {
            text += &format!(" reserved {:#x}", self.reserved());
        }
        text
    }

    /// Checks it as the answer to a Request with these fields.
    pub(super) fn judge(&self, request: &Values, judged: &mut Judgements) {
        let key = &self.bytes[..KEY_LEN];
        judged.check(*key == KEY_REPLY, &["RFC5044-7.1.1-03"], || {
            format!("the Key of the Reply is {}", hex(key))
        });
        let length = self.length;
        judged.check(usize::from(length) <= MAX_PRIVATE_DATA, &["RFC5044-7.1.1-19"], || {
            format!("PD_Length is {length}")
        });
        let reserved = self.reserved();
        let ids: &[&str] = if self.revision >= 2 {
            &["RFC6581-6-01a", "RFC5044-7.1.1-13"]
        } else {
            &["RFC5044-7.1.1-13"]
        };
        judged.check(reserved == 0, ids, || {
            format!("the reserved bits of the Reply are {reserved:#x}")
        });
        let asks = |name| request.number(name, 0) != 0;
        let revision = request.number("revision", 1);
        let enhanced = revision >= 2
            && (asks("enhanced") || request.number("reserved", 0) & u64::from(S) != 0);
        let found = self.revision;
        if enhanced {
            judged.check(found >= 2 && self.has_s(), &["RFC6581-10-01", "RFC6581-10-05"], || {
                format!(
                    "an enhanced Request has a Reply of revision {found}, S = {}",
                    u8::from(self.has_s())
                )
            });
        } else {
            judged.check(!self.has_s(), &["RFC6581-10-02", "RFC6581-10-06"], || {
                "a Request with S = 0 has a Reply with S = 1".to_owned()
            });
        }
        if revision == 1 {
            judged.check(found == 1, &["RFC5044-7.1.1-14"], || {
                format!("a Request of revision 1 has a Reply of revision {found}")
            });
        }
        if self.has_s() && enhanced {
            judged.check(self.enhanced.is_some(), &["RFC6581-6-05"], || {
                format!("S is set, and PD_Length is {length}")
            });
            if let Some(enhanced) = self.enhanced.filter(|_| !self.rejects()) {
                judge_enhanced(&enhanced, request, judged);
            }
        }
    }
}

fn judge_enhanced(reply: &Enhanced, request: &Values, judged: &mut Judgements) {
    let kinds = [reply.rtr_send, reply.rtr_write, reply.rtr_read];
    let any = kinds.contains(&true);
    if request.number("a", 0) != 0 {
        judged.check(reply.peer_to_peer, &["RFC6581-9.2-04"], || {
            "A is 1 in the Request and 0 in the Reply".to_owned()
        });
        if reply.peer_to_peer {
            let asked = ["b", "c", "d"].map(|name| request.number(name, 0) != 0);
            let common = asked.iter().zip(kinds).any(|(asked, kind)| *asked && kind);
            // It is not known which types the listener supports, only whether its Reply names one
            // that was asked for.
            let ids: &[&str] = if common {
                &["RFC6581-9.2-03", "RFC6581-9.2-06"]
            } else {
                &["RFC6581-9.2-03", "RFC6581-9.2-08"]
            };
            judged.check(any, ids, || "A is 1 in the Reply, and B, C and D are 0".to_owned());
            if !any {
                judged.add_broken(&["RFC6581-9.2-06"], "A is 1 in the Reply, and B, C and D are 0");
            }
        }
    } else {
        judged.check(!reply.peer_to_peer, &["RFC6581-9.2-13"], || {
            "A is 0 in the Request and 1 in the Reply".to_owned()
        });
    }
    if !reply.peer_to_peer {
        judged.check(!any, &["RFC6581-9.2-14"], || {
            "A is 0 in the Reply, and B, C or D is 1".to_owned()
        });
    }
    let (ird, ord) = (request.number("ird", 0) as u16, request.number("ord", 0) as u16);
    if ird == NOT_NEGOTIATED {
        judged.check(reply.ord == NOT_NEGOTIATED, &["RFC6581-9.1-13"], || {
            format!("IRD is 0x3FFF in the Request, and ORD is {:#x} in the Reply", reply.ord)
        });
    } else {
        let fits = reply.ord <= ird || reply.ord == NOT_NEGOTIATED;
        judged.check(fits, &["RFC6581-9.1-02", "RFC6581-9.1-04", "RFC6581-9-01"], || {
            format!("IRD is {ird} in the Request, and ORD is {} in the Reply", reply.ord)
        });
    }
    if ord == NOT_NEGOTIATED {
        judged.check(reply.ird == NOT_NEGOTIATED, &["RFC6581-9.1-11"], || {
            format!("ORD is 0x3FFF in the Request, and IRD is {:#x} in the Reply", reply.ird)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;
    use uiw_cases::FrameKind;

    fn fields(numbers: &[(&str, u64)]) -> Values {
        let mut fields = Values::default();
        numbers.iter().for_each(|(name, number)| fields.set(name, *number));
        fields
    }

    /// Returns the requirements that a Reply with the fields `reply` breaks as the answer to a
    /// Request with the fields `request`.
    fn broken(request: &[(&str, u64)], reply: &[(&str, u64)]) -> Vec<String> {
        let bytes = build::startup(FrameKind::Reply, &fields(reply));
        let mut judged = Judgements::default();
        Reply::parse(&bytes).unwrap().judge(&fields(request), &mut judged);
        judged.broken()
    }

    const ENHANCED: [(&str, u64); 3] = [("revision", 2), ("enhanced", 1), ("ird", 4)];

    #[test]
    fn each_field_has_its_sentence() {
        assert_eq!(broken(&[("revision", 1)], &[("revision", 1)]), [""; 0]);
        assert_eq!(broken(&[("revision", 1)], &[("revision", 3)]), ["RFC5044-7.1.1-14"]);
        assert_eq!(broken(&ENHANCED, &[("ird", 4), ("ord", 4)]), [""; 0]);
        assert_eq!(
            broken(&ENHANCED, &[("ird", 4), ("ord", 5)]),
            ["RFC6581-9-01", "RFC6581-9.1-02", "RFC6581-9.1-04"]
        );
        assert_eq!(broken(&ENHANCED, &[("ird", 4), ("ord", 0x3FFF)]), [""; 0], "not negotiated");
        assert_eq!(broken(&ENHANCED, &[("a", 1), ("c", 1)]), ["RFC6581-9.2-13"]);
        assert_eq!(broken(&ENHANCED, &[("a", 0), ("c", 1)]), ["RFC6581-9.2-14"]);
        assert_eq!(broken(&ENHANCED, &[("revision", 2)]), ["RFC6581-10-01", "RFC6581-10-05"]);
        let peer_to_peer = [&ENHANCED[..], &[("a", 1), ("b", 1)]].concat();
        assert_eq!(
            broken(&peer_to_peer, &[("a", 1), ("d", 1)]),
            [""; 0],
            "another kind than those asked for"
        );
        assert_eq!(broken(&peer_to_peer, &[("a", 0)]), ["RFC6581-9.2-04"]);
        let none = ["RFC6581-9.2-03", "RFC6581-9.2-06", "RFC6581-9.2-08"];
        assert_eq!(broken(&peer_to_peer, &[("a", 1)]), none);
        assert_eq!(broken(&[("revision", 2)], &[("ird", 4)]), ["RFC6581-10-02", "RFC6581-10-06"]);
        let not_negotiated = [("revision", 2), ("enhanced", 1), ("ird", 0x3FFF), ("ord", 0x3FFF)];
        assert_eq!(broken(&not_negotiated, &[("ird", 0x3FFF), ("ord", 0x3FFF)]), [""; 0]);
        assert_eq!(
            broken(&not_negotiated, &[("ird", 8), ("ord", 8)]),
            ["RFC6581-9.1-11", "RFC6581-9.1-13"]
        );
        let reserved = broken(&ENHANCED, &[("ird", 4), ("reserved", 8)]);
        assert_eq!(reserved, ["RFC5044-7.1.1-13", "RFC6581-6-01a"]);
    }

    #[test]
    fn invalid_replies() {
        assert!(
            Reply::may_begin(b"MPA I")
                && Reply::may_begin(b"MPA ID rep Frame")
                && !Reply::may_begin(b"220 mail")
        );
        assert!(Reply::parse(&[0; 19]).is_none());
    }
}
