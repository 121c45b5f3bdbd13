//! A small HTTP/1.1 server for Prometheus: one request a connection. A client that is slow or sends too much is cut off. There are only so many at a
//! time: one more takes the place of the oldest.

use super::{collect, metrics};
use crate::fail::{Exit, Failure, Result};
use crate::stop::Stop;
use crate::text;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a request.
const MAX_REQUEST: usize = 8 << 10;
/// From the connection to the last byte of the request, and for each write of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The whole answer.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(30);
/// Clients at a time.
const MAX_CLIENTS: usize = 16;

/// Serves until `stop`.
pub(super) fn serve(address: SocketAddr, stop: &Arc<Stop>) -> Result<()> {
    let failed = |error: io::Error| {
        Failure::new(
            Exit::Failed,
            format!("cannot listen on {address}"),
            error,
            "choose another address, or port 0 for a free one",
        )
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    text::line(format!("listening on {}", listener.local_addr().map_err(failed)?));
    let clients = Arc::<Clients>::default();
    while stop.sleep_on(listener.as_fd()) {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                uiw_cli::note!("warning: {address}: {error}");
                // Descriptors may be exhausted, and the client stays in the queue.
                if stop.sleep_for(Duration::from_millis(100)) {
                    break;
                }
                continue;
            }
        };
        let Ok(share) = Share::new(&clients, &client) else { continue };
        let thread = std::thread::Builder::new().name("uiw-metrics".to_owned());
        let spawned = thread.spawn(move || {
            let _share = share;
            if let Err(error) = answer(client) {
                tracing::info!(%error, "a client of the metrics was not answered");
            }
        });
        if let Err(error) = spawned {
            uiw_cli::note!("warning: {address}: no thread for a client: {error}");
        }
    }
    Ok(())
}

/// The clients that are served, oldest first, each with its number.
#[derive(Default)]
struct Clients {
    sockets: Mutex<VecDeque<(u64, TcpStream)>>,
    next: AtomicU64,
}

impl Clients {
    fn sockets(&self) -> MutexGuard<'_, VecDeque<(u64, TcpStream)>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client's place among those that are served.
struct Share {
    clients: Arc<Clients>,
    number: u64,
}

impl Share {
    /// A place for `client`. The oldest client is cut off where there are too many: one that has sent its request is answered within moments.
    fn new(clients: &Arc<Clients>, client: &TcpStream) -> io::Result<Self> {
        let (number, socket) = (clients.next.fetch_add(1, Ordering::Relaxed), client.try_clone()?);
        let mut sockets = clients.sockets();
        if sockets.len() >= MAX_CLIENTS
            && let Some((_, oldest)) = sockets.pop_front()
        {
            // Its thread ends with the next call.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        sockets.push_back((number, socket));
        drop(sockets);
        Ok(Self { clients: Arc::clone(clients), number })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clients.sockets().retain(|(number, _)| *number != self.number);
    }
}

fn answer(mut client: TcpStream) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(TIMEOUT))?;
    let (status, kind, body) = match read_request(&mut client)? {
        None => ("400 Bad Request", PLAIN, "the request is not HTTP, too long or too slow\n".to_owned()),
        Some(request) => respond(&request),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let until = Instant::now() + MAX_ANSWER_TIME;
    for mut bytes in [head.as_bytes(), body.as_bytes()] {
        while !bytes.is_empty() {
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let written = client.write(bytes)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
        }
    }
    client.shutdown(Shutdown::Write)
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// Reads up to the empty line behind the headers. `None`: it is too long, too slow, or no HTTP.
fn read_request(client: &mut TcpStream) -> io::Result<Option<String>> {
    let until = Instant::now() + TIMEOUT;
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        client.set_read_timeout(Some(left))?;
        let got = match client.read(&mut bytes) {
            Ok(0) => return Ok(None),
            Ok(got) => got,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        request.extend_from_slice(&bytes[..got]);
        if request.windows(4).any(|four| four == b"\r\n\r\n") {
            return Ok(String::from_utf8(request).ok());
        }
        if request.len() > MAX_REQUEST {
            return Ok(None);
        }
    }
}

/// Status, type and body for a request.
fn respond(request: &str) -> (&'static str, &'static str, String) {
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.0" | "HTTP/1.1")) = (method, target, version) else {
        return ("400 Bad Request", PLAIN, "the request is not HTTP/1.1\n".to_owned());
    };
    if method != "GET" {
        return ("405 Method Not Allowed", PLAIN, "only GET\n".to_owned());
    }
    if target.split('?').next() != Some("/metrics") {
        return ("404 Not Found", PLAIN, "the counters are at /metrics\n".to_owned());
    }
    match collect::all(None) {
        Ok(mut collected) => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics::text(&mut collected))
        }
        Err(failure) => ("500 Internal Server Error", PLAIN, format!("{failure}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gets_of_the_metrics_are_answered() {
        let status = |request: &str| respond(request).0.split(' ').next().map(str::to_owned).unwrap();
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status("GET /metrics\r\n\r\n"), "400");
        assert_eq!(status("\r\n\r\n"), "400");
        assert_eq!(status("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "200");
    }

    #[test]
    fn requests_are_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let send = |bytes: Vec<u8>| {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let sender = std::thread::spawn(move || {
                let _ = client.write_all(&bytes);
                let _ = client.shutdown(Shutdown::Write);
                client
            });
            let read = read_request(&mut server).unwrap();
            drop(sender.join());
            read
        };
        assert_eq!(
            send(b"GET / HTTP/1.1\r\nA: b\r\n\r\n".to_vec()).as_deref(),
            Some("GET / HTTP/1.1\r\nA: b\r\n\r\n")
        );
        assert_eq!(send(vec![b'x'; 4 * MAX_REQUEST]), None);
        assert_eq!(send(b"GET / HTTP/1.1\r\n".to_vec()), None);
        assert_eq!(send(vec![0xFF, b'\r', b'\n', b'\r', b'\n']), None);
    }
}
