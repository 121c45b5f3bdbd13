//! Messages that the two ends of `embed_stream` and `embed_smoltcp` exchange, and the expected
//! results.

use crate::embed_host::{MEMORY, Peer};
use std::error::Error;
use uiw::stream::{
    ConnError, Event, Op, PeerKind, RdmapConfig, RdmapStream, Remote, STag, TerminateReason, Time,
};

pub(crate) type AnyError = Box<dyn Error + Send + Sync>;

/// STag that refers to no memory.
pub(crate) const SINK: STag = STag(0xFFFF_FF00);

impl Peer {
    /// Creates the end with the memory: 56 bytes and a counter.
    pub(crate) fn responder() -> Self {
        Self { memory: [vec![0; 56], 37u64.to_ne_bytes().to_vec()].concat(), ..Self::default() }
    }

    /// Handles an event: the responder sends the STag of its memory, and the initiator uses the
    /// memory.
    pub(crate) fn on_event(
        &mut self,
        event: Event,
        stream: &mut RdmapStream<Vec<u8>>,
        now: Time,
    ) -> Result<(), AnyError> {
        match event {
            Event::Requested(_) => {
                _ = stream.accept(RdmapConfig::default(), &MEMORY.0.to_be_bytes(), now)?;
            }
            Event::Established(with) if stream.is_initiator() => {
                self.use_memory(&with.private_data)?;
            }
            Event::Established(_) => self.post(Op::Send, b"welcome", false),
            Event::Peer(kind) => self.kind = Some(kind),
            Event::Failed(failure) => return Err(failure.into()),
            Event::Ended(how) => self.ended = Some(how),
            Event::Reconnect | Event::Drained => {}
        }
        stream.doorbell();
        Ok(())
    }

    /// Posts each kind of operation, and finally a Write that violates a rule.
    fn use_memory(&mut self, stag: &[u8]) -> Result<(), AnyError> {
        let stag = STag(u32::from_be_bytes(stag.try_into()?));
        let at = |to| Remote { stag, to };
        self.post(Op::Write { remote: at(8) }, b"placed by a Write", false);
        self.post(Op::Read { remote: at(8), invalidate: None }, &[0; 17], false);
        self.post(Op::FetchAdd { remote: at(56), add: 5, mask: 0 }, &[0; 8], false);
        self.post(Op::Send, b"look", false);
        self.post(Op::Write { remote: at(60) }, b"beyond", true);
        Ok(())
    }
}

/// Prints the results, and panics if they are not as expected.
pub(crate) fn report(initiator: &Peer, responder: &Peer) {
    for (name, peer) in [("initiator", initiator), ("responder", responder)] {
        let error = &peer.ended.as_ref().expect("the stream has ended").error;
        println!("{name}: {:?}\n{name}: received {:?}, {error}", peer.kind, peer.messages);
        assert!(matches!(peer.kind, Some(PeerKind::Capable(_))), "both have every extension");
    }
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    let (read, before) = (&initiator.requests[1].1, number(&initiator.requests[2].1));
    let (written, after) = (&responder.memory[8..25], number(&responder.memory[56..]));
    println!(
        "initiator: read {:?}; the counter was {before}, now is {after}",
        String::from_utf8_lossy(read)
    );
    assert_eq!((written, &read[..]), (&b"placed by a Write"[..], &b"placed by a Write"[..]));
    assert_eq!((before, after), (37, 42));
    assert_eq!(
        (&*initiator.messages, &*responder.messages),
        (&["welcome".into()][..], &["look".into()][..])
    );
    let mut completed = initiator.completed.clone();
    completed.sort_unstable();
    assert_eq!((&*completed, &*responder.completed), (&[0, 1, 2, 3, 4][..], &[0][..]));
    let Some(ConnError::Terminated(terminate, _)) =
        initiator.ended.as_ref().map(|ended| &ended.error)
    else {
        panic!("the initiator got no Terminate")
    };
    assert_eq!(terminate.reason(), TerminateReason::TaggedBaseOrBounds);
}
