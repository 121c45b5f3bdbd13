//! Key-value store: clients put with a Send, and get with one RDMA Read, without involving the
//! server's program.
//!
//! An entry has a version at its beginning and at its end. The server changes the one at the end
//! first and the one at the beginning last, while a Read goes from the beginning to the end. If it
//! finds two different versions, the client reads again.

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnectionConfig, Device, RemoteMr, SharedMr};

/// Number of entries. Keys with the same hash share one entry.
const ENTRIES: usize = 1024;
/// Lengths in bytes of a key and of a value, which are padded with zeros.
const KEY: usize = 24;
const VALUE: usize = 24;
/// Length in bytes of an entry: version, key, value, version.
const ENTRY: usize = 8 + KEY + VALUE + 8;

type AnyError = Box<dyn Error + Send + Sync>;

fn place(key: &[u8; KEY]) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish() % ENTRIES as u64) as usize * ENTRY
}

fn filled<const LEN: usize>(text: &str) -> Result<[u8; LEN], AnyError> {
    let mut bytes = [0; LEN];
    bytes.get_mut(..text.len()).ok_or("too long")?.copy_from_slice(text.as_bytes());
    Ok(bytes)
}

/// Serves a connection.
fn serve(connection: &Connection, table: &SharedMr) -> uiw::Result<()> {
    connection.send_copy(&table.remote(0..table.len())?.to_bytes())?;
    while let Some(put) = connection.recv()? {
        let Some((key, _)) =
            put.split_first_chunk::<KEY>().filter(|(_, value)| value.len() == VALUE)
        else {
            connection.send_copy(b"not a key and a value")?;
            continue;
        };
        let at = place(key);
        table.update_u64(at + ENTRY - 8, |version| version + 1)?;
        table.write(at + 8, &put)?;
        table.update_u64(at, |version| version + 1)?;
        connection.send_copy(b"stored")?;
    }
    Ok(())
}

struct Client {
    connection: Connection,
    table: RemoteMr,
}

impl Client {
    fn connect(to: std::net::SocketAddr) -> Result<Self, AnyError> {
        let pd = Device::open()?.alloc_pd()?;
        let connection = Connection::connect(&pd, to, &ConnectionConfig::default())?;
        let table = connection.recv()?.ok_or("closed")?;
        let table = RemoteMr::from_bytes(&table)?;
        Ok(Self { connection, table })
    }

    fn put(&self, key: &str, value: &str) -> Result<(), AnyError> {
        let put = [&filled::<KEY>(key)?[..], &filled::<VALUE>(value)?[..]].concat();
        self.connection.send_copy(&put)?;
        let answer = self.connection.recv()?.ok_or("closed")?;
        if *answer == *b"stored" { Ok(()) } else { Err(String::from_utf8_lossy(&answer).into()) }
    }

    fn get(&self, key: &str) -> Result<Option<String>, AnyError> {
        let key = filled(key)?;
        let at = place(&key);
        let mut entry = self.connection.pd().register(vec![0; ENTRY])?;
        loop {
            entry = self.connection.read(entry, self.table.slice(at..at + ENTRY)?).wait()?;
            let (version, rest) = entry.bytes().split_first_chunk::<8>().ok_or("short")?;
            let (entry, behind) = rest.split_last_chunk::<8>().ok_or("short")?;
            if version != behind {
                continue;
            }
            let value = entry.strip_prefix(&key).map(String::from_utf8_lossy);
            return Ok(value.map(|value| value.trim_end_matches('\0').to_owned()));
        }
    }
}

fn main() -> Result<(), AnyError> {
    let pd = Device::open()?.alloc_pd()?;
    let table = pd.share(ENTRIES * ENTRY, Access::REMOTE_READ)?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();
    let server = thread::spawn(move || -> uiw::Result<()> {
        for _ in 0..2 {
            serve(&listener.accept()?, &table)?;
        }
        Ok(())
    });

    let writer = Client::connect(address)?;
    writer.put("planet", "Neptune")?;
    writer.put("moons", "16")?;
    writer.connection.disconnect()?;
    let reader = Client::connect(address)?;
    println!(
        "planet: {:?}, moons: {:?}, rings: {:?}",
        reader.get("planet")?,
        reader.get("moons")?,
        reader.get("rings")?
    );
    reader.connection.disconnect()?;
    server.join().map_err(|_| "the server panicked")??;
    Ok(())
}
