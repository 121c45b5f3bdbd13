//! The same file over raw TCP, between the same two processes.

use super::client::Moved;
use crate::shared::fail::{Failure, Result};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a read or write.
const CALL: usize = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(20);
/// The client asks for the file / is about to send it.
const FROM_PEER: u8 = b'r';
const TO_PEER: u8 = b'w';
const RIGHT: u8 = b'+';
const WRONG: u8 = b'-';

/// Serves the file in a thread that ends with the process.
pub(super) fn serve(file: Vec<u8>) -> Result<SocketAddr> {
    let failed = |error: io::Error| Failure::local("cannot listen for raw TCP", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            if let Err(error) = serve_one(stream, &file) {
                tracing::info!(%error, "raw connection");
            }
        }
    });
    Ok(address)
}

fn serve_one(mut stream: TcpStream, file: &[u8]) -> io::Result<()> {
    prepare(&stream)?;
    let mut copy = vec![0; file.len()];
    let mut what = [0];
    while stream.read(&mut what)? > 0 {
        if what[0] == FROM_PEER {
            write(&mut stream, file)?;
            continue;
        }
        read(&mut stream, &mut copy)?;
        stream.write_all(&[RIGHT])?;
        let verdict = if copy == file { RIGHT } else { WRONG };
        copy.fill(0);
        stream.write_all(&[verdict])?;
    }
    Ok(())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))
}

fn write(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    bytes.chunks(CALL).try_for_each(|block| stream.write_all(block))
}

fn read(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    bytes.chunks_mut(CALL).try_for_each(|block| stream.read_exact(block))
}

/// Moves the file for `time`, verifying it every time.
pub(super) fn run(peer: SocketAddr, file: &[u8], to_peer: bool, time: Duration) -> Result<Moved> {
    let failed = |error: io::Error| Failure::lost("raw TCP", error);
    match try_run(peer, file, to_peer, time).map_err(failed)? {
        Some(moved) => Ok(moved),
        None => Err(Failure::differs("raw TCP", "the file differs")),
    }
}

fn try_run(peer: SocketAddr, file: &[u8], to_peer: bool, time: Duration) -> io::Result<Option<Moved>> {
    let mut stream = TcpStream::connect(peer)?;
    prepare(&stream)?;
    let mut copy = vec![0; file.len()];
    let mut moved = Moved::default();
    let begun = Instant::now();
    let mut byte = [0];
    loop {
        let start = Instant::now();
        stream.write_all(&[if to_peer { TO_PEER } else { FROM_PEER }])?;
        if to_peer {
            write(&mut stream, file)?;
            stream.read_exact(&mut byte)?;
        } else {
            read(&mut stream, &mut copy)?;
        }
        moved.seconds += start.elapsed().as_secs_f64();
        moved.bytes += file.len() as u64;
        let right = if to_peer {
            stream.read_exact(&mut byte)?;
            byte[0] == RIGHT
        } else {
            let right = copy == file;
            copy.fill(0);
            right
        };
        if !right {
            return Ok(None);
        }
        if begun.elapsed() >= time {
            return Ok(Some(moved));
        }
    }
}
