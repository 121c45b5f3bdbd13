//! The socket filters: frames to our MAC, and to groups. Without it every frame of the kernel's
//! would be copied to us.

use libc::{BPF_ABS, BPF_B, BPF_H, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

const fn op(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// The program for multicast groups alone, by the first two bytes of their MACs: 01:00 of IPv4 (RFC
/// 1112 section 6.4), 33:33 of IPv6 (RFC 2464 section 7).
pub(super) fn groups() -> [sock_filter; 5] {
    [
        op(BPF_LD | BPF_H | BPF_ABS, 0, 0, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, 0x0100, 1, 0),
        op(BPF_JMP | BPF_JEQ | BPF_K, 0x3333, 0, 1),
        op(BPF_RET | BPF_K, u32::MAX, 0, 0),
        op(BPF_RET | BPF_K, 0, 0, 0),
    ]
}

/// The program for no frame.
pub(super) fn nothing() -> [sock_filter; 1] {
    [op(BPF_RET | BPF_K, 0, 0, 0)]
}

/// The program for `mac`. The classic BPF machine sees the frame from its destination address on.
pub(super) fn program(mac: [u8; 6]) -> [sock_filter; 8] {
    let [a, b, c, d, e, f] = mac;
    let high = u32::from_be_bytes([a, b, c, d]);
    let low = u32::from(u16::from_be_bytes([e, f]));
    [
        // The group bit of the first byte.
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
