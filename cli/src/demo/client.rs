//! The demo's first process: moves the file in one way and measures.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use verbs::{Connection, Device, Mr, Op as Operation, Pd, RemoteMr};

use crate::fail::{Failure, Result};

use super::way::{CHUNK, Op, WAYS, Way};
use super::{broken, differs};

/// Operations under way.
const DEPTH: usize = 8;

/// What came of one way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) octets: u64,
    pub(super) time: Duration,
    pub(super) same: bool,
}

/// Moves `file` `passes` times in way `number`.
pub(super) async fn run(
    device: &Device,
    peer: SocketAddr,
    number: usize,
    file: &[u8],
    passes: u32,
) -> Result<Moved> {
    let way = &WAYS[number];
    let mut settings = way.settings();
    settings.private_data = vec![number as u8];
    let pd = device.alloc_pd()?;
    let connection = Connection::connect(device, &pd, peer, &settings)
        .await
        .map_err(|error| Failure::connecting(peer, &error))?;
    let hello = connection.recv().await?;
    let remote = RemoteMr::from_bytes(&hello).ok_or(broken("the peer's greeting is damaged"))?;
    drop(hello);
    let mut mover =
        Mover { connection: &connection, pd: &pd, way, remote, under_way: VecDeque::new(), count: 0 };
    let mut buffers = mover.buffers(file)?;
    let start = Instant::now();
    for _ in 0..passes {
        buffers = mover.pass(buffers).await?;
    }
    let time = mover.arrived(start).await?;
    let verdict = connection.recv().await?;
    let read_back = way.op != Op::Read || mover.compare(&buffers, file);
    let same = *verdict == *b"same" && read_back;
    connection.disconnect().await?;
    Ok(Moved { octets: file.len() as u64 * u64::from(passes), time, same })
}

struct Mover<'a> {
    connection: &'a Connection,
    pd: &'a Pd,
    way: &'a Way,
    remote: RemoteMr,
    under_way: VecDeque<Operation<Vec<u8>>>,
    /// Messages with an immediate so far.
    count: u32,
}

impl Mover<'_> {
    /// The file in registered pieces; for Reads, room for it.
    fn buffers(&self, file: &[u8]) -> Result<Vec<Mr<Vec<u8>>>> {
        let read = self.way.op == Op::Read;
        file.chunks(CHUNK)
            .map(|chunk| {
                let piece = if read { vec![0; chunk.len()] } else { chunk.to_vec() };
                self.pd.register(piece).map_err(|(error, _)| error.into())
            })
            .collect()
    }

    /// The whole file once. The buffers come back in order.
    async fn pass(&mut self, buffers: Vec<Mr<Vec<u8>>>) -> Result<Vec<Mr<Vec<u8>>>> {
        let mut back = Vec::with_capacity(buffers.len());
        let pieces = buffers.len();
        let mut offset = 0;
        for (at, buffer) in buffers.into_iter().enumerate() {
            if self.under_way.len() == DEPTH {
                back.push(self.oldest().await?);
            }
            let len = buffer.len() as u64;
            if self.way.op == Op::Atomics {
                self.claim(at as u64).await?;
            }
            let op = self.start(buffer, offset, at + 1 == pieces)?;
            self.under_way.push_back(op);
            offset += len;
        }
        while !self.under_way.is_empty() {
            back.push(self.oldest().await?);
        }
        if self.way.op == Op::SendInvalidate {
            let next = self.connection.recv().await?;
            self.remote = RemoteMr::from_bytes(&next).ok_or(broken("a key is damaged"))?;
        }
        if self.way.op == Op::Atomics {
            self.reset_counter(pieces as u64).await?;
        }
        Ok(back)
    }

    async fn oldest(&mut self) -> Result<Mr<Vec<u8>>> {
        let Some(op) = self.under_way.pop_front() else {
            return Err(broken("nothing is under way"));
        };
        let (result, buffer) = op.await;
        result?;
        Ok(buffer)
    }

    fn start(&mut self, buffer: Mr<Vec<u8>>, offset: u64, last: bool) -> Result<Operation<Vec<u8>>> {
        let connection = self.connection;
        let target = self.remote.slice(offset..self.remote.len).map_err(Failure::from);
        Ok(match self.way.op {
            Op::Send => connection.send(buffer),
            Op::SendInvalidate if last => connection.send_invalidate(buffer, self.remote.rkey),
            Op::SendInvalidate => connection.send(buffer),
            Op::SendSolicited => connection.send_solicited(buffer),
            Op::SendImm => connection.send_imm(buffer, self.next_count()),
            Op::Write | Op::WriteWindow | Op::Atomics => connection.write(buffer, target?),
            Op::WriteImm => connection.write_imm(buffer, target?, self.next_count()),
            Op::Read => connection.read(buffer, target?),
        })
    }

    fn next_count(&mut self) -> u32 {
        let now = self.count;
        self.count += 1;
        now
    }

    /// The counter behind the file says which piece is next: a FetchAdd takes it.
    fn counter(&self) -> Result<RemoteMr> {
        Ok(self.remote.slice(self.remote.len - 8..self.remote.len)?)
    }

    async fn claim(&self, piece: u64) -> Result<()> {
        let claimed = self.connection.fetch_add(self.counter()?, 1).await?;
        if claimed == piece {
            return Ok(());
        }
        Err(differs(format!("FetchAdd gave {claimed} in place of {piece}")))
    }

    async fn reset_counter(&self, pieces: u64) -> Result<()> {
        let was = self.connection.compare_swap(self.counter()?, pieces, 0).await?;
        if was == pieces {
            return Ok(());
        }
        Err(differs(format!("CmpSwap found {was} in place of {pieces}")))
    }

    /// Tells the peer that all is sent, and waits until it has arrived.
    async fn arrived(&self, start: Instant) -> Result<Duration> {
        self.connection.send_copy(b"end").await?;
        let answer = self.connection.recv().await?;
        if *answer != *b"arrived" {
            return Err(broken("the peer's answer is damaged"));
        }
        Ok(start.elapsed())
    }

    fn compare(&self, buffers: &[Mr<Vec<u8>>], file: &[u8]) -> bool {
        file.chunks(CHUNK).zip(buffers).all(|(chunk, buffer)| chunk == buffer.bytes())
            && file.chunks(CHUNK).len() == buffers.len()
    }
}
