//! What iWARP is measured beside (`cargo xtask bench stacks`): bytes over a bare TCP, without a
//! protocol above it.
//!
//! ```text
//! bare smoltcp xdp:IFACE,ip=ADDR/PREFIX listen PORT                 smoltcp alone on the same device, one socket
//! bare smoltcp xdp:IFACE,ip=ADDR/PREFIX connect ADDR:PORT SECONDS
//! bare tcp CONGESTION listen ADDR:PORT                              the kernel's TCP; serves either of
//! bare tcp CONGESTION connect ADDR:PORT SECONDS WRITE               writes of so many bytes
//! bare tcp CONGESTION ping ADDR:PORT SECONDS SIZE                   round trips; both ends spin
//! ```
//!
//! Every process serves or makes one connection. Results are one line of JSON.

use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::Instant as Tick;
use smoltcp::wire::{EthernetAddress, IpCidr};
use socket2::{Domain, SockRef, Type};
use std::cell::RefCell;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use uiw_smol::Spec;
use uiw_smol::xdp::XdpLink;
use uiw_smol::{Frame, Link, SmolConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Number of bytes passed to a stream at a time.
const BLOCK: usize = 1 << 20;
/// Number of fruitless reads after which a spinning thread yields its core, as in
/// `uiw perf --spin`.
const SPINS: u32 = 2000;
/// Size of the Ethernet header in bytes.
const HEADER: usize = 14;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["smoltcp", spec, "listen", port] => BareStack::open(spec)?.serve(port.parse()?),
        ["smoltcp", spec, "connect", peer, seconds] => {
            BareStack::open(spec)?.write(peer.parse()?, time(seconds)?)
        }
        ["tcp", congestion, "listen", at] => serve(at.parse()?, congestion),
        ["tcp", congestion, "connect", peer, seconds, write] => {
            write_all(connect(peer.parse()?, congestion, 0, 1)?, time(seconds)?, write.parse()?)
        }
        ["tcp", congestion, "ping", peer, seconds, size] => {
            let size = size.parse()?;
            ping(connect(peer.parse()?, congestion, 1, size)?, time(seconds)?, size as usize)
        }
        _ => Err("usage: see the source".into()),
    }
}

fn time(seconds: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(seconds.parse()?)?)
}

fn print_rate(bytes: u64, elapsed: Duration) {
    println!("{{\"bytes_per_second\":{}}}", bytes as f64 / elapsed.as_secs_f64());
}

/// smoltcp device on one of our links.
struct LinkPort(RefCell<XdpLink>);

struct PortRx<'a>(<XdpLink as Link>::Frame, &'a RefCell<XdpLink>);
struct PortTx<'a>(&'a RefCell<XdpLink>);

impl RxToken for PortRx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(mut self, f: F) -> R {
        let result = f(self.0.bytes());
        self.1.borrow_mut().recycle(self.0);
        result
    }
}

impl TxToken for PortTx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let (mut f, mut result) = (Some(f), None);
        self.0.borrow_mut().transmit(len, &mut |bytes| {
            result = f.take().map(|f| f(bytes));
            None
        });
        result.expect("there was room")
    }
}

impl Device for LinkPort {
    type RxToken<'a> = PortRx<'a>;
    type TxToken<'a> = PortTx<'a>;

    fn receive(&mut self, _: Tick) -> Option<(PortRx<'_>, PortTx<'_>)> {
        let frame = {
            let mut link = self.0.borrow_mut();
            if !link.has_room() {
                return None;
            }
            link.receive()?
        };
        Some((PortRx(frame, &self.0), PortTx(&self.0)))
    }

    fn transmit(&mut self, _: Tick) -> Option<PortTx<'_>> {
        self.0.borrow_mut().has_room().then_some(PortTx(&self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.0.borrow().capabilities().mtu + HEADER;
        capabilities
    }
}

/// smoltcp alone: an interface and one socket, as in its own examples.
struct BareStack {
    device: LinkPort,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: smoltcp::iface::SocketHandle,
    start: Instant,
}

impl BareStack {
    fn open(spec: &str) -> Result<Self> {
        let Spec::Xdp { interface, config, mode } = spec.parse()? else {
            return Err("only xdp:".into());
        };
        let mut device = LinkPort(RefCell::new(XdpLink::open(&interface, mode, &config)?));
        let SmolConfig { mac, addresses, buffer, .. } = config;
        let mut interface =
            Interface::new(Config::new(EthernetAddress(mac).into()), &mut device, Tick::ZERO);
        for (address, prefix) in addresses {
            let mut room = true;
            interface.update_ip_addrs(|list| {
                room = list.push(IpCidr::new(address.into(), prefix)).is_ok();
            });
            assert!(room, "few addresses");
        }
        let ring = || SocketBuffer::new(vec![0; buffer]);
        let mut socket = Socket::new(ring(), ring());
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(CongestionControl::Cubic);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Ok(Self { device, interface, sockets, socket, start: Instant::now() })
    }

    fn poll(&mut self) -> &mut Socket<'static> {
        let now = Tick::from_micros(self.start.elapsed().as_micros() as i64);
        let moved = self.interface.poll(now, &mut self.device, &mut self.sockets);
        self.device.0.borrow_mut().flush();
        if moved == PollResult::None {
            // `uiw` does the same: on a busy machine the process that delivers the frames needs the
            // processor.
            std::thread::yield_now();
        }
        self.sockets.get_mut(self.socket)
    }

    fn serve(mut self, port: u16) -> Result<()> {
        self.poll().listen(port)?;
        println!("listening");
        let mut block = vec![0; BLOCK];
        loop {
            let socket = self.poll();
            if socket.can_recv() {
                // Data is received into the program's own memory, as in any program that reads a
                // byte stream.
                socket.recv_slice(&mut block)?;
            }
            match socket.state() {
                State::CloseWait if !socket.can_recv() => socket.close(),
                State::Closed => return Ok(()),
                _ => {}
            }
        }
    }

    fn write(mut self, peer: SocketAddr, time: Duration) -> Result<()> {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        socket.connect(
            self.interface.context(),
            peer,
            49_152 + (std::process::id() % 10_000) as u16,
        )?;
        while !self.poll().may_send() {}
        let (block, start, mut sent) = (vec![0x5A; BLOCK], Instant::now(), 0);
        while start.elapsed() < time {
            let socket = self.poll();
            if socket.can_send() {
                sent += socket.send_slice(&block)? as u64;
            }
        }
        print_rate(sent, start.elapsed());
        self.poll().close();
        while !matches!(self.poll().state(), State::Closed | State::TimeWait) {}
        Ok(())
    }
}

fn set(stream: &TcpStream, congestion: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_congestion(congestion.as_bytes())
}

/// Connects, and announces the kind of the run in the first bytes: 0 and any number, or 1 and the
/// size of a ping.
fn connect(peer: SocketAddr, congestion: &str, kind: u8, size: u32) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(peer)?;
    set(&stream, congestion)?;
    let [a, b, c, d] = size.to_be_bytes();
    stream.write_all(&[kind, a, b, c, d])?;
    Ok(stream)
}

fn serve(at: SocketAddr, congestion: &str) -> Result<()> {
    let listener = socket2::Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    listener.set_reuse_address(true)?;
    listener.bind(&at.into())?;
    listener.listen(1)?;
    println!("listening");
    let (stream, _) = listener.accept()?;
    let mut stream = TcpStream::from(stream);
    set(&stream, congestion)?;
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    let [kind, size @ ..] = header;
    if kind == 0 {
        let mut block = vec![0; BLOCK];
        while stream.read(&mut block)? > 0 {}
        return Ok(());
    }
    let mut message = vec![0; u32::from_be_bytes(size).min(1 << 20) as usize];
    stream.set_nonblocking(true)?;
    while receive(&mut stream, &mut message)? {
        stream.write_all(&message)?;
    }
    Ok(())
}

/// Receives a whole message without sleeping. Returns false at the end of the stream.
fn receive(stream: &mut TcpStream, message: &mut [u8]) -> io::Result<bool> {
    let (mut have, mut empty) = (0, 0);
    while have < message.len() {
        match stream.read(&mut message[have..]) {
            Ok(0) => return Ok(false),
            Ok(count) => have += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock && empty < SPINS => {
                empty += 1;
                std::hint::spin_loop();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn write_all(mut stream: TcpStream, time: Duration, write: usize) -> Result<()> {
    let (block, start, mut sent) = (vec![0x5A; write], Instant::now(), 0);
    while start.elapsed() < time {
        stream.write_all(&block)?;
        sent += write as u64;
    }
    print_rate(sent, start.elapsed());
    Ok(())
}

fn ping(mut stream: TcpStream, time: Duration, size: usize) -> Result<()> {
    stream.set_nonblocking(true)?;
    let (mut message, start, mut trips) = (vec![0x5A; size], Instant::now(), Vec::new());
    while start.elapsed() < time {
        let before = Instant::now();
        stream.write_all(&message)?;
        if !receive(&mut stream, &mut message)? {
            return Err("the peer has gone".into());
        }
        trips.push(before.elapsed().as_nanos() as u64);
    }
    trips.sort_unstable();
    println!("{{\"round_trip_us\":{{\"p50\":{}}}}}", trips[trips.len() / 2] as f64 / 1e3);
    Ok(())
}
