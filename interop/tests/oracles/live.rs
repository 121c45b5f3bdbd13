//! Captures every operation that our stack sends while two of our own ends talk to each other, and
//! checks the capture with tshark and with our decoder.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use uiw::raw::Remote;
use uiw::{
    Access, Connection, ConnectionConfig, Device, DeviceConfig, FpduSize, Listener, Mr, Pd,
    RemoteMr, Revision, RtrKinds, STag, SharedMr,
};
use uiw_interop::tshark::{Crc, Dissection, Tshark};
use uiw_llp::capture::{CaptureStack, PcapSink};
use uiw_llp::tcp::TcpStack;

use crate::decoded::Decoded;

const LEN: usize = 200_000;

/// Returns a device that captures its connections to `sink`.
fn captured(sink: &Arc<PcapSink>) -> Device {
    let stack = CaptureStack::new(Box::new(TcpStack::new().unwrap()), Arc::clone(sink), "uiw");
    Device::with_stack(Box::new(stack), DeviceConfig::default()).unwrap()
}

/// Temporary file that is removed when the test ends, whether or not it passed.
pub(crate) struct TempFile(pub(crate) PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("uiw-{}-{name}.pcapng", std::process::id())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn buffer(pd: &Pd, len: usize) -> Mr<Vec<u8>> {
    pd.register((0..len).map(|i| (i * 31) as u8).collect()).unwrap()
}

/// Runs the server: shares memory, announces it, then receives messages until the client
/// disconnects.
fn serve(device: Device, listener: Listener) -> SharedMr {
    device.block_on(async {
        let connection = listener.accept().await.unwrap();
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = connection.pd().share(LEN, access).unwrap();
        let window = connection.bind_window(&memory, 0..64, Access::REMOTE_WRITE).await.unwrap();
        let second = connection.bind_window(&memory, 0..64, Access::REMOTE_READ).await.unwrap();
        let remote = memory.remote(0..LEN).unwrap();
        let mut hello = remote.to_bytes().to_vec();
        hello.extend_from_slice(&window.remote().rkey.0.to_be_bytes());
        hello.extend_from_slice(&second.remote().rkey.0.to_be_bytes());
        connection.send_copy(&hello).await.unwrap();
        while let Ok(Some(_)) = connection.recv().await {}
        connection.ended().await;
        memory
    })
}

/// Selects the messages that the client sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Everything,
    /// Only messages that are sent one FPDU at a time, because tshark 4.0 cannot follow anything
    /// else when Markers are used.
    OneFpduAtATime,
}

async fn every_operation(connection: &Connection, script: Script) {
    let pd = connection.pd();
    let hello = connection.recv().await.unwrap().unwrap();
    let remote = RemoteMr::from_bytes(&hello[..RemoteMr::LEN]).unwrap();
    let windows: Vec<u32> = hello[RemoteMr::LEN..]
        .chunks(4)
        .map(|key| u32::from_be_bytes(key.try_into().unwrap()))
        .collect();
    connection.send(buffer(pd, 0)).await.unwrap();
    connection.send(buffer(pd, 1)).await.unwrap();
    connection.send(buffer(pd, 9_999)).await.unwrap();
    connection.send_solicited(buffer(pd, 77)).await.unwrap();
    connection.send_invalidate(buffer(pd, 12), STag(windows[0])).await.unwrap();
    connection.send_solicited_invalidate(buffer(pd, 13), STag(windows[1])).await.unwrap();
    let all = script == Script::Everything;
    for len in [0, 1, 64, 1_442, if all { LEN } else { 9_000 }] {
        let source = connection.write(buffer(pd, len), remote).await.unwrap();
        let target = pd.register(vec![0; len]).unwrap();
        let target = connection.read(target, remote).await.unwrap();
        assert!(source.bytes() == target.bytes(), "{len} bytes written and read back");
    }
    if all {
        connection.write_imm(buffer(pd, 33), remote, 0x0102_0304).await.unwrap();
        connection.write_imm_solicited(buffer(pd, 35), remote, 7).await.unwrap();
    }
    connection.send_imm(buffer(pd, 34), 0x0506_0708).await.unwrap();
    let counter = remote.slice(128..136).unwrap();
    let before = connection.fetch_add(counter, 3).await.unwrap();
    assert_eq!(
        connection.compare_swap(counter, before.wrapping_add(3), 9).await.unwrap(),
        before + 3
    );
    connection.disconnect().await.unwrap();
}

/// End at which the capture is made: its own bytes are recorded as they were passed to TCP, the
/// peer's bytes as TCP delivered them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

/// Runs the conversation with `settings` and returns the capture made at `end`.
pub(crate) fn converse(
    name: &str,
    settings: &ConnectionConfig,
    script: Script,
    end: End,
) -> TempFile {
    let file = TempFile::new(name);
    let sink = PcapSink::create(&file.0).unwrap();
    let device = |at: End| if at == end { captured(&sink) } else { Device::open().unwrap() };
    let server = device(End::Server);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(&server.alloc_pd().unwrap(), any, settings).unwrap();
    let address = listener.local_addr();
    let thread = thread::spawn(move || serve(server, listener));
    let client = device(End::Client);
    client.block_on(async {
        let pd = client.alloc_pd().unwrap();
        let connection = Connection::connect(&pd, address, settings).await.unwrap();
        every_operation(&connection, script).await;
    });
    thread.join().unwrap();
    drop(client);
    sink.flush().unwrap();
    file
}

fn opcodes(dissection: &Dissection) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    for fpdu in &dissection.fpdus {
        if fpdu.last == Some(true) {
            *counts.entry(fpdu.opcode.expect("an opcode")).or_insert(0) += 1;
        }
    }
    counts
}

/// Asserts that our decoder follows every byte and reports nothing except the experimental opcode
/// of Send with immediate.
fn judge_by_ourselves(file: &Path) -> Decoded {
    let decoded = Decoded::new(file.to_owned());
    assert!(decoded.summary.followed(), "{:?}", decoded.summary);
    let unexpected: Vec<_> = decoded
        .of_type("departure")
        .filter(|departure| departure["rule"] != "RFC 6580 4")
        .collect();
    assert!(unexpected.is_empty() && decoded.summary.crc_bad == 0, "{unexpected:?}");
    decoded
}

/// Asserts that tshark and our decoder find nothing wrong in the capture, and returns the number of
/// complete messages per opcode as counted by tshark.
fn judge_file(tshark: &Tshark, name: &str, file: &TempFile, crc: Crc) -> BTreeMap<u8, usize> {
    judge_by_ourselves(&file.0);
    let seen = tshark.dissect(&file.0).unwrap();
    assert_eq!((seen.requests, seen.replies, seen.malformed), (1, 1, 0), "{name}");
    assert!(seen.fpdus.iter().all(|fpdu| fpdu.crc == crc && !fpdu.malformed), "{name}");
    opcodes(&seen)
}

fn judge(name: &str, settings: &ConnectionConfig, crc: Crc) {
    let Some(tshark) = Tshark::require() else { return };
    let file = converse(name, settings, Script::Everything, End::Client);
    let counts = judge_file(&tshark, name, &file, crc);
    for opcode in (0..=6).chain(8..=11).chain([15]) {
        assert!(counts.contains_key(&opcode), "{name}: opcode {opcode} of {counts:?}");
    }
    assert_eq!(
        (counts[&1], counts[&10]),
        (counts[&2], counts[&11]),
        "{name}: every request is answered"
    );
}

fn settings() -> ConnectionConfig {
    ConnectionConfig::default()
}

#[test]
fn tshark_accepts_every_operation() {
    judge("crc", &settings(), Crc::Good);
}

#[test]
fn tshark_accepts_every_operation_without_crc() {
    let mut settings = settings();
    settings.options.crc = false;
    judge("no-crc", &settings, Crc::Unchecked);
}

#[test]
fn tshark_accepts_every_operation_with_markers() {
    let mut settings = settings();
    settings.options.markers = true;
    let Some(tshark) = Tshark::require() else { return };
    judge_by_ourselves(&converse("markers-all", &settings, Script::Everything, End::Client).0);
    for (name, end, sent) in [
        ("markers-client", End::Client, &[0, 1, 3, 4, 5, 6, 10, 15][..]),
        ("markers-server", End::Server, &[0, 2, 3, 11][..]),
    ] {
        let file = converse(name, &settings, Script::OneFpduAtATime, end);
        let counts = judge_file(&tshark, name, &file, Crc::Good);
        for opcode in sent {
            assert!(counts.contains_key(opcode), "{name}: opcode {opcode} of {counts:?}");
        }
    }
}

#[test]
fn tshark_accepts_small_fpdus() {
    let mut settings = settings();
    settings.options.fpdu = FpduSize::Fixed(1424);
    judge("small", &settings, Crc::Good);
}

#[test]
fn tshark_accepts_revisions_and_rtrs() {
    let mut revision_1 = settings();
    revision_1.options.revision = Revision::One;
    judge("revision-1", &revision_1, Crc::Good);
    for (name, rtr) in [
        ("rtr-read", RtrKinds { read: true, ..RtrKinds::NONE }),
        ("rtr-send", RtrKinds { send: true, ..RtrKinds::NONE }),
        ("rtr-write", RtrKinds { write: true, ..RtrKinds::NONE }),
    ] {
        let mut settings = settings();
        settings.options.rtr = rtr;
        judge(name, &settings, Crc::Good);
    }
}

#[test]
fn tshark_accepts_a_terminate() {
    let Some(tshark) = Tshark::require() else { return };
    let file = TempFile::new("terminate");
    let sink = PcapSink::create(&file.0).unwrap();
    let server = Device::open().unwrap();
    let settings = settings();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(&server.alloc_pd().unwrap(), any, &settings).unwrap();
    let address = listener.local_addr();
    let thread = thread::spawn(move || {
        server.block_on(async { listener.accept().await.unwrap().ended().await });
    });
    let client = captured(&sink);
    let failed = client.block_on(async {
        let pd = client.alloc_pd().unwrap();
        let connection = Connection::connect(&pd, address, &settings).await.unwrap();
        let nowhere = RemoteMr { addr: Remote::default().addr, rkey: STag(0x1234_5600), len: 64 };
        connection.read(pd.register(vec![0; 64]).unwrap(), nowhere).await.unwrap_err().to_string()
    });
    assert!(failed.contains("the peer refused access"), "{failed}");
    thread.join().unwrap();
    drop(client);
    sink.flush().unwrap();
    let decoded = judge_by_ourselves(&file.0);
    assert_eq!(decoded.summary.messages.get("Terminate"), Some(&1));
    let seen = tshark.dissect(&file.0).unwrap();
    assert_eq!(seen.malformed, 0);
    assert!(seen.fpdus.iter().any(|fpdu| fpdu.opcode == Some(7) && fpdu.crc == Crc::Good));
}
