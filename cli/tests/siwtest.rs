//! `uiw siwtest` with ourselves at the other end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// `uiw siwtest --listen`, ended when dropped.
struct PartnerProcess {
    child: Child,
    address: String,
    lines: Receiver<String>,
}

impl PartnerProcess {
    fn start(more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_uiw"))
            .args(["siwtest", "--listen", "127.0.0.1:0"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let line = lines.recv_timeout(Duration::from_secs(60)).unwrap();
        let address = line.strip_prefix("listening on ").unwrap().to_owned();
        Self { child, address, lines }
    }

    /// The next line with `what` in it.
    fn says(&self, what: &str) -> String {
        loop {
            let line = self
                .lines
                .recv_timeout(Duration::from_secs(60))
                .unwrap_or_else(|_| panic!("never said {what}"));
            if line.contains(what) {
                return line;
            }
        }
    }

    fn test(&self, more: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_uiw"))
            .args(["siwtest", &self.address])
            .args(more)
            .output()
            .unwrap()
    }
}

impl Drop for PartnerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns whether a line ends with "N of N requests and receives done".
fn is_complete(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(3).any(|words| words[1] == "of" && words[0] == words[2])
}

#[test]
fn partner_reports_itself() {
    let partner = PartnerProcess::start(&[]);
    let output = partner.test(&["me.about", "me.send:64"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(
        said.contains("the partner is uiw; driver uiw ") && said.contains("ok me.send"),
        "{said}"
    );
}

#[test]
fn every_operation_by_both_ends() {
    let partner = PartnerProcess::start(&[]);
    let output = partner.test(&[]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    for name in ["send", "sendse", "sendinv", "sendseinv", "sendinline", "write", "read", "fence"] {
        for end in ["me", "you"] {
            assert!(out.contains(&format!("ok {end}.{name}:")), "{end}.{name}: {out}");
        }
    }
    assert!(is_complete(out.lines().last().unwrap()), "{out}");
    assert!(is_complete(&partner.says("connection over")));
}

#[test]
fn errors_are_reported_at_both_ends() {
    let partner = PartnerProcess::start(&[]);
    for (order, code) in [
        ("badwrite", "(1/1/0x00)"),
        ("outwrite", "(1/1/0x01)"),
        ("badread", "(0/1/0x00)"),
        ("outread", "(0/1/0x01)"),
        ("rowrite", "(1/1/0x00)"),
        ("woread", "(0/1/0x02)"),
        ("longsend", "(1/2/0x05)"),
        ("norecv", "(1/2/0x02)"),
        ("badinv", "(0/1/0x09)"),
        ("usedinv", "(1/1/0x00)"),
    ] {
        let output = partner.test(&["send:64", &format!("me.{order}")]);
        let out = text(&output.stdout);
        let ended = out
            .lines()
            .find(|line| line.starts_with("ended"))
            .unwrap_or_else(|| panic!("{order}: {out}"));
        assert!(
            ended.contains("the peer terminated the stream") && ended.contains(code),
            "{order}: {ended}"
        );
        assert!(
            output.status.success() && is_complete(out.lines().last().unwrap()),
            "{order}: {out}"
        );
        assert!(is_complete(&partner.says("connection over")), "{order}");
    }
}

#[test]
fn private_data_and_rejection() {
    let partner = PartnerProcess::start(&[]);
    let output = partner.test(&["send:1", "--private-data", "508"]);
    assert!(text(&output.stdout).contains("508 bytes of private data"), "{}", text(&output.stderr));
    let output = partner.test(&["send:1", "--private-text", "reject-me"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains("saying \"rejected as asked: reject-me\""),
        "{}",
        text(&output.stderr)
    );
    let output = partner.test(&["send:1", "--private-data", "509"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn connections_beyond_limit_rejected() {
    let partner = PartnerProcess::start(&[]);
    let connections: Vec<_> = (0..129)
        .map(|_| {
            let mut connection = TcpStream::connect(&partner.address).unwrap();
            connection.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
            let mut reply = [0; 20];
            connection.read_exact(&mut reply).unwrap();
            (connection, reply[16] & 0x20 != 0)
        })
        .collect();
    let rejected: Vec<_> = connections.iter().map(|(_, is_rejected)| *is_rejected).collect();
    assert_eq!(rejected, [[false; 128].as_slice(), &[true]].concat());
    partner.says("rejected: 128 connections are served already");
}

#[test]
fn descriptors_of_connections_closed() {
    let partner = PartnerProcess::start(&[]);
    let folder = format!("/proc/{}/fd", partner.child.id());
    let descriptors = || {
        assert!(partner.test(&["me.send:64"]).status.success());
        partner.says("connection over");
        // The thread of the connection ends after this line.
        std::thread::sleep(Duration::from_millis(200));
        std::fs::read_dir(&folder).unwrap().count()
    };
    let one = descriptors();
    let more = [descriptors(), descriptors(), descriptors()];
    assert!(more[2] < one + 3, "{one}, then {more:?}");
}

#[test]
fn missing_peer_features_refused() {
    // Without capability exchange a uiw peer is treated as any other.
    let partner = PartnerProcess::start(&["--capabilities", "off"]);
    for what in ["sendimm", "writeimm", "fetchadd", "cmpswap"] {
        let output = partner.test(&["--refused", what]);
        let out = text(&output.stdout);
        assert!(
            output.status.success() && out.contains("local queue pair operation error"),
            "{what}: {out}"
        );
    }
}

#[test]
fn orders_that_are_none() {
    let wrong = Command::new(env!("CARGO_BIN_EXE_uiw"))
        .args(["siwtest", "127.0.0.1:9", "walk"])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("no operation `walk`"), "{}", text(&wrong.stderr));
}
