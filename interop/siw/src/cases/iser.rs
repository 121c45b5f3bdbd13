//! Tests iSCSI over RDMA from the guest's kernel (`ib_iser` on siw) to Debian's tgtd on uiw's
//! libraries on the host: a file system on the disk, files, a target that is killed while files are
//! written and started again, and the final contents of the disk.

use super::files::Files;
use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict};
use crate::guest::{Folder, Job};
use crate::shell::{Process, must, need};
use crate::{Error, Result};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use uiw_interop::stock::free_port;

const TARGET: &str = "iqn.2026-11.example:disk";
const INITIATOR: &str = "iqn.2026-11.example:guest";
/// Size of the disk in bytes.
const DISK: u64 = 96 << 20;
const SHORT: Duration = Duration::from_secs(20);
/// Time limit of a login or a file system operation.
const STEP: Duration = Duration::from_secs(120);
/// Time limit for writing files while the target is killed.
const WRITING: Duration = Duration::from_secs(240);
/// Number of files, of two million bytes each, that are written while the target is killed.
const LATE: u32 = 12;

/// Shell commands that make the files of iscsid and start it. It retries while the target is not
/// available.
const DAEMON: &str = "mkdir -p /etc/iscsi /run/lock/iscsi /var/lib/iscsi; rm -rf /etc/iscsi/nodes /etc/iscsi/send_targets; \
     printf 'node.startup = manual\\nnode.session.timeo.replacement_timeout = 120\\nnode.conn[0].timeo.login_timeout = 15\\n' \
     > /etc/iscsi/iscsid.conf; exec iscsid -f";

/// Shell command that writes the late files, each synchronized to the disk.
const WRITE: &str = "mkdir /mnt/late && cd /tmp/late && for i in $(seq 12); do \
     dd if=$i of=/mnt/late/$i bs=64k conv=fsync 2>/dev/null || exit 1; echo wrote $i; done; echo wrote all";
/// Shell command that waits until the guest's kernel has noticed the end of the connection.
const NOTICED: &str = "for i in $(seq 400); do dmesg | grep -q 'detected conn error' && exit 0; usleep 50000; done; exit 1";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("kernel ib_iser to tgtd: ext4, files, target killed", to_tgtd)
            .axes(Axes::Crc)
            .directions(Direction::THEIRS),
    ]
}

/// tgtd with one disk. It can be started twice, before and after it is killed.
struct TgtdTarget {
    folder: Folder,
    port: u16,
    commands: Vec<Command>,
}

impl TgtdTarget {
    fn new(bench: &mut Bench, setting: &Setting) -> Result<Self> {
        let folder = Folder::create("iser")?;
        let disk = folder.path("disk");
        File::create(&disk)
            .and_then(|file| file.set_len(DISK))
            .map_err(Error::io(disk.display()))?;
        let port = free_port();
        // tgtd's own TCP portal uses another port.
        let (iser, tcp) = (format!("port={port}"), format!("portal=127.0.0.1:{}", free_port()));
        let mut commands = Vec::new();
        for _ in 0..2 {
            let mut command = bench.stock("tgtd", "tgt", setting)?;
            command
                .env("TGT_IPC_SOCKET", folder.path("tgtd"))
                .args(["-f", "--iser", &iser, "--iscsi", &tcp]);
            commands.push(command);
        }
        Ok(Self { folder, port, commands })
    }

    fn disk(&self) -> PathBuf {
        self.folder.path("disk")
    }

    fn administer(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("tgtadm");
        command
            .env("TGT_IPC_SOCKET", self.folder.path("tgtd"))
            .args(["--lld", "iser", "--mode"])
            .args(words);
        must(&mut command, SHORT)
    }

    fn start(&mut self, bench: &Bench) -> Result<Process> {
        let command = self
            .commands
            .pop()
            .ok_or_else(|| Error::Failed("tgtd was started twice".to_owned()))?;
        let process = bench.serve_stock_at(command, self.port)?;
        let begun = Instant::now();
        let new = ["target", "--op", "new", "--tid", "1", "-T", TARGET];
        while let Err(error) = self.administer(&new) {
            if begun.elapsed() > SHORT {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(50));
        }
        let disk = self.disk().display().to_string();
        self.administer(&["logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", &disk])?;
        self.administer(&["target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
        self.administer(&["target", "--op", "bind", "--tid", "1", "-Q", INITIATOR])?;
        Ok(process)
    }
}

/// The guest's initiator: the daemon and the commands to control it.
struct GuestInitiator<'a> {
    bench: &'a Bench,
    portal: String,
    _daemon: Job,
}

impl<'a> GuestInitiator<'a> {
    fn new(bench: &'a Bench, portal: String) -> Result<Self> {
        bench.guest().must(&format!(
            "load iser && mkdir -p /etc/iscsi /mnt && echo InitiatorName={INITIATOR} > /etc/iscsi/initiatorname.iscsi"
        ))?;
        let daemon = bench.guest().start(DAEMON, Duration::from_secs(1800))?;
        Ok(Self { bench, portal, _daemon: daemon })
    }

    fn administer(&self, words: &str) -> Result<String> {
        let script = format!("iscsiadm -m node -T {TARGET} -p {} {words} 2>&1", self.portal);
        let output = self.bench.guest().run(&script, STEP)?;
        if output.is_ok() {
            Ok(output.out)
        } else {
            Err(Error::Failed(format!("iscsiadm {words}: {}", output.out)))
        }
    }

    /// Logs in and returns the name of the disk.
    fn login(&self) -> Result<String> {
        // The daemon may not listen yet.
        let begun = Instant::now();
        while let Err(error) = self.administer("-o new -I iser") {
            if begun.elapsed() > SHORT {
                return Err(error);
            }
        }
        self.administer("--login")?;
        let sessions = self.bench.guest().must("iscsiadm -m session")?;
        if !sessions.starts_with("iser: ") {
            return Err(Error::Failed(format!("the session is not one of iSER: {sessions}")));
        }
        let find = "for i in $(seq 200); do for d in /sys/class/iscsi_session/session*/device/target*/*/block/*; do \
                    [ -e \"$d\" ] && { basename \"$d\"; exit 0; }; done; usleep 50000; done; exit 1";
        Ok(format!("/dev/{}", self.bench.guest().must(find)?.trim()))
    }
}

impl Drop for GuestInitiator<'_> {
    fn drop(&mut self) {
        // Sessions keep the driver in use, so they are ended whatever the result of the row is.
        let _ =
            self.bench.guest().run("umount /mnt; iscsiadm -m session -u", Duration::from_secs(30));
    }
}

fn to_tgtd(bench: &mut Bench, setting: &Setting, _: Direction) -> Result<Verdict> {
    need(&[("tgtadm", "tgt"), ("e2fsck", "e2fsprogs"), ("debugfs", "e2fsprogs")])?;
    bench.build_libraries();
    let mut target = TgtdTarget::new(bench, setting)?;
    let written = in_guest(bench, setting, &mut target)?;
    let files = on_disk(&target, &written)?;
    Ok(Verdict::Pass(format!("{files} files on the disk")))
}

/// Runs the steps in the guest. Returns the files that are on the disk afterwards, each with its
/// directory.
fn in_guest(
    bench: &Bench,
    setting: &Setting,
    target: &mut TgtdTarget,
) -> Result<[(&'static str, Files); 2]> {
    let mut process = target.start(bench)?;
    let guest = bench.guest();
    guest.must(&format!(
        "set -e; rm -rf /tmp/late; mkdir /tmp/late; cd /tmp/late; for i in $(seq {LATE}); do head -c 2000000 /dev/urandom > $i; done"
    ))?;
    let late = Files::sum(bench, "/tmp/late")?;
    let initiator =
        GuestInitiator::new(bench, format!("{}:{}", bench.host(setting.family)?, target.port))?;
    let device = initiator.login()?;
    let mount = format!("mount -t ext4 {device} /mnt");
    guest.must(&format!("mke2fs -q -t ext4 -F {device} && {mount}"))?;
    let early = Files::make(bench, "/mnt/early")?;
    guest.must(&format!("umount /mnt && {mount}"))?;
    early.same_in_guest(bench, "/mnt/early")?;

    let mut writing = guest.start(WRITE, WRITING)?;
    writing.wait_for("wrote 3", STEP)?;
    process.kill();
    guest.must(NOTICED)?;
    if !writing.is_running() {
        return Err(Error::Failed(
            "the files were written before the target was killed".to_owned(),
        ));
    }
    let process = target.start(bench)?;
    writing.wait_for("wrote all", WRITING)?;
    guest.must(&format!("umount /mnt && {mount}"))?;
    early.same_in_guest(bench, "/mnt/early")?;
    late.same_in_guest(bench, "/mnt/late")?;
    guest.must(&format!("umount /mnt && e2fsck -fn {device}"))?;
    initiator.administer("--logout")?;
    drop((initiator, process));
    Ok([("early", early), ("late", late)])
}

/// Checks the file system and the files on the disk from the host. Returns the number of files.
fn on_disk(target: &TgtdTarget, written: &[(&str, Files)]) -> Result<usize> {
    let disk = target.disk().display().to_string();
    must(Command::new("e2fsck").args(["-fn", &disk]), STEP)?;
    let mut count = 0;
    for (name, files) in written {
        let copy = target.folder.path("copy");
        fs::create_dir_all(&copy).map_err(Error::io(copy.display()))?;
        let dump = format!("rdump /{name} {}", copy.display());
        must(Command::new("debugfs").args(["-R", &dump, &disk]), STEP)?;
        count += files.same_on_host(&copy.join(name))?;
    }
    Ok(count)
}
