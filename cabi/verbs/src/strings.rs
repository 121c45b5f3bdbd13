//! Texts for values (`ibv_*_str`), and conversions of rates.

use std::ffi::{CStr, c_char, c_int};

fn word(words: &[&'static CStr], value: c_int, otherwise: &'static CStr) -> *const c_char {
    usize::try_from(value).ok().and_then(|value| words.get(value)).unwrap_or(&otherwise).as_ptr()
}

/// `ibv_node_type_str`.
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    let words = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(&words, node_type, c"unknown")
}

/// `ibv_port_state_str`.
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    let words = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    word(&words, state, c"unknown")
}

/// `ibv_wr_opcode_str`.
pub extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    let words = [
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        // 12 and 13 are not requests.
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    word(&words, opcode, c"unknown")
}

/// `ibv_event_type_str`.
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    let words = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    word(&words, event, c"unknown")
}

/// `ibv_wc_status_str`.
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    let words = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(&words, status, c"unknown")
}

/// Rates: C's number, the rate as a multiple of 2.5 Gbit/s (rounded as in rdma-core; 0 if rdma-core
/// has none), and the rate in Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `ibv_rate_to_mult`: returns -1 for a rate that is not a multiple.
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate && r.1 > 0).map_or(-1, |r| r.1)
}

/// `mult_to_ibv_rate`: returns 0 (the maximum rate of the port) for any other multiple.
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    RATES.iter().find(|r| r.1 == multiple && r.1 > 0).map_or(0, |r| r.0)
}

/// `ibv_rate_to_mbps`: returns -1 for an unknown rate.
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// `mbps_to_ibv_rate`: returns 0 (the maximum rate of the port) for any other speed.
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.2 == mbps).map_or(0, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: *const c_char) -> &'static str {
        // SAFETY: all callers pass the result of an `ibv_*_str` function, which points to a literal
        // that ends in NUL and lives forever.
        unsafe { CStr::from_ptr(words) }.to_str().unwrap()
    }

    #[test]
    fn unknown_values_have_a_text() {
        assert_eq!(text(ibv_wc_status_str(5)), "Work Request Flushed Error");
        assert_eq!(text(ibv_node_type_str(4)), "iWARP NIC");
        for unknown in [-1, 99, c_int::MIN] {
            assert_eq!(text(ibv_wc_status_str(unknown)), "unknown");
            assert_eq!(text(ibv_event_type_str(unknown)), "unknown");
            assert_eq!(text(ibv_port_state_str(unknown)), "unknown");
            assert_eq!(text(ibv_node_type_str(unknown)), "unknown");
        }
    }

    #[test]
    fn rates_go_both_ways() {
        for (rate, multiple, mbps) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            if multiple > 0 {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(rate)), rate);
            }
        }
        assert_eq!(ibv_rate_to_mbps(1), -1);
    }
}
