//! iWARP inside of somebody's own smoltcp loop: no thread, no descriptor, the loop's own clock. Two sockets of one interface talk
//! over a device in memory. FPDUs are taken where they lie in a socket's receive buffer.

use ddp::{Header, STag};
use mpa::rx::{FpduRx, Step};
use mpa::startup::{Config, Initiator, Negotiated, Outcome, Responder, Rtr};
use mpa::tx::FpduTx;
use rdmap::{Extensions, Inbound, Opcode, QN_SEND, StreamRx};
use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketSet};
use smoltcp::phy::{Loopback, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What one end is doing.
enum Phase {
    Asking(Initiator),
    Asked(Responder),
    Open { tx: FpduTx, rx: FpduRx, messages: StreamRx },
}

/// One end: a state machine that the loop gives its socket.
struct End {
    phase: Phase,
    /// Octets that the socket has not taken yet.
    out: Vec<u8>,
    sent: u32,
    heard: Vec<String>,
}

impl End {
    fn initiator() -> Result<Self> {
        let initiator = Initiator::new(Config::default(), b"")?;
        let out = initiator.request();
        Ok(Self { phase: Phase::Asking(initiator), out, sent: 0, heard: Vec::new() })
    }

    fn responder() -> Self {
        let phase = Phase::Asked(Responder::new(Config::default()));
        Self { phase, out: Vec::new(), sent: 0, heard: Vec::new() }
    }

    /// Called by the loop after every poll of the interface.
    fn step(&mut self, socket: &mut Socket<'_>) -> Result<()> {
        if socket.can_recv() {
            // `octets` is the receive buffer itself.
            socket.recv(|octets| match self.receive(octets) {
                Ok(used) => (used, Ok(())),
                Err(error) => (0, Err(error)),
            })??;
        }
        if socket.can_send() && !self.out.is_empty() {
            let taken = socket.send_slice(&self.out)?;
            self.out.drain(..taken);
        }
        Ok(())
    }

    /// Takes what is whole of `octets`. What is not stays in the socket; one that wraps the buffer's end would have to be copied
    /// together, as uiw's own engine does.
    fn receive(&mut self, octets: &mut [u8]) -> Result<usize> {
        match &mut self.phase {
            Phase::Asking(initiator) => {
                let Some((used, outcome)) = initiator.reply(octets)? else { return Ok(0) };
                let Outcome::Accepted { negotiated, .. } = outcome else { return Err("rejected".into()) };
                self.open(&negotiated);
                if negotiated.rtr == Some(Rtr::Write) {
                    let header = rdmap::tagged_header(Opcode::Write, STag(1), 0, true);
                    self.fpdu(Header::Tagged(header), b"");
                }
                self.send(b"from inside the loop");
                Ok(used)
            }
            Phase::Asked(responder) => {
                let Some((used, request)) = responder.request(octets)? else { return Ok(0) };
                let (reply, negotiated) = responder.accept(&request, &Config::default(), b"")?;
                self.out.extend(reply);
                self.open(&negotiated);
                Ok(used)
            }
            Phase::Open { .. } => self.fpdus(octets),
        }
    }

    fn open(&mut self, negotiated: &Negotiated) {
        self.phase = Phase::Open {
            tx: FpduTx::new(negotiated.crc, negotiated.markers_tx),
            rx: FpduRx::new(negotiated.crc, negotiated.markers_rx),
            messages: StreamRx::new(Extensions::default()),
        };
    }

    fn fpdus(&mut self, octets: &mut [u8]) -> Result<usize> {
        let mut at = 0;
        while let Phase::Open { rx, messages, .. } = &mut self.phase {
            let Step::Fpdu(fpdu) = rx.next(&mut octets[at..])? else { break };
            let ulpdu = fpdu.ulpdu.as_bytes();
            let (header, header_len) = Header::parse(ulpdu)?;
            if let Inbound::Send { .. } = messages.admit(&header)? {
                let text = String::from_utf8_lossy(&ulpdu[header_len..]).into_owned();
                if self.sent == 0 {
                    self.send(format!("{text}, and back").as_bytes());
                }
                self.heard.push(text);
            }
            at += fpdu.consumed;
        }
        Ok(at)
    }

    fn send(&mut self, octets: &[u8]) {
        self.sent += 1;
        let header = rdmap::untagged_header(Opcode::Send, QN_SEND, self.sent, 0, true, 0);
        self.fpdu(Header::Untagged(header), octets);
    }

    fn fpdu(&mut self, header: Header, payload: &[u8]) {
        let Phase::Open { tx, .. } = &mut self.phase else { return };
        let start = self.out.len();
        self.out.resize(start + 2 + header.len(), 0);
        header.emit(&mut self.out[start + 2..]);
        self.out.extend_from_slice(payload);
        tx.seal(&mut self.out, start);
    }
}

fn main() -> Result<()> {
    let mut device = Loopback::new(Medium::Ethernet);
    let mut now = Instant::ZERO;
    let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let mut interface = Interface::new(InterfaceConfig::new(mac.into()), &mut device, now);
    let address = IpAddress::v4(127, 0, 0, 1);
    interface.update_ip_addrs(|list| list.push(IpCidr::new(address, 8)).expect("room for one address"));

    let ring = || SocketBuffer::new(vec![0; 64 << 10]);
    let mut sockets = SocketSet::new(Vec::new());
    let server = sockets.add(Socket::new(ring(), ring()));
    let client = sockets.add(Socket::new(ring(), ring()));
    sockets.get_mut::<Socket<'_>>(server).listen(4791)?;
    sockets.get_mut::<Socket<'_>>(client).connect(interface.context(), (address, 4791), 49_152)?;

    let mut ends = [(server, End::responder()), (client, End::initiator()?)];
    while ends.iter().any(|(_, end)| end.heard.is_empty()) {
        interface.poll(now, &mut device, &mut sockets);
        for (handle, end) in &mut ends {
            end.step(sockets.get_mut::<Socket<'_>>(*handle))?;
        }
        // The loop's own clock: this one never waits.
        now += Duration::from_millis(1);
        if now > Instant::from_secs(10) {
            return Err("nothing happens".into());
        }
    }
    for (_, end) in &ends {
        println!("heard {:?}", end.heard);
    }
    Ok(())
}
