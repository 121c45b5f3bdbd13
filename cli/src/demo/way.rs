//! The ways in which the demo moves the file.

use verbs::{ConnSettings, FpduSize};

/// Octets of one Send or Write.
pub(super) const CHUNK: usize = 256 << 10;

/// What moves the octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    SendSolicited,
    SendInvalidate,
    SendImm,
    Write,
    WriteWindow,
    WriteImm,
    Read,
    Atomics,
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) op: Op,
    pub(super) crc: bool,
    pub(super) markers: bool,
    /// FPDUs as an Ethernet segment of 1,500 octets would carry.
    pub(super) small: bool,
}

const fn way(name: &'static str, op: Op) -> Way {
    Way { name, op, crc: true, markers: false, small: false }
}

/// Every way, in the order of the table.
pub(super) const WAYS: [Way; 14] = [
    way("Send", Op::Send),
    way("Send with solicited event", Op::SendSolicited),
    way("Send with Invalidate", Op::SendInvalidate),
    way("Send with immediate", Op::SendImm),
    way("RDMA Write", Op::Write),
    way("RDMA Write into a memory window", Op::WriteWindow),
    way("RDMA Write with immediate", Op::WriteImm),
    way("RDMA Read", Op::Read),
    way("FetchAdd and CmpSwap guiding Writes", Op::Atomics),
    Way { crc: false, ..way("RDMA Write, CRC off", Op::Write) },
    Way { crc: false, ..way("RDMA Read, CRC off", Op::Read) },
    Way { markers: true, ..way("RDMA Write, Markers", Op::Write) },
    Way { markers: true, ..way("Send, Markers", Op::Send) },
    Way { small: true, ..way("RDMA Write, FPDUs of 1,424 octets", Op::Write) },
];

impl Way {
    pub(super) fn settings(&self) -> ConnSettings {
        let mut settings = ConnSettings { recv_size: CHUNK as u32, ..ConnSettings::default() };
        settings.options.crc = self.crc;
        settings.options.markers = self.markers;
        if self.small {
            settings.options.fpdu = FpduSize::Fixed(1418);
        }
        settings
    }
}
