//! Single requests to any peer, which does not need a partner program: `--raw send:64
//! write:STAG:TO:64 recv`.

use super::{Args, report};
use crate::shared::fail::{Failure, Result};
use crate::shared::memory::Buffer;
use crate::shared::qp_setup::{
    Link, PendingQp, QueueDepths, RECV, WaitLimits, WaitMode, post, post_recvs,
};
use serde_json::json;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};
use uiw::raw::cm::ConnRequest;
use uiw::raw::{Access, Remote, STag, SendFlags, SendOp, Wc};

/// Number of messages that may arrive before `recv` asks for them.
const RECEIVES: u64 = 16;
/// Maximum length of such a message in bytes.
const RECEIVE_LEN: usize = 64 << 10;
/// Maximum length of a sent message, and size of the memory that the peer may read and write, in
/// bytes.
const MEMORY: usize = 1 << 20;
/// Number of bytes of a message that are shown.
const SHOWN: usize = 64;

/// One request of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RawRequest {
    /// Send this number of bytes.
    Send(u32),
    /// Write this number of bytes to the peer's memory.
    Write(Remote, u32),
    /// Read this number of bytes of the peer's memory.
    Read(Remote, u32),
    /// Wait for the next message.
    Recv,
}

const FORM: &str = "expected send:BYTES, write:STAG:TO:BYTES, read:STAG:TO:BYTES (STAG and TO may be 0x..) or recv";

impl FromStr for RawRequest {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let words: Vec<_> = text.split(':').collect();
        let (name, numbers) = words.split_first().ok_or(FORM)?;
        let numbers: Option<Vec<u64>> = numbers.iter().map(|word| number(word)).collect();
        let place =
            |stag: u64, addr| u32::try_from(stag).map(|stag| Remote { addr, rkey: STag(stag) });
        let length = |bytes: u64| match u32::try_from(bytes) {
            Ok(bytes) if bytes as usize <= MEMORY => Ok(bytes),
            _ => Err(format!("at most {MEMORY} bytes")),
        };
        match (*name, numbers.ok_or(FORM)?.as_slice()) {
            ("recv", []) => Ok(Self::Recv),
            ("send", [bytes]) => Ok(Self::Send(length(*bytes)?)),
            ("write", [stag, to, bytes]) => {
                Ok(Self::Write(place(*stag, *to).map_err(|_| FORM)?, length(*bytes)?))
            }
            ("read", [stag, to, bytes]) => {
                Ok(Self::Read(place(*stag, *to).map_err(|_| FORM)?, length(*bytes)?))
            }
            _ => Err(FORM.to_owned()),
        }
    }
}

impl fmt::Display for RawRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(bytes) => write!(f, "send:{bytes}"),
            Self::Write(at, bytes) => write!(f, "write:{:#x}:{:#x}:{bytes}", at.rkey.0, at.addr),
            Self::Read(at, bytes) => write!(f, "read:{:#x}:{:#x}:{bytes}", at.rkey.0, at.addr),
            Self::Recv => f.write_str("recv"),
        }
    }
}

/// A queue pair with posted receives, ready to connect or accept and then to execute the requests.
pub(super) struct RawSession<'a> {
    pending: PendingQp,
    receives: Buffer,
    args: &'a Args,
}

impl<'a> RawSession<'a> {
    pub(super) fn new(device: &uiw::raw::Device, args: &'a Args) -> Result<Self> {
        let pd = device.alloc_pd()?;
        let pending = PendingQp::new(device, &pd, &QueueDepths::new(16, RECEIVES as u32))?;
        let receives = Buffer::exclusive(&pd, RECEIVES as usize * RECEIVE_LEN)?;
        post_recvs(
            &pending.qp,
            &(0..RECEIVES).map(|slot| (slot, Some(receives.sge(range(slot))))).collect::<Vec<_>>(),
        )?;
        Ok(Self { pending, receives, args })
    }

    pub(super) fn connect(self, peer: std::net::SocketAddr) -> Result<()> {
        let Self { pending, receives, args } = self;
        let pd = pending.pd.clone();
        let begun = Instant::now();
        let link = pending.connect(peer, &args.options(), &args.private_data())?;
        super::report_established(&link.info, begun.elapsed(), args.json);
        run(link, &pd, receives, args)
    }

    pub(super) fn accept(self, request: ConnRequest, until: WaitLimits<'_>) -> Result<()> {
        let Self { pending, receives, args } = self;
        let pd = pending.pd.clone();
        let begun = Instant::now();
        let link = pending.accept(request, &args.options(), &args.private_data(), until)?;
        super::report_established(&link.info, begun.elapsed(), args.json);
        run(link, &pd, receives, args)
    }
}

fn range(slot: u64) -> std::ops::Range<usize> {
    let start = slot as usize * RECEIVE_LEN;
    start..start + RECEIVE_LEN
}

fn run(link: Link, pd: &uiw::raw::Pd, receives: Buffer, args: &Args) -> Result<()> {
    let memory = Buffer::shared(pd, MEMORY, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let local = Buffer::exclusive(pd, MEMORY)?;
    let remote = memory.remote();
    let details = json!({
        "stag": remote.rkey.0, "tagged_offset": format!("{:#x}", remote.addr), "length": remote.len,
        "private_data": hex(&link.info.private_data),
    });
    report(args.json, "memory", &details, || {
        format!(
            "memory for the peer: STag {:#x} TO {:#x}, {} bytes",
            remote.rkey.0, remote.addr, remote.len
        )
    });
    let mut exchange = RawExchange { link: &link, receives, local, came: VecDeque::new(), args };
    args.raw.iter().try_for_each(|request| exchange.carry_out(*request))?;
    link.close();
    Ok(())
}

struct RawExchange<'a> {
    link: &'a Link,
    receives: Buffer,
    local: Buffer,
    /// Receives that completed while another completion was awaited.
    came: VecDeque<Wc>,
    args: &'a Args,
}

impl RawExchange<'_> {
    fn carry_out(&mut self, request: RawRequest) -> Result<()> {
        let (op, bytes) = match request {
            RawRequest::Recv => return self.receive(),
            RawRequest::Send(bytes) => (SendOp::Send, bytes),
            RawRequest::Write(remote, bytes) => (SendOp::Write { remote }, bytes),
            RawRequest::Read(remote, bytes) => (SendOp::Read { remote, invalidate: None }, bytes),
        };
        let is_read = matches!(request, RawRequest::Read(..));
        if !is_read {
            let pattern: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            self.local.write(0, &pattern)?;
        }
        let sge = self.local.sge(0..bytes as usize);
        let sges = if bytes == 0 { &[][..] } else { &[sge][..] };
        post(&self.link.qp, 0, op, sges, SendFlags::SIGNALED)?;
        loop {
            let wc = self.next(&request)?;
            if wc.wr_id & RECV == 0 {
                break;
            }
            self.came.push_back(wc);
        }
        let mut read = vec![0; if is_read { bytes as usize } else { 0 }];
        self.local.read(0, &mut read)?;
        let details = json!({"request": request.to_string(), "read": hex(&read)});
        report(self.args.json, "done", &details, || match is_read {
            true => format!("done {request}: {}", shown(&read)),
            false => format!("done {request}"),
        });
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let wc = match self.came.pop_front() {
            Some(wc) => wc,
            None => self.next(&RawRequest::Recv)?,
        };
        let slot = wc.wr_id & !RECV;
        let mut bytes = vec![0; wc.byte_len as usize];
        self.receives.read(range(slot).start, &mut bytes)?;
        let details = json!({
            "length": wc.byte_len, "bytes": hex(&bytes), "invalidated": wc.invalidated.map(|stag| stag.0),
        });
        report(self.args.json, "received", &details, || {
            format!("received {} bytes: {}", wc.byte_len, shown(&bytes))
        });
        post_recvs(&self.link.qp, &[(slot, Some(self.receives.sge(range(slot))))])
    }

    fn next(&self, request: &RawRequest) -> Result<Wc> {
        let deadline = Instant::now() + Duration::from_secs_f64(self.args.timeout);
        let late =
            || Failure::lost(self.link.peer(), format!("{request} has not completed in time"));
        self.link
            .next(WaitMode::Sleep, WaitLimits::deadline(deadline).ended(self.link))?
            .ok_or_else(late)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn shown(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN { ".." } else { "" };
    hex(&bytes[..bytes.len().min(SHOWN)]) + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_as_they_are_written() {
        let at = Remote { addr: 0x1000, rkey: STag(0x51) };
        for (text, request) in [
            ("send:64", RawRequest::Send(64)),
            ("write:0x51:0x1000:8", RawRequest::Write(at, 8)),
            ("read:81:4096:0", RawRequest::Read(at, 0)),
            ("recv", RawRequest::Recv),
        ] {
            assert_eq!(text.parse(), Ok(request));
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        for text in
            ["send", "send:", "write:1:2", "write:0x1ffffffff:0:1", "recv:1", "send:9999999", ""]
        {
            assert!(text.parse::<RawRequest>().is_err(), "{text}");
        }
    }
}
