//! Measures the memory held by idle connections. The allocator counts it, so the kernel's memory
//! for sockets is not included.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use uiw_verbs::cm::{self, CmChannel, CmEventKind, Listener};
use uiw_verbs::{ConnConfig, Cq, CqConfig, Device, Pd, Qp, QpInit};

/// Number of bytes that are allocated and not freed.
static HELD: AtomicUsize = AtomicUsize::new(0);

struct CountingStack;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingStack {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingStack = CountingStack;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Number of connections, both ends of which are in this process; less if the process may not open
/// as many descriptors.
const CONNECTIONS: usize = 5000;
/// Maximum number of bytes that one idle end may hold.
const BOUND: usize = 16 << 10;
/// Maximum number of bytes that remain after the last device of the process is closed.
const REMAINDER: usize = 64 << 10;

struct IdleSide {
    device: Device,
    pd: Pd,
    cq: Arc<Cq>,
    channel: Arc<CmChannel>,
    qps: Vec<Qp>,
}

impl IdleSide {
    fn new() -> Self {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(1024, CqConfig::default()).unwrap();
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

fn connect(
    client: &mut IdleSide,
    server: &mut IdleSide,
    to: SocketAddr,
    options: &Arc<ConnConfig>,
) {
    let channel = Arc::clone(&client.channel);
    cm::connect(client.qp(), None, to, options, b"", &channel).unwrap();
    let CmEventKind::ConnectRequest(request) = server.event() else { panic!("no request") };
    request.accept(server.qp(), None, b"", None).unwrap();
    for side in [client, server] {
        assert!(matches!(side.event(), CmEventKind::Established(_)));
    }
}

/// Raises the limit of descriptors as far as possible and returns it.
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

/// Ensures that only one test counts at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the average memory in bytes that an end of a new connection holds.
fn held_each(connections: usize, options: &Arc<ConnConfig>) -> usize {
    let at_start = HELD.load(Ordering::Relaxed);
    let (mut client, mut server) = (IdleSide::new(), IdleSide::new());
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&server.device, any, 64, options, &server.channel).unwrap();
    // The first connections allocate memory that all connections share, such as tables and staging
    // buffers.
    (0..8).for_each(|_| connect(&mut client, &mut server, listener.local_addr(), options));
    let before = HELD.load(Ordering::Relaxed);
    (0..connections)
        .for_each(|_| connect(&mut client, &mut server, listener.local_addr(), options));
    let held = HELD.load(Ordering::Relaxed) - before;
    drop((client, server, listener));
    wait_until_freed(at_start + REMAINDER);
    held / (2 * connections)
}

/// Waits until the devices are closed, which a background thread does. It would free their tables
/// while the next test counts.
fn wait_until_freed(at_most: usize) {
    let until = Instant::now() + TIMEOUT;
    while HELD.load(Ordering::Relaxed) > at_most {
        assert!(Instant::now() < until, "{} bytes are held", HELD.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An entry for a Read takes at least 32 bytes, so a queue allocated for all of them would hold 32
/// KiB more.
#[test]
fn connection_memory_independent_of_ird() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let of = |depth| held_each(200, &Arc::new(ConnConfig::default().ird(depth).ord(depth)));
    let (few, many) = (of(1), of(1024));
    println!("an end holds {few} bytes with an IRD and ORD of 1, {many} with 1024");
    assert!(many.abs_diff(few) < 1024, "{few} bytes with 1, {many} with 1024");
}

#[test]
fn idle_connection_within_16_kib() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let connections = CONNECTIONS.min((descriptors() - 100) / 2);
    let each = held_each(connections, &Arc::new(ConnConfig::default()));
    println!("{} idle ends hold {each} bytes each", 2 * connections);
    assert!(each <= BOUND, "{each} bytes an idle end");
}
