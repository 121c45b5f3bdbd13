//! Running comparisons with raw TCP, each with its raw TCP connections. A comparison lasts as long
//! as the iWARP connection that has requested it.

use crate::perf::raw::AT_ONCE;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Running comparisons by their tokens.
#[derive(Default)]
pub(super) struct Comparisons(Mutex<HashMap<u64, Arc<RunningComparison>>>);

/// Reason why a raw TCP connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparisonRefusal {
    /// No running comparison has the token.
    Unknown,
    /// The comparison belongs to another address.
    Address(IpAddr),
    /// The comparison has [`AT_ONCE`] connections already.
    Full,
}

impl fmt::Display for ComparisonRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no comparison runs here for this raw TCP connection"),
            Self::Address(peer) => {
                write!(f, "raw TCP from {peer}, but the comparison belongs to another address")
            }
            Self::Full => {
                write!(f, "{AT_ONCE} connections of raw TCP are already served for this comparison")
            }
        }
    }
}

impl Comparisons {
    /// Begins a comparison, which lasts until the handle is dropped.
    pub(super) fn begin(&self, peer: IpAddr) -> Result<ComparisonHandle<'_>, getrandom::Error> {
        let token = getrandom::u64()?;
        let comparison =
            Arc::new(RunningComparison { peer: peer.to_canonical(), streams: Mutex::default() });
        self.lock().insert(token, Arc::clone(&comparison));
        Ok(ComparisonHandle { all: self, token, comparison })
    }

    /// Admits one more raw TCP connection to a comparison.
    pub(super) fn admit(&self, token: u64, peer: IpAddr) -> Result<Admission, ComparisonRefusal> {
        let comparison =
            self.lock().get(&token).map(Arc::clone).ok_or(ComparisonRefusal::Unknown)?;
        if comparison.peer != peer.to_canonical() {
            return Err(ComparisonRefusal::Address(peer));
        }
        let mut streams = comparison.lock();
        if streams.is_over {
            return Err(ComparisonRefusal::Unknown);
        }
        let number =
            streams.sockets.iter().position(Option::is_none).ok_or(ComparisonRefusal::Full)?;
        streams.sockets[number] = Some(None);
        drop(streams);
        Ok(Admission { comparison, number })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<RunningComparison>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct RunningComparison {
    peer: IpAddr,
    streams: Mutex<ComparedStreams>,
}

struct ComparedStreams {
    /// One entry for each connection that may be admitted. The inner option is `None` until the
    /// admitted connection has a socket.
    sockets: [Option<Option<TcpStream>>; AT_ONCE],
    /// Time when the most recent connection ended, or the comparison began.
    last_ended: Instant,
    is_over: bool,
}

impl Default for ComparedStreams {
    fn default() -> Self {
        Self { sockets: Default::default(), last_ended: Instant::now(), is_over: false }
    }
}

impl RunningComparison {
    fn lock(&self) -> MutexGuard<'_, ComparedStreams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handle of a running comparison. Dropping it ends the comparison and its raw TCP connections.
pub(super) struct ComparisonHandle<'a> {
    all: &'a Comparisons,
    pub(super) token: u64,
    comparison: Arc<RunningComparison>,
}

impl ComparisonHandle<'_> {
    /// Returns the time since which the comparison has had no raw TCP connection, or `None` if it
    /// has one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let streams = self.comparison.lock();
        streams.sockets.iter().all(Option::is_none).then_some(streams.last_ended)
    }
}

impl Drop for ComparisonHandle<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.token);
        let mut streams = self.comparison.lock();
        streams.is_over = true;
        for socket in streams.sockets.iter().flatten().flatten() {
            // Ends the pending calls of the connection's thread. The socket may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Admission of a raw TCP connection to a comparison, until it is dropped.
pub(super) struct Admission {
    comparison: Arc<RunningComparison>,
    number: usize,
}

impl Admission {
    /// Attaches the socket of the connection, which is shut down at the end of the comparison.
    pub(super) fn attach(&self, stream: &TcpStream) -> std::io::Result<()> {
        let stream = stream.try_clone()?;
        let mut streams = self.comparison.lock();
        if streams.is_over {
            return Err(std::io::ErrorKind::NotConnected.into());
        }
        streams.sockets[self.number] = Some(Some(stream));
        Ok(())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut streams = self.comparison.lock();
        streams.sockets[self.number] = None;
        streams.last_ended = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::net::TcpListener;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn comparison_admits_own_address() {
        let all = Comparisons::default();
        let running = all.begin(PEER).unwrap();
        let token = running.token;
        assert!(running.idle_since().is_some());
        let refused = |token, peer| all.admit(token, peer).map(drop).unwrap_err();
        assert_eq!(refused(token ^ 1, PEER), ComparisonRefusal::Unknown);
        let other = "127.0.0.2".parse().unwrap();
        assert_eq!(refused(token, other), ComparisonRefusal::Address(other));
        let mut admitted: Vec<_> = (0..AT_ONCE).map(|_| all.admit(token, PEER).unwrap()).collect();
        assert_eq!(refused(token, PEER), ComparisonRefusal::Full);
        assert_eq!(running.idle_since(), None);
        admitted.pop();
        admitted.push(all.admit(token, "::ffff:127.0.0.1".parse().unwrap()).unwrap());
        admitted.clear();
        assert!(running.idle_since().is_some());
        drop(running);
        assert_eq!(refused(token, PEER), ComparisonRefusal::Unknown);
        assert!(all.lock().is_empty());
    }

    #[test]
    fn connections_end_with_their_comparison() {
        let all = Comparisons::default();
        let running = all.begin(PEER).unwrap();
        let (early, late) =
            (all.admit(running.token, PEER).unwrap(), all.admit(running.token, PEER).unwrap());
        let listener = TcpListener::bind((PEER, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        early.attach(&stream).unwrap();
        let reader = std::thread::spawn(move || stream.read(&mut [0; 8]).unwrap());
        drop(running);
        assert_eq!(reader.join().unwrap(), 0, "the read ended");
        let unused = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(late.attach(&unused).is_err(), "it is too late");
    }
}
