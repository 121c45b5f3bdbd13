//! Forwards 9P messages between clients that use RDMA, such as Linux's `mount -t 9p -o trans=rdma`,
//! and a file server that serves its client on two descriptors, such as diod. Each connection has
//! its own server process. On RDMA, a 9P message is one Send. On the descriptors, each message
//! begins with its length. For example
//!
//!     ninep_bridge 192.0.2.1:5640 diod --foreground --no-auth --rfdno 0 --wfdno 1 --export /srv
//!
//! exports the files of /srv to all hosts that can connect to the port. Without arguments, a client
//! sends a message to `cat`, which returns it.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device};

/// Maximum length of a message in bytes. Linux's client negotiates at most 1 MiB over RDMA.
const LONGEST: u32 = 1 << 20;
/// Minimum length of a message in bytes: length, type and tag.
const SHORTEST: u32 = 7;

type AnyError = Box<dyn Error + Send + Sync>;

/// Decodes and checks the length at the beginning of a message.
fn length(start: [u8; 4]) -> Result<u32, AnyError> {
    let length = u32::from_le_bytes(start);
    if (SHORTEST..=LONGEST).contains(&length) {
        return Ok(length);
    }
    Err(format!("a 9P message of {length} bytes; {SHORTEST} to {LONGEST} are possible").into())
}

/// Forwards requests from the client to the server, until either closes.
fn requests(connection: &Connection, mut server: ChildStdin) -> Result<(), AnyError> {
    while let Some(message) = connection.recv()? {
        let start =
            message.first_chunk::<4>().ok_or("a message that is shorter than its length")?;
        if length(*start)? as usize != message.len() {
            return Err(
                format!("a Send of {} bytes with another length in it", message.len()).into()
            );
        }
        match server.write_all(&message) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(())
}

/// Forwards answers from the server to the client, until the server closes.
fn answers(connection: &Connection, mut server: ChildStdout) -> Result<(), AnyError> {
    let mut start = [0; 4];
    loop {
        match server.read_exact(&mut start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let mut message = vec![0; length(start)? as usize];
        message[..4].copy_from_slice(&start);
        server.read_exact(&mut message[4..])?;
        connection.send_copy(&message)?;
    }
}

/// Serves a connection with its own server process. The connection and the process end together.
fn serve(connection: &Connection, mut server: Child) -> Result<(), AnyError> {
    let (input, output) =
        (server.stdin.take().ok_or("no input")?, server.stdout.take().ok_or("no output")?);
    let answering = {
        let connection = connection.clone();
        thread::spawn(move || {
            let ended = answers(&connection, output);
            // Closing the connection ends the thread of the requests. It may have ended already.
            let _ = connection.disconnect();
            ended
        })
    };
    let asked = requests(connection, input);
    // At the end of its input, the server sends its last answers and exits, which ends the answers.
    let answered = answering.join().map_err(|_| "the thread of the answers panicked")?;
    server.wait()?;
    asked.and(answered)
}

fn start(program: &[OsString]) -> Result<Child, AnyError> {
    let (name, arguments) = program.split_first().ok_or("which program serves the files?")?;
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| format!("cannot run {}: {error}", name.display()).into())
}

/// Accepts connections forever, and starts a process of `program` for each. One that cannot be
/// started ends its connection only.
fn listen(listener: &Listener, program: &[OsString]) -> Result<(), AnyError> {
    loop {
        let connection = listener.accept()?;
        let server = start(program);
        thread::spawn(move || {
            if let Err(error) = server.and_then(|server| serve(&connection, server)) {
                eprintln!("ninep_bridge: {error}");
            }
        });
    }
}

fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args_os().skip(1);
    let address = arguments.next();
    let pd = Device::open()?.alloc_pd()?;
    let settings = ConnectionConfig::default().max_message(LONGEST);
    if let Some(address) = address {
        let address = address.to_str().ok_or("an address is IP:PORT")?.parse()?;
        let listener = Listener::bind(&pd, address, &settings)?;
        println!("listening on {}", listener.local_addr());
        return listen(&listener, &arguments.collect::<Vec<_>>());
    }
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
    let address = listener.local_addr();
    thread::spawn(move || listen(&listener, &["cat".into()]));
    let client = Connection::connect(&pd, address, &settings)?;
    // Tversion: length 19, type 100, no tag, msize 65536, 9P2000
    let message = b"\x13\0\0\0\x64\xff\xff\0\0\x01\0\x06\x009P2000";
    client.send_copy(message)?;
    let back = client.recv()?.ok_or("closed")?;
    println!("{} bytes went through cat, the same: {}", back.len(), *back == *message);
    client.disconnect()?;
    Ok(())
}
