//! Socket filters for frames to our MAC address and to groups. Without a filter every frame of the
//! kernel would be copied to this process.

use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter,
};

const fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Returns the filter for multicast groups, by the first two bytes of their MAC addresses: 01:00
/// for IPv4 (RFC 1112 section 6.4), 33:33 for IPv6 (RFC 2464 section 7).
pub(super) fn groups() -> [sock_filter; 5] {
    [
        op(BPF_LD | BPF_H | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, 0x0100, 1, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, 0x3333, 0, 1),
        op(BPF_RET | BPF_K, u32::MAX, 0, 0),
        op(BPF_RET | BPF_K, 0, 0, 0),
    ]
}

/// Returns the filter that accepts no frame.
pub(super) fn nothing() -> [sock_filter; 1] {
    [op(BPF_RET | BPF_K, 0, 0, 0)]
}

/// Returns the filter for `mac` and groups. The classic BPF machine sees the frame from its
/// destination address on.
pub(super) fn program(mac: [u8; 6]) -> [sock_filter; 8] {
    let [a, b, c, d, e, f] = mac;
    let high = u32::from_be_bytes([a, b, c, d]);
    let low = u32::from(u16::from_be_bytes([e, f]));
    [
        // Tests the group bit of the first byte.
        op(BPF_LD | BPF_B | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JSET | BPF_K, 1, 4, 0),
        op(BPF_LD | BPF_W | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 3),
        op(BPF_LD | BPF_H | BPF_ABS, 4, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, low, 0, 1),
        op(BPF_RET | BPF_K, u32::MAX, 0, 0),
        op(BPF_RET | BPF_K, 0, 0, 0),
    ]
}
