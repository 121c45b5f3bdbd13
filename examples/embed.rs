//! The protocol crates alone, over a byte stream of your own (here two vectors): no socket, no thread, no clock. An initiator
//! connects, says its RTR message, and sends one Send, which the responder takes apart layer by layer.

use ddp::{Header, UntaggedRx};
use mpa::rx::{FpduRx, Step};
use mpa::startup::{Config, Initiator, Outcome, Responder, Rtr};
use mpa::tx::FpduTx;
use rdmap::{Extensions, Opcode, QN_SEND, StreamRx};
use std::error::Error;

fn fpdu(tx: &mut FpduTx, wire: &mut Vec<u8>, header: Header, payload: &[u8]) {
    let mut out = vec![0; 2];
    out.resize(2 + header.len(), 0);
    header.emit(&mut out[2..]);
    out.extend_from_slice(payload);
    tx.seal(&mut out, 0);
    wire.append(&mut out);
}

fn main() -> Result<(), Box<dyn Error>> {
    // Start-up: Request there, Reply back.
    let initiator = Initiator::new(Config::default(), b"hello")?;
    let mut responder = Responder::new(Config::default());
    let wire = initiator.request();
    let (_, request) = responder.request(&wire)?.ok_or("the Request is not whole")?;
    println!("Request with private data {:?}", String::from_utf8_lossy(request.private_data()));
    let (wire, theirs) = responder.accept(&request, &Config::default(), b"")?;
    let (_, outcome) = initiator.reply(&wire)?.ok_or("the Reply is not whole")?;
    let Outcome::Accepted { negotiated: ours, .. } = outcome else { return Err("rejected".into()) };
    println!("negotiated: CRC {}, IRD {}, ORD {}, RTR {:?}", ours.crc, ours.ird, ours.ord, ours.rtr);

    // The initiator's octets: the RTR message (a zero-length Write, which names no memory), then a Send.
    let mut tx = FpduTx::new(ours.crc, ours.markers_tx);
    let mut wire = Vec::new();
    if ours.rtr == Some(Rtr::Write) {
        let rtr = rdmap::tagged_header(Opcode::Write, ddp::STag(1), 0, true);
        fpdu(&mut tx, &mut wire, Header::Tagged(rtr), b"");
    }
    let send = rdmap::untagged_header(Opcode::Send, QN_SEND, 1, 0, true, 0);
    fpdu(&mut tx, &mut wire, Header::Untagged(send), b"a message without a socket");

    // The responder: octets to FPDUs, FPDUs to segments, segments to messages.
    let mut rx = FpduRx::new(theirs.crc, theirs.markers_rx);
    let mut stream = StreamRx::new(Extensions::default());
    let mut queue = UntaggedRx::new(1);
    let mut at = 0;
    while let Step::Fpdu(fpdu) = rx.next(&mut wire[at..])? {
        let ulpdu = &wire[at + fpdu.ulpdu.start..at + fpdu.ulpdu.end];
        let (header, header_len) = Header::parse(ulpdu)?;
        let message = stream.admit(&header)?;
        let payload = &ulpdu[header_len..];
        println!("{message:?} with {:?}", String::from_utf8_lossy(payload));
        if let Header::Untagged(untagged) = header {
            queue.check(&untagged, payload.len() as u32, Some(4096))?;
            if let Some(delivered) = queue.placed(&untagged, payload.len() as u32) {
                println!("message {} delivered, {} octets", delivered.msn, delivered.len);
            }
        }
        at += fpdu.consumed;
    }
    Ok(())
}
