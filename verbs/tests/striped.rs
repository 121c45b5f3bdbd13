//! Striped connections over the kernel's TCP, with a proxy between the ends that cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use uiw_llp::sim::Random;
use uiw_verbs::blocking::{Striped, StripedListener};
use uiw_verbs::striping::End;
use uiw_verbs::{Access, Device, RemoteMr, StripedSettings};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Passes TCP connections on to `upstream`.
struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
    acceptor: Option<thread::JoinHandle<()>>,
}

struct ProxyState {
    upstream: SocketAddr,
    is_over: AtomicBool,
    /// Both sockets of each connection.
    pairs: Mutex<Vec<[TcpStream; 2]>>,
}

impl Proxy {
    fn new(upstream: SocketAddr) -> Result<Self, AnyError> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let is_over = AtomicBool::new(false);
        let shared = Arc::new(ProxyState { upstream, is_over, pairs: Mutex::default() });
        let state = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for socket in listener.incoming() {
                if state.is_over.load(Ordering::SeqCst) {
                    break;
                }
                if let Ok(socket) = socket {
                    // The peer sees an end of the connection where this fails.
                    let _ = state.pass_on(socket);
                }
            }
        });
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Cuts one connection: with a FIN or a reset in both directions. False: there is none.
    fn cut(&self, random: &mut Random) -> bool {
        let mut pairs = self.shared.pairs.lock().unwrap();
        if pairs.is_empty() {
            return false;
        }
        let at = random.below(pairs.len());
        let pair = pairs.swap_remove(at);
        if random.below(2) == 0 {
            for socket in &pair {
                // Closed with a reset.
                SockRef::from(socket).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        end(&pair);
        true
    }
}

impl ProxyState {
    fn pass_on(&self, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.upstream)?;
        for socket in [&client, &server] {
            socket.set_nodelay(true)?;
        }
        let clone =
            |from: &TcpStream, to: &TcpStream| Ok::<_, std::io::Error>([from.try_clone()?, to.try_clone()?]);
        for [mut from, mut to] in [clone(&client, &server)?, clone(&server, &client)?] {
            thread::spawn(move || {
                let mut buffer = [0; 16 << 10];
                loop {
                    match from.read(&mut buffer) {
                        Ok(0) => {
                            // Only this direction has ended.
                            let _ = to.shutdown(Shutdown::Write);
                            return;
                        }
                        Ok(len) if to.write_all(&buffer[..len]).is_ok() => {}
                        _ => return end(&[from, to]),
                    }
                }
            });
        }
        self.pairs.lock().unwrap().push([client, server]);
        Ok(())
    }
}

fn end(pair: &[TcpStream; 2]) {
    for socket in pair {
        // It may have ended already.
        let _ = socket.shutdown(Shutdown::Both);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // The acceptor notices it.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.shared.pairs.lock().unwrap().iter().for_each(end);
    }
}

const STRIPES: u8 = 4;
const PARTS: u64 = 8;
const PART: u64 = 32 << 10;
const ROUNDS: u64 = 1000;
/// What the receiver leaves in its memory.
const USED: u8 = 0xEE;

fn byte(round: u64, part: u64) -> u8 {
    ((round * 7 + part) % 200) as u8
}

/// In each round the peer writes every part, sends a message, and reads one part back.
fn serve(connection: &Striped) -> Result<(), AnyError> {
    let len = 2 * PARTS * PART;
    let memory =
        connection.as_async().pd().share(len as usize, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    connection.send_copy(&memory.remote(0..len)?.to_bytes())?;
    for round in 0..ROUNDS {
        let message = connection.recv()?.ok_or("closed early")?;
        assert_eq!(*message, round.to_be_bytes());
        // Halves take turns, as the peer is one round ahead.
        let base = round % 2 * PARTS;
        for part in 0..PARTS {
            let at = (base + part) * PART;
            let written = memory.to_vec(at..at + PART)?;
            assert!(written == vec![byte(round, part); PART as usize], "round {round}, part {part}");
            memory.write(at, &vec![USED; PART as usize])?;
        }
        connection.send_copy(b"go on")?;
    }
    assert!(connection.recv()?.is_none());
    assert!(memory.to_vec(0..len)? == vec![USED; len as usize], "something was written late or again");
    assert_eq!(connection.ended(), End::Closed);
    Ok(())
}

fn drive(connection: &Striped) -> Result<(), AnyError> {
    let pd = connection.as_async().pd();
    let remote = RemoteMr::from_bytes(&connection.recv()?.ok_or("closed early")?).ok_or("no address")?;
    let at = |round: u64, part: u64| {
        let at = (round % 2 * PARTS + part) * PART;
        remote.slice(at..at + PART)
    };
    for round in 0..ROUNDS {
        let mut writes = Vec::new();
        for part in 0..PARTS {
            let bytes = pd.register(vec![byte(round, part); PART as usize])?;
            writes.push(connection.write_idempotent(bytes, at(round, part)?));
        }
        let part = round % PARTS;
        let back = connection.read(pd.register(vec![0; PART as usize])?, at(round, part)?);
        let sent = connection.send(pd.register(round.to_be_bytes().to_vec())?);
        for write in writes {
            write.wait()?;
        }
        let (_, back) = back.wait()?;
        assert!(back.into_inner() == vec![byte(round, part); PART as usize], "round {round}: read back");
        sent.wait()?;
        assert_eq!(connection.recv()?.as_deref(), Some(&b"go on"[..]));
    }
    Ok(())
}

/// A client through a proxy, and its server.
fn run(cuts_while: impl FnOnce(&Proxy, &AtomicBool) + Send) -> Result<Striped, AnyError> {
    let settings = StripedSettings::default().stripes(STRIPES);
    let pd = Device::open()?.alloc_pd()?;
    let listener = StripedListener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
    let proxy = Proxy::new(listener.local_addr())?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener.accept()?));
        let pd = Device::open()?.alloc_pd()?;
        let client = Striped::connect(&pd, proxy.address, &settings)?;
        let cutter = scope.spawn(|| cuts_while(&proxy, &is_done));
        let driven = drive(&client);
        is_done.store(true, Ordering::SeqCst);
        cutter.join().map_err(|_| "the cutter panicked")?;
        driven?;
        assert_eq!(client.disconnect()?, End::Closed);
        server.join().map_err(|_| "the server panicked")??;
        Ok(client)
    })
}

#[test]
fn connections_that_are_cut_do_not_show() -> Result<(), AnyError> {
    for seed in 0..4 {
        let client = run(|proxy, is_done| {
            let mut random = Random::new(seed);
            while !is_done.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1 + random.below(20) as u64));
                proxy.cut(&mut random);
            }
        })?;
        let counts = client.as_async().counts();
        assert!(counts.deaths > 0 && counts.replacements > 0, "seed {seed}: {counts:?}");
    }
    Ok(())
}

#[test]
fn without_cuts_no_stripe_dies() -> Result<(), AnyError> {
    let client = run(|_, _| {})?;
    assert_eq!(client.as_async().counts(), Default::default());
    Ok(())
}

/// The server's process ends: every request of the client completes.
#[test]
fn a_server_that_is_gone_leaves_no_request_open() -> Result<(), AnyError> {
    let settings = StripedSettings::default().stripes(STRIPES).recovery_timeout(Duration::from_millis(300));
    let pd = Device::open()?.alloc_pd()?;
    let listener = StripedListener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
    let proxy = Proxy::new(listener.local_addr())?;
    let address = proxy.address;
    let accepted = thread::spawn(move || listener.accept());
    let client_pd = Device::open()?.alloc_pd()?;
    let client = Striped::connect(&client_pd, address, &settings)?;
    let server = accepted.join().map_err(|_| "the server panicked")??;
    let memory = server.as_async().pd().share(1 << 20, Access::REMOTE_WRITE)?;
    let remote = memory.remote(0..1 << 20)?;
    // No proxy, no way to the server.
    drop(proxy);
    let writes: Vec<_> = (0..50)
        .map(|_| Ok(client.write_idempotent(client_pd.register(vec![1; 1 << 20])?, remote)))
        .collect::<Result<_, AnyError>>()?;
    let mut failed = 0;
    for write in writes {
        failed += usize::from(write.wait().is_err());
    }
    assert!(failed > 0);
    assert_eq!(client.ended(), End::TimedOut);
    assert_eq!(server.ended(), End::TimedOut);
    Ok(())
}
