//! The demo's second process: takes the file in every way and compares it with its own copy.

use std::io::{BufRead, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use verbs::{Access, Connection, Device, Grant, Incoming, Listener, Message, SharedMr};

use crate::fail::{Failure, Result};
use crate::open::Opener;

use super::way::{Op, WAYS, Way};
use super::{broken, raw};

/// Arguments of the hidden command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file.
    file: PathBuf,
    /// Damages one octet of what arrives in this line of the table: shows that the demo notices.
    #[arg(long)]
    corrupt: Option<usize>,
}

/// Serves until standard input ends.
///
/// # Errors
/// [`Failure`].
pub(crate) fn run(opener: &Opener, args: &Args) -> Result<()> {
    let device = &opener.device()?;
    let file = super::read_file(&args.file)?;
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let tcp = TcpListener::bind(any).map_err(|error| Failure::local("listening on TCP", error))?;
    let tcp_port = tcp.local_addr().map_or(0, |at| at.port());
    std::thread::spawn(move || raw::sink(&tcp));
    // The listener asks for nothing: each way's own options are given when it is accepted.
    let mut options = WAYS[0].settings().options;
    options.crc = false;
    let listener = Listener::bind(device, any, &options)?;
    println!("{} {tcp_port}", listener.local_addr().port());
    let _ = std::io::stdout().flush();
    // The parent keeps our standard input open for as long as it lives.
    std::thread::spawn(|| {
        let mut line = String::new();
        while matches!(std::io::stdin().lock().read_line(&mut line), Ok(1..)) {}
        std::process::exit(0);
    });
    loop {
        let incoming = device.block_on(listener.accept());
        let number = usize::from(incoming.private_data().first().copied().unwrap_or(u8::MAX));
        let Some(way) = WAYS.get(number) else { continue };
        let damage = args.corrupt == Some(number);
        if let Err(failure) = device.block_on(serve(device, incoming, way, &file, damage)) {
            eprintln!("uiw: demo peer: {}: {failure}", way.name);
        }
    }
}

async fn serve(device: &Device, incoming: Incoming, way: &Way, file: &[u8], damage: bool) -> Result<()> {
    let pd = device.alloc_pd()?;
    let memory = pd.share(file.len().next_multiple_of(8) + 16, rights(way.op))?;
    if way.op == Op::Read {
        memory.write(0, file)?;
    }
    let connection = incoming.accept(&pd, &way.settings()).await?;
    let all = 0..memory.len();
    let window = match way.op {
        Op::WriteWindow | Op::SendInvalidate => {
            Some(memory.grant(&connection, all.clone(), Access::REMOTE_WRITE).await?)
        }
        _ => None,
    };
    let remote = match &window {
        Some(grant) => grant.remote(),
        None => memory.remote(all)?,
    };
    connection.send_copy(&remote.to_bytes()).await?;
    let mut received = if way.op == Op::Read {
        wait_for_end(&connection).await?;
        file.to_vec()
    } else if matches!(way.op, Op::Write | Op::WriteWindow | Op::WriteImm | Op::Atomics) {
        wait_for_end(&connection).await?;
        memory.to_vec(0..file.len() as u64)?
    } else {
        gather(&connection, &memory, way.op, file.len(), window).await?
    };
    if damage && let Some(octet) = received.last_mut() {
        *octet ^= 1;
    }
    let same = received == file;
    connection.send_copy(if same { b"same" } else { b"differs" }).await?;
    connection.ended().await;
    Ok(())
}

fn rights(op: Op) -> Access {
    match op {
        Op::Read => Access::REMOTE_READ,
        Op::Write | Op::WriteImm => Access::REMOTE_WRITE,
        Op::Atomics => Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        Op::Send | Op::SendSolicited | Op::SendInvalidate | Op::SendImm | Op::WriteWindow => Access::empty(),
    }
}

/// Takes messages until the client says that all is sent, and tells it that it has arrived.
async fn wait_for_end(connection: &Connection) -> Result<()> {
    let mut writes = 0u32;
    loop {
        let message = connection.recv().await?;
        if message.write_len().is_some() {
            if message.imm() != Some(writes) {
                return Err(broken(format!("immediate {:?} in place of {writes}", message.imm())));
            }
            writes += 1;
        } else if *message == *b"end" {
            break;
        }
    }
    connection.send_copy(b"arrived").await?;
    Ok(())
}

/// Puts the messages of all passes together; the last pass stays. Every pass of Sends with Invalidate ends a window.
async fn gather(
    connection: &Connection,
    memory: &SharedMr,
    op: Op,
    len: usize,
    mut window: Option<Grant>,
) -> Result<Vec<u8>> {
    let mut file = vec![0; len];
    let (mut at, mut chunk) = (0, 0u32);
    loop {
        let message: Message = connection.recv().await?;
        if at == 0 && *message == *b"end" {
            connection.send_copy(b"arrived").await?;
            return Ok(file);
        }
        if op == Op::SendImm && message.imm() != Some(chunk) {
            return Err(broken(format!("immediate {:?} in place of {chunk}", message.imm())));
        }
        let room = len - at;
        if message.len() > room {
            return Err(broken(format!("{} octets where {room} are left", message.len())));
        }
        file[at..at + message.len()].copy_from_slice(&message);
        at += message.len();
        chunk = chunk.wrapping_add(1);
        if at < len {
            continue;
        }
        at = 0;
        if let Some(ended) = &window {
            if message.invalidated() != Some(ended.remote().rkey) {
                return Err(broken("the last Send of a pass did not invalidate the window"));
            }
            let next = memory.grant(connection, 0..memory.len(), Access::REMOTE_WRITE).await?;
            connection.send_copy(&next.remote().to_bytes()).await?;
            window = Some(next);
        }
    }
}
