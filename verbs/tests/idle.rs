//! What idle connections hold: counted by the allocator, the kernel's memory for sockets aside.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uiw_verbs::cm::{self, CmChannel, CmEventKind, Listener};
use uiw_verbs::{ConnOptions, Cq, CqOptions, Device, Pd, Qp, QpInit};

/// Bytes allocated and not freed.
static HELD: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Each has two ends in this process; fewer where the process may not have as many descriptors.
const CONNECTIONS: usize = 5000;
/// What one end may hold while nothing moves.
const BOUND: usize = 16 << 10;

struct Side {
    device: Device,
    pd: Pd,
    cq: Arc<Cq>,
    channel: Arc<CmChannel>,
    qps: Vec<Qp>,
}

impl Side {
    fn new() -> Self {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024, CqOptions::default()).unwrap();
        Self { device, pd, cq, channel: Arc::default(), qps: Vec::new() }
    }

    fn qp(&mut self) -> &Qp {
        let init = QpInit::new(&self.cq, &self.cq).signal_all(false);
        self.qps.push(self.pd.create_qp(init).unwrap());
        &self.qps[self.qps.len() - 1]
    }

    fn event(&self) -> CmEventKind {
        let until = Some(Instant::now() + TIMEOUT);
        self.device.wait(until, |cx| self.channel.poll_pop(cx)).expect("an event").kind
    }
}

fn connect(client: &mut Side, server: &mut Side, to: SocketAddr, options: &Arc<ConnOptions>) {
    let channel = Arc::clone(&client.channel);
    cm::connect(client.qp(), None, to, options, b"", &channel).unwrap();
    let CmEventKind::ConnectRequest(request) = server.event() else { panic!("no request") };
    request.accept(server.qp(), None, b"", None).unwrap();
    for side in [client, server] {
        assert!(matches!(side.event(), CmEventKind::Established(_)));
    }
}

/// Descriptors the process may have, raised as far as it may.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid `rlimit`.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

#[test]
fn an_idle_connection_holds_at_most_16_kib() {
    let (mut client, mut server) = (Side::new(), Side::new());
    let options = Arc::new(ConnOptions::default());
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&server.device, any, 64, &options, &server.channel).unwrap();
    // What the first ones allocate for all: tables, staging.
    (0..8).for_each(|_| connect(&mut client, &mut server, listener.local_addr(), &options));
    let before = HELD.load(Ordering::Relaxed);
    let connections = CONNECTIONS.min((descriptors() - 100) / 2);
    (0..connections).for_each(|_| connect(&mut client, &mut server, listener.local_addr(), &options));
    let each = (HELD.load(Ordering::Relaxed) - before) / (2 * connections);
    println!("{} idle ends hold {each} bytes each", 2 * connections);
    assert!(each <= BOUND, "{each} bytes an idle end");
}
