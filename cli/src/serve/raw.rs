//! Server of raw TCP for `uiw perf --compare`, on the port of iWARP.

use super::comparisons::Admission;
use super::{Server, refuse};
use crate::perf::raw::{
    MAX_BUFFER, MAX_MEMORY, PieceRing, TIMEOUT, cpu_ns, read_message, read_spinning,
    set_stream_options, write_spinning, write_until,
};
use crate::shared::fail::{Failure, Result};
use crate::shared::qp_setup::{PendingQp, QueueDepths, WaitLimits, WaitMode};
use crate::shared::service::{ComparisonReply, RawTcpMode, RawTcpOrder};
use crate::shared::text;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use uiw::raw::cm::ConnRequest;
use uiw_mpa::wire::startup::{Frame, FrameKind};

/// Returns the bytes of memory that a raw TCP connection needs.
pub(super) fn required_memory(order: &RawTcpOrder) -> u64 {
    // Larger values are refused by `check`.
    let (buffer, memory) = (order.buffer.min(MAX_BUFFER), order.memory.min(MAX_MEMORY));
    u64::from(buffer) + PieceRing::reader_len(buffer, memory) as u64
}

/// Serves the connection that stands for a comparison, until the client closes. The raw TCP
/// connections of the comparison use the same port.
pub(super) fn compare(server: &Server, request: ConnRequest) -> Result<()> {
    let peer = text::canonical(request.peer_addr());
    if !request.has_socket() {
        return refuse(request, "raw TCP needs the kernel's TCP, without TLS");
    }
    let running = server
        .comparisons
        .begin(peer.ip())
        .map_err(|error| Failure::local("cannot get a random number", error))?;
    let reply = serde_json::to_vec(&ComparisonReply { token: running.token }).unwrap_or_default();
    let pending = PendingQp::new(&server.device, &server.pd, &QueueDepths::new(1, 1))?;
    crate::shared::qp_setup::post_recvs(&pending.qp, &[(0, None)])?;
    let options = server.peer_options.options();
    let link = pending.accept(request, &options, &reply, WaitLimits::stop(&server.stop))?;
    let limit = server.idle.as_ref().map(super::IdleMonitor::limit);
    loop {
        let now = Instant::now();
        let idle_since = running.idle_since().unwrap_or(now);
        let deadline = limit.and_then(|limit| idle_since.checked_add(limit));
        if deadline.is_some_and(|deadline| deadline <= now) {
            tracing::warn!(%peer, "idle connection closed");
            return Ok(());
        }
        // The client sends nothing, so a completion means that the connection has ended.
        let next =
            link.next(WaitMode::Sleep, WaitLimits { deadline, ..WaitLimits::stop(&server.stop) });
        if server.stop.is_set() || !matches!(next, Ok(None)) {
            return Ok(());
        }
    }
}

/// Serves one raw TCP connection.
pub(super) fn slice(server: &Server, mut request: ConnRequest, order: &RawTcpOrder) -> Result<()> {
    let peer = text::canonical(request.peer_addr());
    if let Err(why) = check(order) {
        return refuse(request, &why);
    }
    let admission = match server.comparisons.admit(order.token, peer.ip()) {
        Ok(admission) => admission,
        Err(why) => return refuse(request, &why.to_string()),
    };
    let socket = match request.take_socket() {
        Ok(socket) => socket,
        Err(error) => return refuse(request, &error.to_string()),
    };
    let timeout = server.idle.as_ref().map_or(TIMEOUT, |idle| idle.limit().min(TIMEOUT));
    serve(socket.into(), request.revision(), order, admission, timeout)
        .map_err(|error| failed(peer, error))
}

fn failed(peer: SocketAddr, error: io::Error) -> Failure {
    Failure::lost(format!("raw TCP with {peer}"), error)
}

fn check(order: &RawTcpOrder) -> std::result::Result<(), String> {
    if !(1..=MAX_BUFFER).contains(&order.buffer) || order.memory > MAX_MEMORY {
        return Err(format!(
            "asks for messages of {} bytes in {} of memory",
            order.buffer, order.memory
        ));
    }
    Ok(())
}

fn serve(
    mut stream: TcpStream,
    revision: u8,
    order: &RawTcpOrder,
    admission: Admission,
    timeout: Duration,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    admission.attach(&stream)?;
    if let Err(error) = set_stream_options(&stream, timeout, order.congestion.as_deref()) {
        stream.write_all(&reply(revision, Some(&error.to_string())))?;
        return Err(error);
    }
    stream.write_all(&reply(revision, None))?;
    let before = cpu_ns();
    exchange(&mut stream, order, timeout)?;
    // The client may connect again as soon as it has the answer, so the admission must end before.
    drop(admission);
    stream.write_all(&(cpu_ns() - before).to_be_bytes())
}

/// Returns the MPA Reply, which admits the connection or contains the reason for the refusal.
fn reply(revision: u8, refusal: Option<&str>) -> Vec<u8> {
    let frame = Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: false,
        reject: refusal.is_some(),
        enhanced: None,
        reserved: 0,
        revision,
        private_data: refusal.unwrap_or_default().as_bytes().to_vec(),
    };
    frame.emit()
}

fn exchange(stream: &mut TcpStream, order: &RawTcpOrder, timeout: Duration) -> io::Result<()> {
    match order.kind {
        RawTcpMode::ToServer => {
            let mut ring = PieceRing::for_reader(order.buffer, order.memory);
            while stream.read(ring.next())? > 0 {}
        }
        RawTcpMode::ToClient => {
            let mut ring = PieceRing::new(order.buffer as usize, order.memory);
            write_until(
                stream,
                &mut ring,
                Instant::now() + Duration::from_millis(order.millis.into()),
            )?;
        }
        RawTcpMode::PingPongSpin => {
            let mut buffer = vec![0x5A; order.buffer as usize];
            stream.set_nonblocking(true)?;
            while read_spinning(stream, &mut buffer, timeout)? {
                write_spinning(stream, &buffer, timeout)?;
            }
            stream.set_nonblocking(false)?;
        }
        RawTcpMode::PingPongBlock => {
            let mut buffer = vec![0x5A; order.buffer as usize];
            while read_message(stream, &mut buffer)? {
                stream.write_all(&buffer)?;
            }
        }
    }
    Ok(())
}
