//! Tests of the atomic operations against the pseudo-code of RFC 7306, bit by bit.

use proptest::prelude::*;
use uiw_ddp::STag;
use uiw_rdmap::{AtomicOp, AtomicRequest, AtomicResponse};

/// FetchAdd, line for line as in RFC 7306 section 5.1.1.
fn fetch_add(old: u64, add: u64, mask: u64) -> u64 {
    let (mut bit_location, mut carry, mut new) = (1u64, 0, 0);
    for bit in 0..64 {
        if bit != 0 {
            bit_location <<= 1;
        }
        let val1 = (old & bit_location) >> bit;
        let val2 = (add & bit_location) >> bit;
        let mut sum = carry + val1 + val2;
        carry = (sum & 2) >> 1;
        sum &= 1;
        if sum != 0 {
            new |= bit_location;
        }
        carry = u64::from(carry != 0 && mask & bit_location == 0);
    }
    new
}

/// CmpSwap, bit for bit as in RFC 7306 section 5.1.2.
fn cmp_swap(old: u64, request: &AtomicRequest) -> u64 {
    let bit = |word: u64, n: u32| word >> n & 1;
    if (0..64).any(|n| bit(request.compare_mask, n) == 1 && bit(request.compare, n) != bit(old, n))
    {
        return old;
    }
    (0..64).map(|n| bit(if bit(request.mask, n) == 1 { request.data } else { old }, n) << n).sum()
}

fn add(data: u64, mask: u64) -> AtomicRequest {
    AtomicRequest::fetch_add(1, STag(2), 8, data, mask)
}

#[test]
fn fields_do_not_carry() {
    // Four fields of 16 bits.
    let mask = 0x8000_8000_8000_8000;
    assert_eq!(
        add(0x0001_0001_0001_0001, mask).apply(0xFFFF_0000_FFFF_7FFF),
        0x0000_0001_0000_8000
    );
    // One field of 64 bits.
    assert_eq!(add(1, 0).apply(u64::MAX), 0);
    assert_eq!(add(1, 1 << 63).apply(u64::MAX), 0);
    assert_eq!(add(5, 0).apply(37), 42);
    // 64 fields of one bit.
    assert_eq!(add(0xFF00, u64::MAX).apply(0x0FF0), 0xF0F0);
}

#[test]
fn swap_requires_masked_equality() {
    let request = AtomicRequest {
        op: AtomicOp::CmpSwap,
        compare: 42,
        compare_mask: u64::MAX,
        ..add(99, u64::MAX)
    };
    assert_eq!((request.apply(42), request.apply(43)), (99, 43));
    let masked = AtomicRequest {
        mask: 0xFF00,
        compare_mask: 0x00FF,
        compare: 0x12,
        data: 0xABCD,
        ..request
    };
    assert_eq!((masked.apply(0x3412), masked.apply(0x3413)), (0xAB12, 0x3413));
    let blind = AtomicRequest { compare_mask: 0, ..request };
    assert_eq!(blind.apply(7), 99, "nothing is compared: a plain swap");
}

/// Returns masks with few or many fields, and ordinary numbers.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        Just(0),
        Just(u64::MAX),
        (0..64u32).prop_map(|n| 1 << n),
        (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, c)| a & b & c),
    ]
}

proptest! {
    // [test:RFC7306-5-03] [test:RFC7306-5.1.2-01]
    #[test]
    fn operations_follow_pseudo_code(old in word(), data in word(), mask in word(), compare in word(), compare_mask in word()) {
        prop_assert_eq!(add(data, mask).apply(old), fetch_add(old, data, mask));
        for compare in [compare, old, old ^ compare & !compare_mask] {
            let request = AtomicRequest { op: AtomicOp::CmpSwap, compare, compare_mask, ..add(data, mask) };
            prop_assert_eq!(request.apply(old), cmp_swap(old, &request));
        }
    }

    #[test]
    fn bytes_and_back(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(request) = AtomicRequest::parse(&bytes) {
            prop_assert_eq!(AtomicRequest::parse(&request.emit()).map(|again| again.to), Ok(request.to));
            prop_assert_eq!(&request.emit()[4..36], &bytes[4..36]);
        }
        if let Ok(response) = AtomicResponse::parse(&bytes) {
            prop_assert_eq!(&response.emit()[..], &bytes[..]);
        }
    }
}
