//! Tests 9P over RDMA from the guest's kernel (`9pnet_rdma` on siw) to Debian's diod on the host,
//! through the example `ninep_bridge`: files, a bridge that is killed, a new mount, and the final
//! contents of the directory.

use super::files::Files;
use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::guest::Folder;
use crate::shell::{Process, need};
use crate::{Error, Result, matrix};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uiw_interop::stock::free_port;

/// Maximum time for which files are written before the bridge is killed.
const WRITING: Duration = Duration::from_secs(120);
const SUM: Duration = Duration::from_secs(60);
/// Shell command that writes files until a write fails.
const WRITE: &str = "mkdir /mnt/cut && i=0; while dd if=/tmp/block of=/mnt/cut/$i bs=64k conv=fsync 2>/dev/null; do \
     i=$((i + 1)); echo wrote $i; done";
/// Shell command that waits until the guest's kernel refuses requests on the lost connection.
const GONE: &str = "for i in $(seq 100); do timeout -s KILL 2 ls /mnt 2>&1 | grep -q 'Input/output error' && exit 0; \
     usleep 50000; done; exit 1";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("kernel 9p over RDMA to diod: files, bridge killed", to_diod)
            .directions(Direction::THEIRS),
    ]
}

/// The bridge, and diod to which it connects.
struct BridgeServer {
    bridge: PathBuf,
    folder: Folder,
    port: u16,
}

impl BridgeServer {
    fn exported(&self) -> PathBuf {
        self.folder.path("exported")
    }

    fn start(&self, bench: &Bench, setting: &Setting) -> Result<Process> {
        let own = bench.net().listen(setting.family)?;
        let mut command = bench.net().command(&self.bridge.display().to_string());
        command.arg(std::net::SocketAddr::new(own, self.port).to_string());
        command.args("diod --foreground --no-auth --rfdno 0 --wfdno 1 --export".split(' '));
        command.arg(self.exported());
        bench.serve_stock_at(command, self.port)
    }

    fn mount(&self, bench: &Bench, setting: &Setting) -> Result<()> {
        let host = bench.host(setting.family)?;
        let options = format!(
            "trans=rdma,port={},version=9p2000.L,aname={},access=any,uname=root,msize=262144",
            self.port,
            self.exported().display()
        );
        let script = format!("mkdir -p /mnt && mount -t 9p -o {options} {host} /mnt");
        bench.guest().must(&script).map(drop)
    }
}

fn to_diod(bench: &mut Bench, setting: &Setting, _: Direction) -> Result<Verdict> {
    need(&[("diod", "diod")])?;
    let folder = Folder::create("ninep")?;
    let server = BridgeServer { bridge: matrix::build_bridge()?, folder, port: free_port() };
    std::fs::create_dir(server.exported()).map_err(Error::io("the exported folder"))?;
    bench.guest().must("load ninep && head -c 1000000 /dev/urandom > /tmp/block")?;
    let outcome = in_guest(bench, setting, &server);
    // A mount keeps the driver in use, so it is removed whatever the result of the row is.
    let _ = bench.guest().run("umount -l /mnt", Duration::from_secs(10));
    let (first, second, cut) = outcome?;
    let exported = server.exported();
    let count = first.same_on_host(&exported.join("first"))?
        + second.same_on_host(&exported.join("second"))?;
    same_blocks(bench, &exported.join("cut"), cut)?;
    Ok(Verdict::Pass(format!("{count} files, and {cut} until the kill")))
}

/// Runs the steps in the guest. Returns the files from before and after the kill, and the number of
/// files that were written before it.
fn in_guest(
    bench: &Bench,
    setting: &Setting,
    server: &BridgeServer,
) -> Result<(Files, Files, usize)> {
    let mut process = server.start(bench, setting)?;
    let guest = bench.guest();
    server.mount(bench, setting)?;
    let first = Files::make(bench, "/mnt/first")?;
    guest.must("umount /mnt")?;
    server.mount(bench, setting)?;
    first.same_in_guest(bench, "/mnt/first")?;

    let mut writing = guest.start(WRITE, WRITING)?;
    writing.wait_for("wrote 5", WRITING)?;
    process.kill();
    guest.must(GONE)?;
    // An outstanding request blocks until its process is killed, because the client has neither a
    // timeout nor a reconnection.
    let cut = writing.kill().out.lines().filter(|line| line.starts_with("wrote ")).count();
    guest.must("umount -l /mnt")?;
    let process = server.start(bench, setting)?;
    server.mount(bench, setting)?;
    first.same_in_guest(bench, "/mnt/first")?;
    let second = Files::make(bench, "/mnt/second")?;
    guest.must("umount /mnt")?;
    server.mount(bench, setting)?;
    second.same_in_guest(bench, "/mnt/second")?;
    guest.must("umount /mnt")?;
    drop(process);
    Ok((first, second, cut))
}

/// Checks that every file reported as written before the kill is complete.
fn same_blocks(bench: &Bench, folder: &Path, count: usize) -> Result<()> {
    let sum = bench.guest().must("sha256sum < /tmp/block")?;
    for number in 0..count {
        let file = folder.join(number.to_string());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "sha256sum < \"$1\"", "sh"]).arg(&file);
        if crate::shell::must(&mut command, SUM)? != sum {
            return Err(Error::Failed(format!(
                "{} was written before the kill, and differs",
                file.display()
            )));
        }
    }
    Ok(())
}
