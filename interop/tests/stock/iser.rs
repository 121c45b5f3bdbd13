//! Tests iSCSI over RDMA with QEMU's initiator (libiscsi) and the target tgtd.

use crate::proof::{Proof, options};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{Libraries, Network, Running, User, WaitLimit, free_port, noise};

/// Path of QEMU's block driver for iSCSI.
const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so";
const TARGET: &str = "iqn.2026-11.example:disk";
const INITIATOR: &str = "iqn.2026-11.example:initiator";
/// Length of one request in bytes; libiscsi refuses longer requests over RDMA.
const REQUEST: usize = 256 << 10;
const REQUESTS: usize = 32;

/// Runs `tgtadm` on the target and returns its exit code.
fn administer(socket: &Path, words: &[&str]) -> i32 {
    let mut command = Command::new("tgtadm");
    command.env("TGT_IPC_SOCKET", socket).args(["--lld", "iser", "--mode"]).args(words);
    Running::start(command).end().code
}

#[test]
fn image_written_and_read_back() {
    let programs = ["tgtd", "tgtadm", "qemu-img", "qemu-io", DRIVER];
    if programs.into_iter().any(|program| uiw_interop::require(program).is_none()) {
        return;
    }
    let Some(network) = Network::veth() else { return };
    let libraries = Libraries::get();
    let file = |name: &str| libraries.folder().join(name);
    let (disk, back, socket) = (file("disk"), file("back"), file("tgtd"));
    let length = REQUEST * REQUESTS;
    fs::write(&disk, vec![0; length]).unwrap();
    let image = noise(length);

    let (address, port, tcp) = (network.server_address(), free_port().to_string(), free_port());
    // With the same number, tgtd's own TCP portal would take the port.
    let portals = [format!("port={port}"), format!("portal={address}:{tcp}")];
    let mut command = libraries.command(User::Same, "tgtd");
    command
        .args(["-f", "--iser", &portals[0], "--iscsi", &portals[1]])
        .env("TGT_IPC_SOCKET", &socket);
    let target = Running::start(network.server(command));
    let mut limit = WaitLimit::new(Duration::from_secs(60));
    let new = ["target", "--op", "new", "--tid", "1", "-T", TARGET];
    while administer(&socket, &new) != 0 {
        assert!(!limit.is_over(), "{}", target.said());
        std::thread::sleep(Duration::from_millis(100));
    }
    let disk_name = disk.to_str().unwrap();
    let lun = ["logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", disk_name];
    assert_eq!(administer(&socket, &lun), 0, "{}", target.said());
    for who in [["-I", "ALL"], ["-Q", INITIATOR]] {
        let bind = [&["target", "--op", "bind", "--tid", "1"], &who[..]].concat();
        assert_eq!(administer(&socket, &bind), 0, "{}", target.said());
    }

    let url = format!(
        "driver=iscsi,transport=iser,portal={address}:{port},target={TARGET},lun=1,initiator-name={INITIATOR}"
    );
    let mut writes = vec!["qemu-io".to_owned()];
    for (at, bytes) in image.chunks(REQUEST).enumerate() {
        let piece = file(&format!("piece-{at}"));
        fs::write(&piece, bytes).unwrap();
        writes.extend([
            "-c".to_owned(),
            format!("write -s {} {} {REQUEST}", piece.display(), at * REQUEST),
        ]);
    }
    writes.extend(["--image-opts".to_owned(), url.clone()]);
    let size = format!("bs={REQUEST}");
    let (from, to) = (format!("if={url}"), format!("of={}", back.display()));
    let reads = ["qemu-img", "dd", "--image-opts", "-O", "raw", &size, &from, &to];
    let writes: Vec<_> = writes.iter().map(String::as_str).collect();
    for words in [&writes[..], &reads] {
        let Some(proof) = Proof::begin(&libraries, &network) else { return };
        let ended = Running::start(proof.client(&options("iwarp"), words)).end();
        proof.holds(&ended, length as u64, None, 0);
    }
    assert!(fs::read(&disk).unwrap() == image, "the target's disk differs");
    assert!(fs::read(&back).unwrap() == image, "what was read differs");
    drop(target.stop());
}
