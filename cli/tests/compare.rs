//! `uiw perf --compare`: raw TCP comes to the port of iWARP, and is refused there without a
//! comparison.

mod common;

use common::{Server, text, uiw};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uiw_mpa::wire::startup::{Frame, FrameKind};

/// The ports on which the process listens, as the system has them.
fn ports(process: u32) -> Vec<u16> {
    let process = format!("/proc/{process}");
    let descriptors = std::fs::read_dir(format!("{process}/fd")).unwrap().flatten();
    let links = descriptors.flat_map(|entry| std::fs::read_link(entry.path()));
    let links: Vec<_> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let mut ports = Vec::new();
    for table in ["tcp", "tcp6"] {
        for line in std::fs::read_to_string(format!("{process}/net/{table}")).unwrap().lines() {
            let fields: Vec<_> = line.split_whitespace().collect();
            // 0A is LISTEN.
            if fields[3] == "0A" && links.contains(&format!("socket:[{}]", fields[9])) {
                let (_, port) = fields[1].rsplit_once(':').unwrap();
                ports.push(u16::from_str_radix(port, 16).unwrap());
            }
        }
    }
    ports
}

/// Copies until the end of the stream, which it passes on.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

/// A host that forwards one port: every other port of its address is closed.
fn forward(server: SocketAddr, each: impl Fn(&TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.3:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            each(&client);
            let server = TcpStream::connect(server).unwrap();
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let (back, forth) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || copy(client, forth));
            std::thread::spawn(move || copy(server, back));
        }
    });
    address
}

#[test]
fn comparison_uses_one_port() {
    let server = Server::with(&["--listen", "127.0.0.2:0"]);
    let at: SocketAddr = server.address.parse().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let listening = Arc::new(Mutex::new(Vec::new()));
    // The thread outlives the test.
    let (count, seen, process) = (Arc::clone(&connections), Arc::clone(&listening), server.id());
    let host = forward(at, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        seen.lock().unwrap().extend(ports(process));
    });
    for (extra, raw) in [
        // Four connections of raw TCP to choose the size of writes (two tries of two sizes), then
        // two a slice.
        (&["--op", "write"][..], 4 + 4),
        (&["--op", "read"], 4 + 4),
        (&["--bidirectional", "--op", "write"], 2 * (4 + 4)),
        (&["--latency", "--op", "send", "--size", "8"], 4),
        (&["--latency", "--wait", "--op", "send", "--size", "8"], 4),
    ] {
        let before = connections.load(Ordering::SeqCst);
        let host = host.to_string();
        let args =
            ["perf", &host, "--compare", "--json", "--slices", "2", "--slice-seconds", "0.05"];
        let output = uiw(&[&args, extra].concat());
        assert!(output.status.success(), "{extra:?}: {}", text(&output.stderr));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(result["noise"]["median"].as_f64().unwrap() > 0.0, "{result}");
        // The comparison, and uiw's own slices, of one connection or two.
        let own = if extra[0] == "--bidirectional" { 4 } else { 2 };
        assert_eq!(connections.load(Ordering::SeqCst) - before, 1 + own + raw, "{extra:?}");
    }
    let mut listening = listening.lock().unwrap().clone();
    listening.dedup();
    assert_eq!(listening, [at.port()], "the server has listened on nothing else");
}

#[test]
fn raw_tcp_uses_requested_segments() {
    let server = Server::with(&["--listen", "127.0.0.2:0"]);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sizes);
    let host = forward(server.address.parse().unwrap(), move |client| {
        seen.lock().unwrap().push(socket2::SockRef::from(client).tcp_mss().unwrap());
    });
    let host = host.to_string();
    let args =
        ["perf", &host, "--compare", "--mss", "500", "--slices", "1", "--slice-seconds", "0.05"];
    let output = uiw(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let sizes = sizes.lock().unwrap().clone();
    // The comparison, a slice of ours, and four connections of raw TCP: two for the size of writes.
    assert_eq!(sizes.len(), 6, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 500), "{sizes:?}");
}

/// A connection with this private data in its Request, and the server's Reply.
fn request(server: &str, private_data: &[u8]) -> (TcpStream, Frame) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let frame = Frame {
        kind: FrameKind::Request,
        markers: false,
        crc: false,
        reject: false,
        enhanced: None,
        reserved: 0,
        revision: 1,
        private_data: private_data.to_vec(),
    };
    stream.write_all(&frame.emit()).unwrap();
    let mut reply = Vec::new();
    let frame = loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap_or_else(|error| panic!("no Reply: {error}"));
        reply.extend(byte);
        if let Some((frame, _)) = Frame::parse(&reply).unwrap() {
            break frame;
        }
    };
    assert_eq!(frame.kind, FrameKind::Reply);
    (stream, frame)
}

/// A comparison, which stands as long as its connection, and its token.
fn compare(server: &str) -> (TcpStream, u64) {
    let (stream, reply) = request(server, b"uiw-raw/2 ");
    assert!(!reply.reject, "{}", text(&reply.private_data));
    let said: Value = serde_json::from_slice(&reply.private_data).unwrap();
    (stream, said["token"].as_u64().unwrap())
}

fn order(token: u64, kind: &str, buffer: u32, memory: u32) -> Vec<u8> {
    let order = format!(
        r#"uiw-slice/1 {{"token":{token},"kind":"{kind}","buffer":{buffer},"memory":{memory},"millis":50}}"#
    );
    order.into_bytes()
}

/// The Reply rejects, for this reason, and the connection ends.
fn refused(server: &str, order: &[u8], why: &str) {
    let (mut stream, reply) = request(server, order);
    let said = text(&reply.private_data);
    assert!(reply.reject && said.contains(why), "{}: {said}", text(order));
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
}

#[test]
fn raw_tcp_without_comparison_refused() {
    let server = Server::with(&["--listen", "127.0.0.1:0"]);
    let to = &server.address;
    refused(to, &order(7, "to-server", 64_000, 0), "no comparison");
    refused(to, b"uiw-slice/1 {}", "unknown uiw service: uiw-slice/1");
    refused(to, b"uiw-slice/2 {}", "unknown uiw service: uiw-slice/2");
    // A program that expects a port of its own.
    refused(to, b"uiw-raw/1 ", "unknown uiw service: uiw-raw/1");
    // As long as private data can be, of which the answer repeats a part.
    refused(to, &[&b"uiw-"[..], &[0xFF; 508]].concat(), "unknown uiw service: uiw-");
    let (comparison, token) = compare(to);
    refused(to, &order(token ^ 1, "to-server", 64_000, 0), "no comparison");
    refused(to, &order(token, "sideways", 64_000, 0), "unknown uiw service");
    refused(to, &order(token, "to-client", 0, 0), "asks for messages of 0 bytes");
    refused(to, &order(token, "to-client", 1 << 30, 0), "asks for messages of 1073741824 bytes");
    refused(to, &order(token, "to-client", 1, u32::MAX), "in 4294967295 of memory");
    let unknown = format!(
        r#"uiw-slice/1 {{"token":{token},"kind":"to-client","buffer":1,"memory":0,"millis":1,"congestion":"none"}}"#
    );
    refused(to, unknown.as_bytes(), "No such file");
    drop(comparison);
    // Each of many is refused, and others are served.
    std::thread::scope(|scope| {
        for number in 0..64 {
            scope.spawn(move || {
                (0..8)
                    .for_each(|_| refused(to, &order(number, "to-client", 1, 0), "no comparison"));
            });
        }
    });
    assert!(uiw(&["ping", to, "--count", "1"]).status.success());
    let log = server.log();
    assert!(log.contains("no comparison runs here"), "{log}");
}

#[test]
fn comparison_limited_to_two_connections() {
    let server = Server::with(&["--listen", "127.0.0.1:0"]);
    let to = &server.address;
    let (comparison, token) = compare(to);
    let admitted = |kind| {
        let (stream, reply) = request(to, &order(token, kind, 4, 0));
        assert!(!reply.reject && reply.private_data.is_empty(), "{}", text(&reply.private_data));
        stream
    };
    let mut slices = [admitted("ping-pong-block"), admitted("ping-pong-spin")];
    refused(to, &order(token, "to-server", 64_000, 0), "2 connections of raw TCP");
    for slice in &mut slices {
        for message in [b"ping", b"pong"] {
            slice.write_all(message).unwrap();
            let mut bytes = [0; 4];
            slice.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, message);
        }
    }
    // Another one is admitted when one is over: the answer of eight bytes comes when it does.
    let [mut done, mut open] = slices;
    done.shutdown(Shutdown::Write).unwrap();
    done.read_exact(&mut [0; 8]).unwrap();
    let mut next = admitted("to-client");
    let mut bytes = Vec::new();
    next.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() > 8 && (bytes.len() - 8).is_multiple_of(4), "{} bytes", bytes.len());
    drop(comparison);
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest);
    assert!(rest.len() <= 8, "{rest:?}");
    refused(to, &order(token, "to-server", 64_000, 0), "no comparison");
    // One that is under way when the server ends does not hold it up.
    let (_comparison, token) = compare(to);
    let (_open, reply) = request(to, &order(token, "to-server", 64_000, 0));
    assert!(!reply.reject);
    server.log();
}

#[test]
fn raw_tcp_connections_counted_by_address() {
    let server = Server::with(&["--listen", "127.0.0.1:0", "--per-address", "2"]);
    let to = &server.address;
    let (_comparison, token) = compare(to);
    let (slice, reply) = request(to, &order(token, "to-server", 64, 0));
    assert!(!reply.reject, "{}", text(&reply.private_data));
    refused(to, &order(token, "to-server", 64, 0), "busy: 2 connections of its address");
    drop(slice);
    // Its thread ends a moment later.
    let begin = Instant::now();
    while !uiw(&["ping", to, "--count", "1"]).status.success() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the connection is counted for ever");
    }
}

#[test]
fn idle_comparisons_ended() {
    let server = Server::with(&["--listen", "127.0.0.1:0", "--idle-timeout", "2s"]);
    let to = &server.address;
    for kind in ["ping-pong-spin", "ping-pong-block", "to-server"] {
        let (mut comparison, token) = compare(to);
        let (mut silent, reply) = request(to, &order(token, kind, 64, 0));
        assert!(!reply.reject, "{}", text(&reply.private_data));
        assert_eq!(silent.read(&mut [0; 16]).unwrap_or(0), 0, "{kind}");
        let _ = comparison.read_to_end(&mut Vec::new());
    }
    let log = server.log();
    assert_eq!(log.matches("idle connection closed").count(), 3, "{log}");
}

#[test]
fn earlier_server_version_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let old = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; 512];
        let count = stream.read(&mut bytes).unwrap();
        let (mut frame, _) = Frame::parse(&bytes[..count]).unwrap().unwrap();
        assert_eq!(frame.private_data, b"uiw-raw/2 ");
        (frame.kind, frame.reject) = (FrameKind::Reply, true);
        frame.private_data = b"unknown uiw service".to_vec();
        stream.write_all(&frame.emit()).unwrap();
        let _ = stream.read_to_end(&mut bytes);
    });
    let output = uiw(&["perf", &address, "--compare"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(
        error.contains("unknown uiw service") && error.contains("must be of this version"),
        "{error}"
    );
    old.join().unwrap();
}
