//! `connects [SLICES]`: connections set up a second, 64 under way on both sides, beside TCP accept
//! and connect.
//!
//! Alternating slices of half a second over loopback, a thread a side; prints the rates of each
//! round: ours, TCP's, and TCP's again (`cargo xtask bench connects`).

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uiw_verbs::cm::{self, CmChannel, CmEvent, CmEventKind, ConnId, Listener};
use uiw_verbs::{ConnConfig, Cq, CqConfig, Device, Pd, Qp, QpInit};

const IN_FLIGHT: usize = 64;
const SLICE: Duration = Duration::from_millis(500);

fn main() -> io::Result<()> {
    let slices = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(21);
    for round in 0..slices {
        // The order changes from round to round.
        let order: [fn() -> io::Result<f64>; 2] =
            if round % 2 == 0 { [ours, raw] } else { [raw, ours] };
        let first = order[0]()?;
        let second = order[1]()?;
        let (ours, tcp) = if round % 2 == 0 { (first, second) } else { (second, first) };
        println!("{{\"connects\": [{ours}, {tcp}, {}]}}", raw()?);
    }
    Ok(())
}

/// Connections of ours a second.
fn ours() -> io::Result<f64> {
    let stop = AtomicBool::new(false);
    let server = ConnectSide::new();
    let options = Arc::new(ConnConfig::default());
    let any = "127.0.0.1:0".parse().map_err(io::Error::other)?;
    let listener = Listener::bind(&server.device, any, 256, &options, &server.channel)
        .map_err(io::Error::other)?;
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&server, &stop));
        let count = connect(to, &options);
        stop.store(true, Ordering::Relaxed);
        Ok(count as f64 / SLICE.as_secs_f64())
    })
}

struct ConnectSide {
    device: Device,
    pd: Pd,
    cq: Arc<Cq>,
    channel: Arc<CmChannel>,
}

impl ConnectSide {
    fn new() -> Self {
        let device = Device::open().expect("a device");
        let pd = device.alloc_pd().expect("a protection domain");
        let cq = device.create_cq(1024, CqConfig::default()).expect("a completion queue");
        Self { device, pd, cq, channel: Arc::default() }
    }

    fn qp(&self) -> Qp {
        let init = QpInit::new(&self.cq, &self.cq).signal_all(false);
        self.pd.create_qp(init).expect("a queue pair")
    }

    fn event(&self, until: Instant) -> Option<CmEvent> {
        self.device.wait(Some(until), |cx| self.channel.poll_pop(cx))
    }
}

fn serve(server: &ConnectSide, stop: &AtomicBool) {
    let mut qps = HashMap::new();
    while !stop.load(Ordering::Relaxed) {
        let Some(CmEvent { id, kind }) = server.event(Instant::now() + Duration::from_millis(20))
        else {
            continue;
        };
        match kind {
            CmEventKind::ConnectRequest(request) => {
                let qp = server.qp();
                if request.accept(&qp, None, b"", None).is_ok() {
                    qps.insert(id, qp);
                }
            }
            CmEventKind::Disconnected(_) | CmEventKind::Failed(_) => drop(qps.remove(&id)),
            _ => {}
        }
    }
}

fn connect(to: SocketAddr, options: &Arc<ConnConfig>) -> usize {
    let client = ConnectSide::new();
    let mut qps = HashMap::new();
    let begin = |qps: &mut HashMap<ConnId, Qp>| {
        let qp = client.qp();
        let connection =
            cm::connect(&qp, None, to, options, b"", &client.channel).expect("a connection begun");
        qps.insert(connection.id(), qp);
    };
    (0..IN_FLIGHT).for_each(|_| begin(&mut qps));
    let until = Instant::now() + SLICE;
    let mut count = 0;
    while Instant::now() < until
        && let Some(CmEvent { id, kind }) = client.event(until)
    {
        if matches!(kind, CmEventKind::Established(_)) {
            count += 1;
            drop(qps.remove(&id));
            begin(&mut qps);
        }
    }
    count
}

/// TCP connections a second. One is made when the server has accepted it, which its close shows:
/// connects alone would run ahead and overflow the listener's queue.
fn raw() -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((stream, _)) = listener.accept() {
                drop(stream);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let begin = || -> io::Result<socket2::Socket> {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            match socket.connect(&to.into()) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
                _ => Ok(socket),
            }
        };
        let mut sockets = (0..IN_FLIGHT).map(|_| begin()).collect::<io::Result<Vec<_>>>()?;
        let until = Instant::now() + SLICE;
        let mut count = 0u32;
        while Instant::now() < until {
            let mut polled: Vec<_> = sockets
                .iter()
                .map(|socket| libc::pollfd {
                    fd: socket.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                })
                .collect();
            // SAFETY: `polled` is a slice of that many entries.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 20) };
            for (socket, polled) in sockets.iter_mut().zip(&polled) {
                if polled.revents != 0 {
                    count += 1;
                    *socket = begin()?;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(to)?);
        Ok(f64::from(count) / SLICE.as_secs_f64())
    })
}
