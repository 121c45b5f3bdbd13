//! A stream that has lasted: its Message Sequence Numbers wrap, on every queue.

use crate::common::{Pair, at};
use crate::{Op, RdmapConfig};

// [test:RFC5041-4.3-10]
#[test]
fn sequence_numbers_wrap_on_all_queues() {
    let mut pair = Pair::open(RdmapConfig::default(), RdmapConfig::default());
    for end in &mut pair.ends {
        end.stream.set_msn(u32::MAX - 1);
    }
    for n in 0..2 {
        pair.receives(n, 5, 8);
        for _ in 0..5 {
            pair.ends[n].post(Op::Send, b"wrapping");
            pair.ends[n].post(Op::Read { remote: at(8), invalidate: None }, &[0; 8]);
            pair.ends[n].post(Op::FetchAdd { remote: at(64), add: 1, mask: 0 }, &[0; 8]);
        }
    }
    pair.run();
    for end in &pair.ends {
        end.host.assert_all_completed();
        assert!(end.host.received.iter().all(|(_, bytes)| bytes == b"wrapping"));
        assert_eq!((end.host.received.len(), end.host.memory[64]), (5, 5));
        // RFC 5041 section 4.3: 0 follows the largest number.
        let sends = end.host.requests.iter().step_by(3).map(|posted| posted.msn);
        assert!(sends.eq([u32::MAX - 1, u32::MAX, 0, 1, 2].map(Some)));
    }
}
