//! The same octets over plain TCP, for the figure beside each line.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Octets of one write: what a loopback packet carries whole.
const UNIT: usize = 64_000;

/// Takes connections and their octets until the process ends; answers each with one octet when the peer has closed its half.
pub(super) fn sink(listener: &TcpListener) {
    let mut buffer = vec![0; UNIT];
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        while matches!(stream.read(&mut buffer), Ok(1..)) {}
        let _ = stream.write_all(&[1]);
    }
}

/// Time that `octets` octets take.
pub(super) fn measure(to: SocketAddr, octets: u64) -> io::Result<Duration> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let unit = vec![0x5A; UNIT];
    let start = Instant::now();
    let mut left = octets;
    while left > 0 {
        let now = left.min(UNIT as u64) as usize;
        stream.write_all(&unit[..now])?;
        left -= now as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut [0])?;
    Ok(start.elapsed())
}
