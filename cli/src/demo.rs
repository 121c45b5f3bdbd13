//! `uiw demo`: transfers a file between two devices with every RDMA operation, verifies it byte for
//! byte, and compares with raw TCP.

use crate::shared::args::{PeerConfig, seconds};
use crate::shared::child;
use crate::shared::fail::{Exit, Failure};
use crate::shared::open::Opener;
use crate::shared::text::{self, Progress};
use serde_json::json;
use std::error::Error;
use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use uiw::raw::{ConnConfig, FpduSize};
use uiw::{
    Access, BoundWindow, Connection, ConnectionConfig, Device, Listener, Mr, RemoteMr, SharedMr,
};

/// Largest file, in bytes. Up to five copies of it are held in memory.
const MAX_FILE: u64 = 1 << 30;
/// Bytes of a message.
const BLOCK: usize = 256 << 10;
/// Time limit for one transfer of the file.
const TIMEOUT: Duration = Duration::from_secs(60);

type Result<T, E = Failure> = std::result::Result<T, E>;
type AnyError = Box<dyn Error + Send + Sync>;

/// Options of `uiw demo`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// File to transfer [default: this program's own executable]
    file: Option<PathBuf>,
    /// One JSON object a line, and one at the end
    #[arg(long)]
    json: bool,
    /// Time for which each line transfers the file, and then the same time for raw TCP
    #[arg(long, hide = true, default_value = "0.25", value_parser = seconds)]
    seconds: f64,
    /// Flip a bit of the copy in this line, to test the verification
    #[arg(long, hide = true, value_name = "LINE")]
    corrupt: Option<usize>,
}

/// Operation that transfers the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoOperation {
    Send,
    SendSolicited,
    SendInvalidate,
    SendImmediate,
    Write,
    WriteImmediate,
    WriteWindow,
    Read,
    FetchAdd,
    CmpSwap,
}

const OPERATIONS: [(DemoOperation, &str); 10] = [
    (DemoOperation::Send, "Send"),
    (DemoOperation::SendSolicited, "Send with Solicited Event"),
    (DemoOperation::SendInvalidate, "Send with Invalidate"),
    (DemoOperation::SendImmediate, "Send with immediate"),
    (DemoOperation::Write, "RDMA Write"),
    (DemoOperation::WriteImmediate, "RDMA Write with immediate"),
    (DemoOperation::WriteWindow, "RDMA Write through a memory window"),
    (DemoOperation::Read, "RDMA Read"),
    (DemoOperation::FetchAdd, "RDMA Write, blocks by FetchAdd"),
    (DemoOperation::CmpSwap, "RDMA Write, lock by CmpSwap"),
];

impl DemoOperation {
    fn is_send(self) -> bool {
        (self as u8) < Self::Write as u8
    }
}

/// One line of the table.
struct DemoCase {
    operation: DemoOperation,
    name: &'static str,
    wire: &'static str,
    peer_options: PeerConfig,
}

/// Returns a case for each operation with the default settings, and three operations with each of
/// the other settings.
fn cases() -> Vec<DemoCase> {
    let settings = [
        ("", ConnConfig::default()),
        ("CRC off", ConnConfig::default().crc(false)),
        ("Markers", ConnConfig::default().markers(true)),
        // Fits an Ethernet frame of 1500 bytes.
        ("FPDUs of 1424", ConnConfig::default().fpdu(FpduSize::Fixed(1424))),
    ];
    let mut cases = Vec::new();
    for (wire, config) in settings {
        for (operation, name) in OPERATIONS {
            if wire.is_empty()
                || matches!(
                    operation,
                    DemoOperation::Send | DemoOperation::Write | DemoOperation::Read
                )
            {
                cases.push(DemoCase {
                    operation,
                    name,
                    wire,
                    peer_options: PeerConfig::new(config.clone()),
                });
            }
        }
    }
    cases
}

/// Runs `uiw demo`.
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => child::own_file()?,
    };
    let file = read_file(&path)?;
    let time = Duration::from_secs_f64(args.seconds);
    // Only one of the devices writes the capture, so that it contains the bytes once.
    let ends = [opener.device()?, uiw::raw::Device::open()?].map(Device::from);
    if !args.json {
        let (path, bytes) = (path.display(), text::grouped(file.len() as u64));
        text::line(format!(
            "{path} ({bytes} bytes) over iWARP on 127.0.0.1, in every way; beside it raw TCP:"
        ));
        text::line(format!(
            "{:>3}  {:<35} {:<14} {:>14} {:>9} {:>12} {:>12} {:>6}",
            "", "", "wire", "bytes", "verified", "uiw", "raw TCP", "ratio"
        ));
    }
    let mut progress = Progress::new();
    let cases = cases();
    let (mut verified, mut first_failure) = (0, None);
    for (number, case) in (1..).zip(&cases) {
        progress.show(|| format!("line {number} of {}: {}", cases.len(), case.name));
        let corrupt = args.corrupt == Some(number);
        let outcome = FileTransfer::connect(case, &file, &ends)
            .and_then(|mut transfer| repeat(&file, time, || transfer.pass(corrupt)))
            .and_then(|ours| Ok((ours, over_tcp(&file, time)?)));
        progress.clear();
        report(number, case, &outcome, args.json);
        match outcome {
            Ok(_) => verified += 1,
            Err(failure) => drop(first_failure.get_or_insert(failure)),
        }
    }
    let lines = cases.len();
    if args.json {
        let all = verified == lines;
        text::json(&json!({"type": "summary", "lines": lines, "verified": verified, "all": all}));
    } else {
        text::line(format!("{verified} of {lines} lines verified, byte for byte"));
    }
    first_failure.map_or(Ok(()), Err)
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let wrong = |why: &dyn Display| {
        Failure::usage(path.display(), why, "name a file that is not empty and at most 1 GiB")
    };
    match std::fs::metadata(path).map_err(|error| wrong(&error))?.len() {
        0 => Err(wrong(&"is empty")),
        1..=MAX_FILE => std::fs::read(path).map_err(|error| wrong(&error)),
        bytes => Err(wrong(&format_args!("has {bytes} bytes"))),
    }
}

/// Bytes moved, and bytes a second.
type Throughput = (u64, f64);

fn report(
    number: usize,
    case: &DemoCase,
    outcome: &Result<(Throughput, Throughput)>,
    as_json: bool,
) {
    let head = format!("{number:>3}  {:<35} {:<14}", case.name, case.wire);
    let PeerConfig { crc, markers, fpdu, .. } = &case.peer_options;
    let mut value = json!({
        "type": "line", "line": number, "name": case.name, "crc": crc, "markers": markers, "fpdu": fpdu.to_string(),
        "verified": outcome.is_ok(), "bytes": null, "bytes_per_second": null, "raw_bytes_per_second": null,
        "ratio": null,
    });
    let line = match outcome {
        Ok(((bytes, ours), (_, raw))) => {
            value["bytes"] = (*bytes).into();
            value["bytes_per_second"] = (*ours).into();
            value["raw_bytes_per_second"] = (*raw).into();
            value["ratio"] = (ours / raw).into();
            let (bytes, our_rate, raw_rate) =
                (text::grouped(*bytes), text::rate(*ours), text::rate(*raw));
            format!(
                "{head} {bytes:>14} {:>9} {our_rate:>12} {raw_rate:>12} {:>6.2}",
                "yes",
                ours / raw
            )
        }
        Err(failure) => {
            value["error"] = failure.to_string().into();
            let verdict = if failure.exit == Exit::Failed { "NO" } else { "LOST" };
            format!("{head} {:>14} {verdict:>9}  {failure}", "")
        }
    };
    if as_json { text::json(&value) } else { text::line(line) }
}

/// Calls `pass`, which returns the time that it took to transfer the file, until `time` is over.
fn repeat(
    file: &[u8],
    time: Duration,
    mut pass: impl FnMut() -> Result<Duration>,
) -> Result<Throughput> {
    let (mut bytes, mut took, start) = (0, Duration::ZERO, Instant::now());
    loop {
        took += pass()?;
        bytes += file.len() as u64;
        if start.elapsed() >= time {
            return Ok((bytes, bytes as f64 / took.as_secs_f64()));
        }
    }
}

/// Transfers the file over raw TCP.
fn over_tcp(file: &[u8], time: Duration) -> Result<Throughput> {
    let failed = |error| Failure::lost("raw TCP", error);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
    let mut from = listener.local_addr().and_then(TcpStream::connect).map_err(failed)?;
    let (mut to, _) = listener.accept().map_err(failed)?;
    for stream in [&from, &to] {
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    }
    let mut copy = vec![0; file.len()];
    repeat(file, time, || {
        let start = Instant::now();
        let mut send = || {
            file.chunks(BLOCK).try_for_each(|block| from.write_all(block))?;
            from.read_exact(&mut [0])
        };
        let mut receive = || {
            copy.chunks_mut(BLOCK).try_for_each(|block| to.read_exact(block))?;
            to.write_all(&[0])
        };
        both(|| send().map_err(failed), || receive().map_err(failed))?;
        let took = start.elapsed();
        verify("raw TCP", &copy, file)?;
        copy.fill(0);
        Ok(took)
    })
}

fn verify(name: &str, copy: &[u8], file: &[u8]) -> Result<()> {
    if copy == file {
        return Ok(());
    }
    let at = copy.iter().zip(file).position(|(a, b)| a != b).unwrap_or(copy.len().min(file.len()));
    Err(Failure::differs(name, format!("byte {at} differs")))
}

/// Runs two ends at the same time.
fn both<A: Send, B>(
    first: impl FnOnce() -> Result<A> + Send,
    second: impl FnOnce() -> Result<B>,
) -> Result<(A, B)> {
    std::thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        let first = first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        second.and_then(|second| Ok((first?, second)))
    })
}

/// Waits for an operation of this end.
fn wait<T, E: Display>(
    device: &Device,
    name: &str,
    operation: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    let late = || Failure::lost(name, format!("not finished within {TIMEOUT:?}"));
    let outcome = device.block_on_for(TIMEOUT, operation).ok_or_else(late)?;
    outcome.map_err(|error| Failure::lost(name, error))
}

/// A connection that transfers the file repeatedly.
struct FileTransfer<'a> {
    case: &'a DemoCase,
    file: &'a [u8],
    /// Devices of the client and the server.
    ends: &'a [Device; 2],
    client: Connection,
    server: Connection,
    /// The file, or the destination of Reads, at the client.
    blocks: Vec<Mr<Vec<u8>>>,
    /// The file, or the destination of Writes, at the server.
    memory: SharedMr,
    /// Eight bytes for atomics at the server.
    cell: SharedMr,
    /// The file as it arrived.
    copy: Vec<u8>,
}

impl<'a> FileTransfer<'a> {
    fn connect(case: &'a DemoCase, file: &'a [u8], ends: &'a [Device; 2]) -> Result<Self> {
        let failed = |error| Failure::local("cannot prepare the run", error);
        let [client, server] =
            [ends[0].alloc_pd().map_err(failed)?, ends[1].alloc_pd().map_err(failed)?];
        let access = match case.operation {
            DemoOperation::Read => Access::REMOTE_READ,
            DemoOperation::WriteWindow => Access::empty(),
            _ => Access::REMOTE_WRITE,
        };
        let memory = server.share(file.len(), access).map_err(failed)?;
        let cell = server.share(8, Access::REMOTE_ATOMIC).map_err(failed)?;
        let blocks = file.chunks(BLOCK).map(|block| client.register(block.to_vec()));
        let blocks = blocks.collect::<Result<_, _>>().map_err(|error| failed(error.error))?;
        let config = ConnectionConfig::default()
            .options(case.peer_options.options())
            .recv_size(BLOCK as u32);
        let listener =
            Listener::bind(&server, ([127, 0, 0, 1], 0).into(), &config).map_err(failed)?;
        let address = listener.local_addr();
        let (client, server) = both(
            || wait(&ends[0], case.name, Connection::connect(&client, address, &config)),
            || wait(&ends[1], case.name, listener.accept()),
        )?;
        let copy = vec![0; file.len()];
        Ok(Self { case, file, ends, client, server, blocks, memory, cell, copy })
    }

    /// Transfers the file and verifies it. Returns the time of the transfer.
    fn pass(&mut self, corrupt: bool) -> Result<Duration> {
        let Self { case, file, ends, client, server, blocks, memory, cell, copy } = self;
        let DemoCase { operation, name, .. } = *case;
        let failed = |error| Failure::local(name, error);
        let all = 0..file.len();
        // Remove the bytes of the previous pass.
        copy.fill(!0);
        if *operation == DemoOperation::Read {
            memory.write(0, file).map_err(failed)?;
            blocks.iter_mut().for_each(|block| block.bytes_mut().fill(0));
        } else {
            memory.write(0, &vec![0; file.len()]).map_err(failed)?;
        }
        cell.update_u64(0, |_| 0).map_err(failed)?;
        let window = match operation {
            DemoOperation::SendInvalidate | DemoOperation::WriteWindow => {
                let bind = server.bind_window(memory, all.clone(), Access::REMOTE_WRITE);
                Some(wait(&ends[1], name, bind)?)
            }
            _ => None,
        };
        let target = match &window {
            Some(window) => window.remote(),
            None => memory.remote(all.clone()).map_err(failed)?,
        };
        let cell_at = cell.remote(0..8).map_err(failed)?;
        let start = Instant::now();
        both(
            || wait(&ends[0], name, post(client, *operation, blocks, target, cell_at)),
            || wait(&ends[1], name, receive(server, *operation, copy, window.as_ref())),
        )?;
        let took = start.elapsed();
        if *operation == DemoOperation::Read {
            copy.chunks_mut(BLOCK)
                .zip(blocks.iter())
                .for_each(|(to, block)| to.copy_from_slice(block.bytes()));
        } else if !operation.is_send() {
            memory.read(0, copy).map_err(failed)?;
        }
        if corrupt {
            copy[file.len() / 2] ^= 1;
        }
        verify(name, copy, file)?;
        let expected = if *operation == DemoOperation::FetchAdd { blocks.len() as u64 } else { 0 };
        match cell.load_u64(0).map_err(failed)? {
            found if found == expected => Ok(took),
            found => Err(Failure::differs(
                name,
                format!("the number in memory is {found}, not {expected}"),
            )),
        }
    }
}

/// Posts the blocks and waits for the server's answer.
async fn post(
    client: &Connection,
    operation: DemoOperation,
    blocks: &mut Vec<Mr<Vec<u8>>>,
    target: RemoteMr,
    cell: RemoteMr,
) -> Result<(), AnyError> {
    let (last, mut offset) = (blocks.len() - 1, 0);
    let mut posted = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.drain(..).enumerate() {
        let place = target.slice(offset..offset + block.len())?;
        offset += block.len();
        match operation {
            DemoOperation::FetchAdd if client.fetch_add(cell, 1).await? != index as u64 => {
                return Err(format!("FetchAdd did not find {index}").into());
            }
            DemoOperation::CmpSwap => while client.compare_swap(cell, 0, 1).await? != 0 {},
            _ => {}
        }
        posted.push(match operation {
            DemoOperation::SendInvalidate if index == last => {
                client.send_invalidate(block, target.rkey)
            }
            DemoOperation::Send | DemoOperation::SendInvalidate => client.send(block),
            DemoOperation::SendSolicited => client.send_solicited(block),
            DemoOperation::SendImmediate => client.send_imm(block, index as u32),
            DemoOperation::WriteImmediate => client.write_imm(block, place, index as u32),
            DemoOperation::Read => client.read(block, place),
            _ => client.write(block, place),
        });
        if operation == DemoOperation::CmpSwap {
            client.compare_swap(cell, 1, 0).await?;
        }
    }
    for operation in posted {
        blocks.push(operation.await?);
    }
    client.send_copy(b"").await?;
    client.recv().await?;
    Ok(())
}

/// Receives the messages of the blocks, if the operation has any: those of Sends contain the file,
/// which is stored in `copy`, and those of Writes with immediate are empty. Then receives the empty
/// message that follows, and answers it.
async fn receive(
    server: &Connection,
    operation: DemoOperation,
    copy: &mut [u8],
    window: Option<&BoundWindow>,
) -> Result<(), AnyError> {
    let is_immediate =
        matches!(operation, DemoOperation::SendImmediate | DemoOperation::WriteImmediate);
    let blocks = if operation.is_send() || is_immediate { copy.len().div_ceil(BLOCK) } else { 0 };
    for (index, block) in copy.chunks_mut(BLOCK).take(blocks).enumerate() {
        let message = server.recv().await?.ok_or("closed early")?;
        let invalidated = window.filter(|_| index + 1 == blocks).map(|window| window.remote().rkey);
        let len = if operation.is_send() { block.len() } else { 0 };
        let (imm, stag) = (message.imm(), message.invalidated());
        if (message.len(), imm, stag) != (len, is_immediate.then_some(index as u32), invalidated) {
            let len = message.len();
            return Err(format!(
                "block {index} came with {len} bytes, immediate {imm:?}, invalidated {stag:?}"
            )
            .into());
        }
        block[..len].copy_from_slice(&message);
    }
    match server.recv().await? {
        Some(end) if end.is_empty() => server.send_copy(b"").await?,
        _ => return Err("closed, or sent more than the file".into()),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_line() {
        let lines = cases();
        assert_eq!(lines.len(), 19);
        for (operation, _) in OPERATIONS {
            assert!(lines.iter().any(|line| line.operation == operation), "{operation:?}");
        }
    }
}
