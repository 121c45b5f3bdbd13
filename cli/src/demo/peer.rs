//! The demo's second process: it has the file too, receives what the first one moves, and compares byte for byte.

use super::case::{Case, Way, all, blocks};
use super::talk::{GREETING, Go, TALK_LEN, Verdict};
use super::{raw, read_file};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::open::Opener;
use crate::shared::qp_setup::{
    Depths, Half, Link, RECV, Until, Wait, completions, post, post_srq, send_copy,
};
use crate::shared::stop::Stop;
use crate::shared::text;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use uiw::raw::cm::{CmChannel, CmEventKind, ConnRequest, Listener};
use uiw::raw::{
    Access, Arm, Bind, CompChannel, ConnConfig, CqConfig, Device, Pd, RawMw, STag, SendFlags, SendOp, Srq,
    SrqAttr, Wc, WcOpcode, WcStatus, WindowType,
};

/// Receives posted at a time.
const RECVS: u32 = 256;
/// Bytes of the window that is only there to be invalidated.
const WINDOW_LEN: usize = 4096;

/// Options of the hidden second process.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    file: PathBuf,
    /// In this line the peer flips a bit
    #[arg(long)]
    corrupt: Option<usize>,
}

/// Serves one line after the other until standard input ends.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let stop = Stop::on_signal()?;
    stop.on_stdin_end();
    let file = read_file(&args.file)?;
    let device = opener.device()?;
    let pd = device.alloc_pd()?;
    let channel = Arc::new(CmChannel::default());
    let local = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let options = Arc::new(ConnConfig::default());
    let listener = Listener::bind(&device, local, 16, &options, &channel)?;
    let raw_address = raw::serve(file.clone())?;
    text::line(format!("raw TCP on {raw_address} iWARP on {}", listener.local_addr()));
    let peer = Peer { device, pd, file, stop, cases: all(), corrupt: args.corrupt };
    while peer.stop.sleep_on(channel.fd()?) {
        if let Some(CmEventKind::ConnectRequest(request)) = channel.try_pop().map(|event| event.kind)
            && let Err(failure) = peer.line(request)
        {
            note!("{failure}");
        }
    }
    Ok(())
}

struct Peer {
    device: Device,
    pd: Pd,
    file: Vec<u8>,
    stop: Arc<Stop>,
    cases: Vec<Case>,
    corrupt: Option<usize>,
}

/// One line being served.
struct Line<'a> {
    peer: &'a Peer,
    way: Way,
    corrupt: bool,
    link: Link,
    target: Buffer,
    cell: Buffer,
    srq: Option<Arc<Srq>>,
    events: Arc<CompChannel>,
    /// A window, and the memory under it.
    window: Option<(RawMw, Buffer)>,
    wrong: Option<String>,
}

impl Peer {
    fn line(&self, request: ConnRequest) -> Result<()> {
        let number =
            request.private_data().strip_prefix(GREETING).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let number = number.and_then(|digits| digits.parse::<usize>().ok());
        let Some((number, case)) = number.and_then(|number| Some((number, self.cases.get(number)?))) else {
            return request.reject(b"no such line").map_err(Failure::from);
        };
        let mut line = Line::accept(self, case, self.corrupt == Some(number), request)?;
        while line.pass()? {}
        Ok(())
    }
}

impl<'a> Line<'a> {
    fn accept(peer: &'a Peer, case: &Case, corrupt: bool, request: ConnRequest) -> Result<Self> {
        let way = case.way;
        let (pd, len) = (&peer.pd, peer.file.len());
        let target = match way {
            _ if way.is_send() => Buffer::exclusive(pd, len)?,
            // No peer gets at it but through the window.
            Way::WriteWindow => Buffer::shared(pd, len, Access::MW_BIND)?,
            _ if way.is_read() => Buffer::shared(pd, len, Access::REMOTE_READ)?,
            _ => Buffer::shared(pd, len, Access::REMOTE_WRITE)?,
        };
        let window = match way {
            Way::WriteWindow | Way::SendInvalidate => {
                Some((pd.alloc_window(WindowType::Two)?, Buffer::shared(pd, WINDOW_LEN, Access::MW_BIND)?))
            }
            _ => None,
        };
        let srq = match way {
            Way::SendShared => Some(pd.create_srq(SrqAttr { max_wr: RECVS, max_sge: 1, limit: 0 })?),
            _ => None,
        };
        let events = Arc::new(CompChannel::default());
        let options = CqConfig { channel: Some(Arc::clone(&events)), ..CqConfig::default() };
        let cq = peer.device.create_cq(RECVS + 64, options)?;
        let depths = Depths { srq: srq.clone(), ..Depths::new(16, RECVS) };
        let half = Half::on(&peer.device, pd, &cq, &depths)?;
        let link = half.accept(request, &case.peer_options.options(), &[], Until::stop(&peer.stop))?;
        let cell = Buffer::shared(pd, 8, Access::REMOTE_ATOMIC)?;
        Ok(Self { peer, way, corrupt, link, target, cell, srq, events, window, wrong: None })
    }

    /// The file once. False when the client has closed instead.
    fn pass(&mut self) -> Result<bool> {
        self.wrong = None;
        self.prepare()?;
        let file = &self.peer.file;
        let messages = if self.way.takes_receives() { blocks(file.len(), self.way.block()).len() } else { 0 };
        // One more than the file needs: the empty Send behind it.
        let mut posted = self.post_receives(0, (messages + 1).min(RECVS as usize))?;
        if !self.go()? {
            return Ok(false);
        }
        let mut taken = 0;
        let mut batch = Vec::with_capacity(64);
        while taken <= messages {
            self.wait(&mut batch);
            if batch.is_empty() {
                return Ok(false);
            }
            for wc in batch.drain(..) {
                if wc.status != WcStatus::Success {
                    return if self.link.ended_in_order(&wc) {
                        Ok(false)
                    } else {
                        Err(self.link.failure(&wc))
                    };
                }
                if wc.wr_id & RECV == 0 {
                    continue;
                }
                if taken < messages {
                    self.check(taken, messages, &wc);
                }
                taken += 1;
                if posted <= messages {
                    posted = self.post_receives(posted, posted + 1)?;
                }
            }
        }
        send_copy(&self.link.qp, 0, &[])?;
        self.verdict()?;
        Ok(true)
    }

    /// Nothing of the pass before is left when the next begins.
    fn prepare(&mut self) -> Result<()> {
        self.cell.clear()?;
        if self.way.is_read() {
            self.target.write(0, &self.peer.file)?;
            return if self.corrupt { self.flip() } else { Ok(()) };
        }
        self.target.clear()?;
        match self.way {
            Way::WriteWindow => {
                self.bind(self.target.stag(), self.target.remote().addr, self.peer.file.len())
            }
            Way::SendInvalidate => {
                let Some((_, memory)) = &self.window else { return Ok(()) };
                self.bind(memory.stag(), memory.remote().addr, WINDOW_LEN)
            }
            _ => Ok(()),
        }
    }

    /// Opens a new window for this connection; one bound before is closed.
    fn bind(&mut self, region: STag, addr: u64, len: usize) -> Result<()> {
        let Some((window, _)) = &mut self.window else { return Ok(()) };
        *window = self.peer.pd.alloc_window(WindowType::Two)?;
        let stag = window.stag();
        let bind = Bind {
            window: stag,
            new_stag: STag::from_parts(stag.index(), stag.key().wrapping_add(1)),
            region,
            addr,
            length: len as u64,
            access: Access::REMOTE_WRITE,
        };
        post(&self.link.qp, 1, SendOp::Bind(bind), &[], SendFlags::SIGNALED)
    }

    fn post_receives(&self, from: usize, to: usize) -> Result<usize> {
        let (len, block) = (self.peer.file.len(), self.way.block());
        let receives = (from..to).map(|index| {
            let offset = index * block;
            let sge = (self.way.is_send() && offset < len)
                .then(|| self.target.sge(offset..(offset + block).min(len)));
            (index as u64, sge)
        });
        match &self.srq {
            Some(srq) => post_srq(srq, receives)?,
            None => crate::shared::qp_setup::post_recvs(&self.link.qp, receives)?,
        }
        Ok(to)
    }

    /// Sends the client the file's destination. False when it has closed.
    fn go(&self) -> Result<bool> {
        if self.window.is_some() && !self.bound()? {
            return Ok(false);
        }
        let at = |buffer: &Buffer| (buffer.remote().addr, buffer.remote().rkey.0);
        let window = self.window.as_ref().map_or(0, |(window, _)| window.stag().0);
        let mut file = at(&self.target);
        if self.way == Way::WriteWindow {
            file.1 = window;
        }
        let go = Go { file, cell: at(&self.cell), window };
        send_copy(&self.link.qp, 0, &serde_json::to_vec(&go).unwrap_or_default())?;
        Ok(true)
    }

    /// Waits until the window is bound. False when the client has closed instead.
    fn bound(&self) -> Result<bool> {
        loop {
            let mut next = None;
            let until = Until::stop(&self.peer.stop).ended(&self.link);
            completions(&self.link.device, &self.link.cq, Wait::Sleep, until, 1, |wc| next = Some(wc));
            let Some(wc) = next else { return Ok(false) };
            if wc.status != WcStatus::Success {
                return if self.link.ended_in_order(&wc) { Ok(false) } else { Err(self.link.failure(&wc)) };
            }
            if wc.opcode == WcOpcode::Bind {
                return Ok(true);
            }
        }
    }

    /// Takes completions. For solicited Sends it sleeps until such a one is here, whatever else arrives.
    fn wait(&self, batch: &mut Vec<Wc>) {
        // A shared receive queue flushes nothing when a connection ends.
        let until = Until::stop(&self.peer.stop).ended(&self.link);
        if self.way != Way::SendSolicited {
            completions(&self.link.device, &self.link.cq, Wait::Sleep, until, 64, |wc| batch.push(wc));
            return;
        }
        let cq = &self.link.cq;
        while cq.poll(batch, 64) == 0 && !until.is_over() {
            cq.arm(Arm::Solicited);
            if cq.poll(batch, 64) > 0 {
                return;
            }
            self.link.device.wait(None, |cx| match (until.poll(cx), self.events.poll_pop(cx)) {
                (Poll::Pending, Poll::Pending) => Poll::Pending,
                _ => Poll::Ready(()),
            });
        }
    }

    /// Checks what came along with block `index`.
    fn check(&mut self, index: usize, messages: usize, wc: &Wc) {
        let (len, block) = (self.peer.file.len(), self.way.block());
        let bytes = block.min(len - index * block);
        let last = index + 1 == messages;
        let (mut imm, mut invalidated) = (None, None);
        match self.way {
            Way::SendImmediate | Way::WriteImmediate => imm = Some(index as u32),
            Way::SendInvalidate if last => {
                invalidated = self.window.as_ref().map(|(window, _)| window.stag());
            }
            _ => {}
        }
        let right = wc.byte_len as usize == bytes && wc.imm == imm && wc.invalidated == invalidated;
        if !right && self.wrong.is_none() {
            let Wc { byte_len, imm, invalidated, .. } = wc;
            self.wrong = Some(format!(
                "block {index} came with {byte_len} bytes, immediate {imm:?}, invalidated {invalidated:?}"
            ));
        }
    }

    /// Compares, and reports.
    fn verdict(&mut self) -> Result<()> {
        if !self.way.is_read() {
            if self.corrupt {
                self.flip()?;
            }
            if let Some(at) = self.target.differs(0, &self.peer.file)? {
                self.wrong = Some(format!("byte {at} differs"));
            }
        }
        let blocks = blocks(self.peer.file.len(), self.way.block()).len() as u64;
        let expected = match self.way {
            Way::FetchAdd => Some(blocks),
            Way::CmpSwap => Some(0),
            _ => None,
        };
        if let Some(expected) = expected {
            let mut bytes = [0; 8];
            self.cell.read(0, &mut bytes)?;
            let cell = u64::from_ne_bytes(bytes);
            if cell != expected {
                self.wrong = Some(format!("the number in memory is {cell}, not {expected}"));
            }
        }
        let verdict = Verdict { wrong: self.wrong.take() };
        let mut bytes = serde_json::to_vec(&verdict).unwrap_or_default();
        bytes.truncate(TALK_LEN);
        send_copy(&self.link.qp, 0, &bytes)
    }

    fn flip(&self) -> Result<()> {
        let middle = self.peer.file.len() / 2;
        self.target.write(middle, &[!self.peer.file[middle]])
    }
}
