//! The comparisons with raw TCP that run, each with its connections of raw TCP. A comparison stands
//! as long as the iWARP connection that has asked for it.

use crate::perf::raw::AT_ONCE;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// All of them, by their tokens.
#[derive(Default)]
pub(super) struct Comparisons(Mutex<HashMap<u64, Arc<RunningComparison>>>);

/// Reason why a connection of raw TCP is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparisonRefusal {
    /// No comparison has the token, or it has ended.
    Unknown,
    /// The comparison is that of another address.
    Address(IpAddr),
    /// It has [`AT_ONCE`] connections already.
    Full,
}

impl fmt::Display for ComparisonRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no comparison runs here that this raw TCP belongs to"),
            Self::Address(peer) => write!(f, "raw TCP from {peer}, and the comparison is another address's"),
            Self::Full => write!(f, "{AT_ONCE} connections of raw TCP of this comparison are served already"),
        }
    }
}

impl Comparisons {
    /// A comparison begins.
    pub(super) fn begin(&self, peer: IpAddr) -> Result<Running<'_>, getrandom::Error> {
        let token = getrandom::u64()?;
        let comparison = Arc::new(RunningComparison { peer: peer.to_canonical(), streams: Mutex::default() });
        self.lock().insert(token, Arc::clone(&comparison));
        Ok(Running { all: self, token, comparison })
    }

    /// Admits one more connection of raw TCP.
    pub(super) fn admit(&self, token: u64, peer: IpAddr) -> Result<Admission, ComparisonRefusal> {
        let comparison = self.lock().get(&token).map(Arc::clone).ok_or(ComparisonRefusal::Unknown)?;
        if comparison.peer != peer.to_canonical() {
            return Err(ComparisonRefusal::Address(peer));
        }
        let mut streams = comparison.lock();
        if streams.over {
            return Err(ComparisonRefusal::Unknown);
        }
        let number = streams.sockets.iter().position(Option::is_none).ok_or(ComparisonRefusal::Full)?;
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
    /// Of each connection that is admitted: its socket, once it has one.
    sockets: [Option<Option<TcpStream>>; AT_ONCE],
    /// When the last of them ended, or the comparison began.
    last: Instant,
    over: bool,
}

impl Default for ComparedStreams {
    fn default() -> Self {
        Self { sockets: Default::default(), last: Instant::now(), over: false }
    }
}

impl RunningComparison {
    fn lock(&self) -> MutexGuard<'_, ComparedStreams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A comparison that runs. Its connections of raw TCP end with it.
pub(super) struct Running<'a> {
    all: &'a Comparisons,
    pub(super) token: u64,
    comparison: Arc<RunningComparison>,
}

impl Running<'_> {
    /// Since when it has no connection of raw TCP. `None`: it has one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let streams = self.comparison.lock();
        streams.sockets.iter().all(Option::is_none).then_some(streams.last)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.token);
        let mut streams = self.comparison.lock();
        streams.over = true;
        for socket in streams.sockets.iter().flatten().flatten() {
            // Ends the calls of its thread. It may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// A connection of raw TCP that is admitted, as long as this lives.
pub(super) struct Admission {
    comparison: Arc<RunningComparison>,
    number: usize,
}

impl Admission {
    /// The end of the comparison ends the connection.
    pub(super) fn attach(&self, stream: &TcpStream) -> std::io::Result<()> {
        let stream = stream.try_clone()?;
        let mut streams = self.comparison.lock();
        if streams.over {
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
        streams.last = Instant::now();
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
