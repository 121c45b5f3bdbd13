//! Transfers a file by RDMA Writes: `file_transfer FROM TO`. Without arguments, a file is created.
//!
//! The receiver gives access to memory of a few blocks. The sender writes a block and notifies the
//! receiver in the same request. The receiver returns each block after its bytes were written to
//! the file.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use uiw::blocking::{Connection, Listener};
use uiw::{Access, ConnectionConfig, Device, IoBufMut, Mr, RemoteMr};

const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 8;

type AnyError = Box<dyn Error + Send + Sync>;

/// Receives one file. Returns its length.
fn receive(listener: &Listener, to: &Path) -> Result<u64, AnyError> {
    let connection = listener.accept()?;
    let memory = connection.pd().share(BLOCK * BLOCKS, Access::empty())?;
    // Only this peer has access to the memory.
    let window = connection.bind_window(&memory, 0..BLOCK * BLOCKS, Access::REMOTE_WRITE)?;
    connection.send_copy(&window.remote().to_bytes())?;
    let mut file = File::create(to)?;
    let mut received = 0;
    while let Some(written) = connection.recv()? {
        // The immediate data is the number of the block, and arrives after the bytes.
        let block = written.imm().ok_or("a message without an immediate")? as usize;
        let len = written.write_len().unwrap_or(0) as usize;
        file.write_all(&memory.to_vec(block * BLOCK..block * BLOCK + len)?)?;
        received += len as u64;
        connection.send_copy(&[block as u8])?;
    }
    file.sync_all()?;
    Ok(received)
}

/// Reads until the buffer is full or the file ends.
fn fill<B: IoBufMut>(buffer: &mut Mr<B>, file: &mut File) -> Result<usize, AnyError> {
    let mut filled = 0;
    loop {
        match file.read(&mut buffer.bytes_mut()[filled..])? {
            0 => return Ok(filled),
            read => filled += read,
        }
    }
}

/// Sends one file. Returns its length.
fn send(to: SocketAddr, from: &Path) -> Result<u64, AnyError> {
    let pd = Device::open()?.alloc_pd()?;
    let connection = Connection::connect(&pd, to, &ConnectionConfig::default())?;
    let memory = RemoteMr::from_bytes(&connection.recv()?.ok_or("closed")?)?;
    let mut file = File::open(from)?;
    let mut free: Vec<usize> = (0..BLOCKS).collect();
    let mut sent = 0;
    loop {
        let Some(block) = free.pop() else {
            let returned = connection.recv()?.ok_or("the receiver has closed")?;
            free.extend(returned.first().map(|block| usize::from(*block)));
            continue;
        };
        let mut buffer = pd.register(vec![0; BLOCK])?;
        let len = fill(&mut buffer, &mut file)?;
        if len == 0 {
            // All blocks in flight must be returned before the connection is closed. Then the
            // receiver has received them.
            for _ in free.len() + 1..BLOCKS {
                connection.recv()?.ok_or("the receiver has closed")?;
            }
            connection.disconnect()?;
            return Ok(sent);
        }
        let place = memory.slice(block * BLOCK..block * BLOCK + len)?;
        // The operation is detached, because the receiver returns the block.
        drop(connection.write_imm(buffer.range(0..len)?, place, block as u32));
        sent += len as u64;
    }
}

fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let made = std::env::temp_dir().join(format!("file_transfer-{}", std::process::id()));
    let (from, to) = match (arguments.next(), arguments.next()) {
        (Some(from), Some(to)) => (from, to),
        _ => {
            std::fs::write(&made, (0..5_000_000u32).map(|i| (i >> 7) as u8).collect::<Vec<_>>())?;
            (made.clone(), made.with_extension("copy"))
        }
    };
    let pd = Device::open()?.alloc_pd()?;
    let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
    let address = listener.local_addr();
    let copy = to.clone();
    let receiver = thread::spawn(move || receive(&listener, &copy));
    let sent = send(address, &from)?;
    let received = receiver.join().map_err(|_| "the receiver panicked")??;
    let same = std::fs::read(&from)? == std::fs::read(&to)?;
    println!("sent {sent} bytes, received {received}, the same: {same}");
    if from == made {
        std::fs::remove_file(&from)?;
        std::fs::remove_file(&to)?;
    }
    if same { Ok(()) } else { Err("the copy differs".into()) }
}
