//! iWARP over smoltcp and over the kernel's TCP, compared with bare smoltcp and the kernel's TCP,
//! on a veth or an emulated path.
//!
//! On emulated paths, ours is compared with the rate of the path. smoltcp uses cubic as its
//! congestion control, both below ours and alone.

use super::paths::{BenchNetwork, stream_figure};
use super::programs::{Lab, json_object, rotate};
use super::{RatioBar, RatioLine, RatioSpread, TableRow, median};
use uiw_interop::stock::free_port;
use uiw_siw::{Error, Result};

/// Stack to measure.
#[derive(Clone, Copy)]
enum MeasuredStack {
    /// `uiw perf` over `xdp`, `packet` or `tcp`.
    Uiw(&'static str, &'static str),
    /// smoltcp alone over AF_XDP.
    Smoltcp,
    /// The kernel's TCP with this congestion control. Of two sizes of writes, the faster one
    /// counts.
    Tcp(&'static str),
    /// Round trips of the kernel's TCP, with polling ends.
    TcpPing(&'static str),
}

/// Programs that a row compares, and the path between them.
#[derive(Clone, Copy)]
struct StackCase {
    mtu: u32,
    v6: bool,
    /// True if the path has a rate of 1 Gbit/s, a round trip of 10 ms, and a queue of 1.5 MB.
    is_long: bool,
    ours: MeasuredStack,
    theirs: MeasuredStack,
}

const WRITE: &str = "--op write --size 1M";
const PING: &str = "--op write --size 64 --latency --spin";
const LONG: &str = "--delay 5ms --rate 1Gbit --queue 1500000 --seed 1";
/// Rate of a long path in bytes per second.
const LINE: f64 = 125e6;

pub(super) fn rows() -> Vec<TableRow> {
    let row = |name, bar, case: StackCase| TableRow::new(name, bar, move |lab| measure(lab, case));
    let veth = |ours, theirs| StackCase { mtu: 1500, v6: false, is_long: false, ours, theirs };
    let xdp = veth(MeasuredStack::Uiw("xdp", WRITE), MeasuredStack::Smoltcp);
    let packet =
        |congestion| veth(MeasuredStack::Uiw("packet", WRITE), MeasuredStack::Tcp(congestion));
    let ping = veth(MeasuredStack::Uiw("xdp", PING), MeasuredStack::TcpPing("cubic"));
    let long = |name, kind, args, congestion| {
        let case = StackCase {
            is_long: true,
            ..veth(MeasuredStack::Uiw(kind, args), MeasuredStack::Tcp(congestion))
        };
        row(name, RatioBar::AtLeast(0.90), case)
    };
    let deep = "--op write --size 1M --depth 8";
    let (cubic, bbr) = (
        "--op write --size 1M --depth 8 --congestion cubic",
        "--op write --size 1M --depth 8 --congestion bbr",
    );
    vec![
        row("xdp, bare smoltcp, MTU 1500", RatioBar::AtLeast(0.90), xdp),
        row("xdp, bare smoltcp, MTU 3498", RatioBar::AtLeast(0.90), StackCase { mtu: 3498, ..xdp }),
        row("packet, kernel TCP cubic", RatioBar::AtLeast(1.0), packet("cubic")),
        row("packet, kernel TCP bbr", RatioBar::AtLeast(1.0), packet("bbr")),
        row(
            "packet IPv6, kernel TCP cubic",
            RatioBar::AtLeast(1.0),
            StackCase { v6: true, ..packet("cubic") },
        ),
        row("xdp ping-pong, kernel TCP cubic", RatioBar::AtMost(0.60), ping),
        long("1 Gbit/s 10 ms, kernel TCP cubic", "tcp", cubic, "cubic"),
        long("1 Gbit/s 10 ms, kernel TCP bbr", "tcp", bbr, "bbr"),
        long("1 Gbit/s 10 ms, packet", "packet", deep, "cubic"),
        long("1 Gbit/s 10 ms, xdp", "xdp", deep, "cubic"),
    ]
}

fn measure(lab: &Lab, case: StackCase) -> Result<Vec<RatioLine>> {
    let place = BenchNetwork::new(lab, case.is_long)?;
    let _path = if case.is_long { Some(place.carry(LONG)?) } else { None };
    if !case.is_long {
        place.ip(|_| format!("link set veth0 mtu {}", case.mtu))?;
        place.ip(|host| format!("address add fd77::{host}/64 dev veth0 nodad"))?;
    }
    let seconds = lab.seconds(1.0) * if case.is_long { 6.0 } else { 1.0 };
    let theirs = |_| case.slice(&place, case.theirs, seconds);
    let slices =
        rotate(lab.rounds, &[&theirs, &|_| case.slice(&place, case.ours, seconds), &theirs])?;
    let [first, ours, second] = &slices[..] else {
        return Err(Error::Failed("three slices".to_owned()));
    };
    let noise =
        median(&second.iter().zip(first).map(|(second, first)| second / first).collect::<Vec<_>>());
    let line = match (case.is_long, case.theirs) {
        (true, _) => {
            let share = RatioSpread::new(ours.iter().map(|ours| ours / LINE));
            RatioLine::new(
                "of the line",
                share,
                format!("bare kernel TCP {:.3} of the line", median(first) / LINE),
            )
        }
        (false, MeasuredStack::TcpPing(_)) => {
            RatioLine::ratio("of the bare stack", ours, first, (1.0, "us"))
        }
        (false, _) => RatioLine::ratio("of the bare stack", ours, first, (1e9, "GB/s")),
    };
    Ok(vec![line.noise(noise)])
}

impl StackCase {
    /// Returns the size of the buffers of uiw and smoltcp.
    ///
    /// On the path, it is larger than the product of bandwidth and delay (1.25 MB), but less than
    /// the sum of that product and the queue. A veth has room for 256 frames. With AF_XDP, the
    /// frames of a larger window are lost if the receiver is late, and bare smoltcp recovers only
    /// after a second.
    fn buffer(&self) -> &'static str {
        match self {
            Self { is_long: true, .. } => "2M",
            Self { theirs: MeasuredStack::Smoltcp, mtu: 1500, .. } => "256K",
            Self { theirs: MeasuredStack::Smoltcp, .. } => "512K",
            // The kernel's TCP, with which it is compared, uses windows of up to 6 MB by default.
            Self { ours: MeasuredStack::Uiw("packet", _), .. } => "4M",
            _ => "1M",
        }
    }

    /// Measures one slice: bytes per second, or microseconds of a round trip.
    fn slice(&self, place: &BenchNetwork, stack: MeasuredStack, seconds: f64) -> Result<f64> {
        let port = free_port();
        let at = |host: u8| {
            if self.v6 {
                format!("[fd77::{host}]:{port}")
            } else {
                format!("10.77.0.{host}:{port}")
            }
        };
        let own = |kind: &str, host: u8| {
            let address =
                if self.v6 { format!("fd77::{host}/64") } else { format!("10.77.0.{host}/24") };
            format!("{kind}:veth0,ip={address},buffer={}", self.buffer())
        };
        match stack {
            MeasuredStack::Tcp(congestion) => {
                let [a, b] = [64_000, 262_144]
                    .map(|size| place.tcp(&at(1), congestion, "connect", seconds, size));
                Ok(a?.max(b?))
            }
            MeasuredStack::TcpPing(congestion) => {
                place.tcp(&at(1), congestion, "ping", seconds, 64)
            }
            MeasuredStack::Smoltcp => {
                let bare = |words: &str| place.command(&place.bare, words);
                let _server = place.serve(
                    bare(&format!("smoltcp {} listen {port}", own("xdp", 11))),
                    "listening",
                )?;
                let client =
                    bare(&format!("smoltcp {} connect {} {seconds}", own("xdp", 12), at(11)));
                stream_figure(&json_object(&place.run(client)?)?)
            }
            MeasuredStack::Uiw(kind, args) => {
                let is_tcp = kind == "tcp";
                let stack = |host| if is_tcp { "tcp".to_owned() } else { own(kind, host) };
                let at = at(if is_tcp { 1 } else { 11 });
                let client =
                    format!("--llp {} perf {at} --json --seconds {seconds} {args}", stack(12));
                place.perf(&format!("--llp {} serve --listen {at}", stack(11)), &client)
            }
        }
    }
}
