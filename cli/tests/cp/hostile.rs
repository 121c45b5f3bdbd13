//! Peers that send what a good one does not.

use crate::program::{Scratch, Server, command, copied, text};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device, Pd, RemoteMr, STag};

/// The fields of a message.
#[derive(Default)]
struct MessageFields(Vec<u8>);

impl MessageFields {
    /// A message for slot 0.
    fn new(number: u8) -> Self {
        Self(vec![0, 0, number])
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn counted(self, bytes: &[u8]) -> Self {
        self.raw(&(bytes.len() as u16).to_be_bytes()).raw(bytes)
    }

    /// The metadata of a file of so many bytes, of mode 0644.
    fn file(self, size: u64) -> Self {
        self.raw(&[0, 0x01, 0xA4])
            .raw(&size.to_be_bytes())
            .raw(&[0; 12])
            .raw(&[7; 16])
            .raw(&[0])
            .counted(b"")
    }
}

/// A client that speaks the protocol as it likes.
struct HostileClient {
    pd: Pd,
    connection: Connection,
    slot: RemoteMr,
}

impl HostileClient {
    fn connect(address: &str) -> Self {
        let device = Device::open().unwrap();
        let pd = device.alloc_pd().unwrap();
        let order = json!({
            "share": "s", "token": 5, "push": true, "slots": 1, "at": [0, 0],
            "options": {"crc": true, "markers": false, "fpdu": "auto", "stable_tx": false},
        });
        let settings = ConnectionConfig::default().private_data(format!("uiw-cp/1 {order}"));
        let connection = Connection::connect(&pd, address.parse().unwrap(), &settings).unwrap();
        let reply: Value = serde_json::from_slice(&connection.info().private_data).unwrap();
        let number = |at: usize| reply["at"][at].as_u64().unwrap();
        let slot = RemoteMr { addr: number(0), rkey: STag(number(1) as u32), len: 1 << 20 };
        Self { pd, connection, slot }
    }

    /// The number of the reply and its fields; `None`: the server has ended the connection.
    fn call(&self, message: &MessageFields) -> Option<(u8, Vec<u8>)> {
        self.connection.send_copy(&message.0).ok()?;
        let reply = self.connection.recv_timeout(Duration::from_secs(30)).ok()??;
        Some((reply[2], reply[3..].to_vec()))
    }

    /// Puts bytes into the slot.
    fn write(&self, bytes: &[u8]) {
        let source = self.pd.register(bytes.to_vec()).unwrap();
        self.connection.write(source, self.slot.slice(0..bytes.len()).unwrap()).wait().unwrap();
    }
}

const FAILED: u8 = 13;

/// Everything that names a path, each with this one.
fn requests(path: &[u8]) -> Vec<MessageFields> {
    let hash = [0; 32];
    vec![
        MessageFields::new(1).counted(path),
        MessageFields::new(2).counted(path).counted(b"").raw(&[1]),
        MessageFields::new(3).counted(path).file(5 << 20),
        MessageFields::new(4)
            .counted(path)
            .file(5)
            .raw(&[0; 8])
            .raw(&5u32.to_be_bytes())
            .raw(blake3_of_zeros().as_slice()),
        MessageFields::new(5).counted(path).file(5 << 20).raw(&[0; 8]).raw(&1u64.to_be_bytes()),
        MessageFields::new(6).counted(path).file(5),
        MessageFields::new(8).counted(path).counted(b"target").raw(&[0; 12]),
        MessageFields::new(9).counted(path).raw(&0o755u16.to_be_bytes()).raw(&[0; 12]),
        MessageFields::new(10).counted(path).raw(&[0; 16]).raw(&[0; 8]),
        MessageFields::new(11).raw(&1u16.to_be_bytes()).counted(path),
        MessageFields::new(7).raw(&1u16.to_be_bytes()).raw(&0u32.to_be_bytes()).raw(&hash),
        MessageFields::new(13).counted(path),
    ]
}

/// The BLAKE3 hash of five zero bytes.
fn blake3_of_zeros() -> [u8; 32] {
    *blake3::hash(&[0; 5]).as_bytes()
}

/// A share with a link that leads out of it.
fn share(scratch: &Scratch) -> Server {
    let outside = scratch.directory("outside");
    fs::write(outside.join("secret"), "secret").unwrap();
    let served = scratch.directory("served");
    symlink(&outside, served.join("out")).unwrap();
    symlink("../outside/secret", served.join("link")).unwrap();
    Server::start(scratch.path(), &["--share", "s=served:rw"])
}

/// Nothing outside was changed or made.
fn is_untouched(scratch: &Scratch) {
    let names = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!(fs::read(scratch.join("outside/secret")).unwrap(), b"secret");
    assert_eq!((names(&scratch.join("outside")), names(&scratch.join("served"))), (1, 2));
}

#[test]
fn paths_leaving_share_end_connection() {
    let scratch = Scratch::new();
    let mut server = share(&scratch);
    for path in [
        &b"../outside/secret"[..],
        b"/etc/passwd",
        b"a/../../outside/secret",
        b"a//b",
        b"a\0b",
        b"x.uiw-part",
    ] {
        for request in requests(path) {
            let client = HostileClient::connect(&server.address);
            let reply = client.call(&request);
            assert_eq!(reply, None, "{} of {}", request.0[2], path.escape_ascii());
        }
    }
    is_untouched(&scratch);
    assert!(server.is_up());
}

#[test]
fn links_leaving_share_not_followed() {
    let scratch = Scratch::new();
    let mut server = share(&scratch);
    let client = HostileClient::connect(&server.address);
    client.write(&[0; 5]);
    for request in &requests(b"out/secret")[..9] {
        let (number, _) = client.call(request).unwrap();
        assert_eq!(number, FAILED, "request {}", request.0[2]);
    }
    // A link itself is an entry, but no file and no directory.
    for request in [2, 9, 10]
        .map(|number| requests(b"link").into_iter().find(|message| message.0[2] == number))
    {
        let (number, _) = client.call(&request.unwrap()).unwrap();
        assert_eq!(number, FAILED);
    }
    // A batch, with the path in its bytes.
    let record = MessageFields::default().counted(b"out/new").raw(&[0]);
    let record = record.file(4).raw(&4u32.to_be_bytes()).raw(b"evil").0;
    client.write(&record);
    let hash = blake3::hash(&record);
    let batch =
        MessageFields::new(7).raw(&1u16.to_be_bytes()).raw(&(record.len() as u32).to_be_bytes());
    let (number, fields) = client.call(&batch.raw(hash.as_bytes())).unwrap();
    assert_eq!((number, &fields[..4]), (12, &[0, 1, 0, 0][..]), "one file has failed");
    is_untouched(&scratch);
    assert!(server.is_up());
}

#[test]
fn invalid_messages_end_connection_only() {
    let scratch = Scratch::new();
    let mut server = share(&scratch);
    let wrong_hash =
        MessageFields::new(7).raw(&1u16.to_be_bytes()).raw(&9u32.to_be_bytes()).raw(&[1; 32]);
    for message in [
        MessageFields::default(),
        MessageFields::new(0),
        MessageFields::new(200).raw(&[0xFF; 500]),
        MessageFields::new(3).counted(b"f").file(u64::MAX),
        MessageFields::new(4)
            .counted(b"f")
            .file(5)
            .raw(&[0xFF; 8])
            .raw(&5u32.to_be_bytes())
            .raw(&[0; 32]),
        MessageFields::new(5).counted(b"f").file(5 << 20).raw(&[0; 8]).raw(&6u64.to_be_bytes()),
        MessageFields(vec![0, 9])
            .raw(&[4])
            .counted(b"f")
            .file(5)
            .raw(&[0; 8])
            .raw(&5u32.to_be_bytes())
            .raw(&[0; 32]),
        MessageFields::new(11).raw(&[0xFF, 0xFF]),
        MessageFields::new(1).counted(b"f").raw(&[0]),
        wrong_hash,
    ] {
        let client = HostileClient::connect(&server.address);
        assert_eq!(client.call(&message), None, "{:?}", message.0);
    }
    // Bytes that do not have their hash are refused, and the connection stays.
    let client = HostileClient::connect(&server.address);
    let wrong = MessageFields::new(4)
        .counted(b"f")
        .file(5)
        .raw(&[0; 8])
        .raw(&5u32.to_be_bytes())
        .raw(&[1; 32]);
    let (number, fields) = client.call(&wrong).unwrap();
    assert_eq!(number, FAILED);
    assert!(text(&fields).contains("do not have their hash"));
    is_untouched(&scratch);
    fs::write(scratch.join("good"), "good").unwrap();
    copied(scratch.path(), &["good", &format!("{}:s/", server.address)]);
    assert!(server.is_up());
}

/// Processor time of a process, in ticks of a hundredth of a second.
fn ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// The slot still has the block, so a Put is a message of some hundred bytes.
#[test]
fn repeated_block_costs_nothing() {
    let scratch = Scratch::new();
    let server = share(&scratch);
    let block = vec![7; 1 << 20];
    let open = MessageFields::new(3).counted(b"f").file(2 << 20);
    let put = MessageFields::new(4)
        .counted(b"f")
        .file(2 << 20)
        .raw(&[0; 8])
        .raw(&(1u32 << 20).to_be_bytes());
    let put = put.raw(blake3::hash(&block).as_bytes());
    let client = HostileClient::connect(&server.address);
    let (missing, _) = client.call(&open).unwrap();
    assert_eq!(missing, 6);
    client.write(&block);
    for _ in 0..300 {
        assert_eq!(client.call(&put), Some((1, Vec::new())));
    }
    let journal = fs::metadata(scratch.join("served/f.uiw-journal")).unwrap().len();
    assert_eq!(journal, 40 + 56, "one record");
    drop(client);
    let before = ticks(server.id());
    let client = HostileClient::connect(&server.address);
    let mut opened = client.call(&open);
    // The first session has the file until its end is noticed.
    while opened.as_ref().is_some_and(|(number, _)| *number == FAILED) {
        std::thread::sleep(Duration::from_millis(10));
        opened = client.call(&open);
    }
    let (missing, fields) = opened.unwrap();
    assert_eq!(
        (missing, fields[2..].to_vec()),
        (6, [1u64.to_be_bytes(), 2u64.to_be_bytes()].concat())
    );
    assert!(ticks(server.id()) - before < 20, "an Open costs more than 200 ms of processor time");
}

#[test]
fn mode_of_the_share_itself_stays() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = Scratch::new();
    let server = share(&scratch);
    let client = HostileClient::connect(&server.address);
    let mode = || fs::metadata(scratch.join("served")).unwrap().permissions().mode();
    let before = mode();
    let set = MessageFields::new(9).counted(b"").raw(&0o777u16.to_be_bytes()).raw(&[0; 12]);
    assert_eq!(client.call(&set), Some((1, Vec::new())));
    assert_eq!(mode(), before);
}

/// A server that answers the list of a directory with these pages, which have entries.
fn lists(listener: &Listener, pd: &Pd, mut pages: impl Iterator<Item = Vec<u8>>) {
    let incoming = listener.incoming_timeout(Duration::from_secs(60)).unwrap().unwrap();
    let order = text(incoming.private_data());
    let order: Value = serde_json::from_str(order.strip_prefix("uiw-cp/1 ").unwrap()).unwrap();
    let slot = RemoteMr {
        addr: order["at"][0].as_u64().unwrap(),
        rkey: STag(order["at"][1].as_u64().unwrap() as u32),
        len: 1 << 20,
    };
    let settings = ConnectionConfig::default().private_data(*b"{}");
    let connection = incoming.accept(pd, &settings).unwrap();
    while let Ok(Some(message)) = connection.recv_timeout(Duration::from_secs(30)) {
        let tag = &message[..2];
        let reply = if message[2] == 1 {
            // A directory.
            let meta = [&[1, 0x01, 0xED][..], &[0; 8], &[0; 12], &[0; 16], &[0], &[0, 0]].concat();
            [tag, &[3], &meta].concat()
        } else {
            let Some(entries) = pages.next() else { break };
            let more = u8::from(pages.size_hint().0 > 0);
            let start = u64::from(u16::from_be_bytes([tag[0], tag[1]])) << 20;
            let (to, len) = (slot_part(&slot, start, entries.len()), entries.len() as u32);
            connection.write(pd.register(entries).unwrap(), to).wait().unwrap();
            [tag, &[4], &len.to_be_bytes(), &[more]].concat()
        };
        if connection.send_copy(&reply).is_err() {
            break;
        }
    }
}

fn slot_part(slot: &RemoteMr, start: u64, len: usize) -> RemoteMr {
    RemoteMr { addr: slot.addr + start, len, ..*slot }
}

#[test]
fn server_cannot_name_outside_files() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    for name in [&b"../evil"[..], b"..", b"/tmp/evil", b"a/b", b"", b"evil.uiw-part"] {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&pd, any, &ConnectionConfig::default()).unwrap();
        let scratch = Scratch::new();
        scratch.directory("target");
        let entry = MessageFields::default().counted(name).file(4).0;
        let from = format!("{}:s/", listener.local_addr());
        let client = command(scratch.path()).args(["cp", &from, "target"]).spawn().unwrap();
        lists(&listener, &pd, std::iter::once(entry));
        let output = client.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{}: {error}", name.escape_ascii());
        assert!(error.contains("violates the protocol"), "{error}");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "the target");
        assert_eq!(fs::read_dir(scratch.join("target")).unwrap().count(), 0);
    }
}

/// Paths of 3,000 bytes make 50 times as many bytes of the entries as the list has.
#[test]
fn memory_of_lists_has_bound() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let listener =
        Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), &ConnectionConfig::default()).unwrap();
    let scratch = Scratch::new();
    scratch.directory("target");
    let from = format!("{}:s/{}", listener.local_addr(), format!("{:0200}/", 0).repeat(15));
    let client = command(scratch.path()).args(["cp", &from, "target"]).spawn().unwrap();
    let page = |page: u32| -> Vec<u8> {
        let entry = |number: u32| {
            MessageFields::default().counted(format!("{page:03}{number:05}").as_bytes()).file(4).0
        };
        (0..18_000).flat_map(entry).collect()
    };
    lists(&listener, &pd, (0..1000).map(page));
    let output = client.wait_with_output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("the lists of directories take more than 2 GiB of memory"), "{error}");
}

#[test]
fn endless_list_of_empty_pages_ends() {
    let device = Device::open().unwrap();
    let pd = device.alloc_pd().unwrap();
    let listener =
        Listener::bind(&pd, "127.0.0.1:0".parse().unwrap(), &ConnectionConfig::default()).unwrap();
    let scratch = Scratch::new();
    let from = format!("{}:s", listener.local_addr());
    for arguments in [&["ls", &from][..], &["cp", &from, "."]] {
        let client = command(scratch.path()).args(arguments).spawn().unwrap();
        lists(&listener, &pd, (0..1000).map(|_| Vec::new()));
        let output = client.wait_with_output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {error}");
    }
}
