//! Tests `ibv_reg_dmabuf_mr` of uiw's libibverbs with `guest/dmabuf.c` in the guest, whose kernel
//! can create DMA-bufs (vgem); the host's kernel may not support them.

use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::guest::Folder;
use crate::shell::must;
use crate::test_vm::SPARE;
use crate::{Error, Result};
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Path of the library in the guest.
const THERE: &str = "/tmp/uiw/libibverbs.so.1";

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("DMA-bufs in the guest", run).directions(Direction::OURS).short()]
}

fn run(bench: &mut Bench, setting: &Setting, _: Direction) -> Result<Verdict> {
    let library = bench.library("libibverbs.so.1");
    let folder = Folder::create("dmabuf")?;
    let stripped = folder.path("libibverbs.so.1");
    must(Command::new("strip").arg("-o").arg(&stripped).arg(library), TIMEOUT)?;
    send(bench, setting, &stripped.display().to_string())?;
    let script =
        "load vgem && LD_LIBRARY_PATH=/tmp/uiw:/lib UIW_PERSONA=roce UIW_LOG=warn dmabuf 2>&1";
    let output = bench.guest().run(script, TIMEOUT)?;
    bench.guest().must("rm -r /tmp/uiw")?;
    let last = output.last_line();
    Ok(Verdict::of(output.is_ok() && last.starts_with("dmabuf: "), last))
}

/// Copies a file of the host to the guest.
fn send(bench: &Bench, setting: &Setting, file: &str) -> Result<()> {
    bench.guest().must("mkdir -p /tmp/uiw")?;
    let server = bench.serve_guest(&format!("nc -l -p {SPARE} > {THERE}"), SPARE, TIMEOUT)?;
    let to = bench.net().guest(setting.family, SPARE)?;
    let script = format!("exec cat {file} > /dev/tcp/{}/{}", to.ip(), to.port());
    must(bench.net().command("bash").args(["-c", &script]), TIMEOUT)?;
    let received = server.finish();
    if received.is_ok() {
        return Ok(());
    }
    Err(Error::Failed(format!("receiving {file} in the guest: {}", received.last_line())))
}
