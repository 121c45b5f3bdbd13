//! Runs rdma-core's rcopy on rsockets, with uiw's libraries on the host and the kernel's siw in the
//! guest: the copy must have the same checksum as the file.

use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict, quirk};
use crate::guest::Folder;
use crate::shell::{must, run};
use crate::test_vm::SPARE;
use crate::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Size of a file in bytes, and the time limit for its copy.
#[derive(Clone, Copy)]
struct CopySize {
    bytes: u32,
    timeout: Duration,
}

const SMALL: CopySize = CopySize { bytes: 3_000_003, timeout: Duration::from_secs(60) };
/// This file takes minutes, because the guest copies only a few megabytes per second.
const LARGE: CopySize = CopySize { bytes: 1 << 30, timeout: Duration::from_secs(900) };

/// Beginning of the verdict if the copy differs.
const SUMS_DIFFER: &str = "the MD5 sums differ";

/// Path of the file in the guest.
const THERE: &str = "/tmp/rcopy";

pub(super) fn cases() -> Vec<Case> {
    let small =
        |bench: &mut Bench, setting: &Setting, direction| copy(SMALL, bench, setting, direction);
    let large =
        |bench: &mut Bench, setting: &Setting, direction| copy(LARGE, bench, setting, direction);
    vec![
        Case::new("stock rcopy of 3 MB", small).axes(Axes::Crc).short(),
        Case::new("stock rcopy of 1 GiB", large),
    ]
}

fn fill(file: &Path, size: CopySize) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(file)?);
    for word in 0..size.bytes.div_ceil(4) {
        let bytes = word.wrapping_mul(2_654_435_761).rotate_left(13).to_le_bytes();
        let left = (size.bytes - 4 * word).min(4) as usize;
        file.write_all(&bytes[..left])?;
    }
    file.flush()
}

fn first_word(line: &str) -> String {
    line.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Copies a file. If a copy from siw differs from the file, copies it once more, because siw may
/// have skipped an FPDU (QUIRKS.md). If the second copy is correct, the verdict is
/// [`Verdict::Known`].
fn copy(
    size: CopySize,
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
) -> Result<Verdict> {
    let verdict = copy_once(size, bench, setting, direction)?;
    match verdict {
        Verdict::Fail(why) if direction == Direction::Theirs && why.starts_with(SUMS_DIFFER) => {
            bench.retry();
            Ok(match copy_once(size, bench, setting, direction)? {
                Verdict::Pass(_) => Verdict::known(quirk::SKIPPED_FPDU, why),
                again => again,
            })
        }
        verdict => Ok(verdict),
    }
}

fn copy_once(
    size: CopySize,
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
) -> Result<Verdict> {
    bench.build_libraries();
    let folder = Folder::create("rcopy")?;
    let here = folder.path("file");
    bench.guest().must(&format!("rm -f {THERE}"))?;
    // The guest kills its program after this time in any case.
    let longest = size.timeout + Duration::from_secs(30);
    let client = match direction {
        Direction::Ours => {
            fill(&here, size).map_err(Error::io(here.display()))?;
            let _server = bench.serve_guest(&format!("rcopy -p {SPARE}"), SPARE, longest)?;
            let mut client = bench.stock("rcopy", "rdmacm-utils", setting)?;
            let at = bench.net().guest(setting.family, SPARE)?;
            client
                .arg(&here)
                .arg(format!("{}:{THERE}", at.ip()))
                .args(["-p", &at.port().to_string()]);
            run(&mut client, size.timeout)?
        }
        Direction::Theirs => {
            let fill = format!("head -c {} /dev/urandom > {THERE}", size.bytes);
            bench.guest().must_within(&fill, size.timeout)?;
            let server = bench.stock("rcopy", "rdmacm-utils", setting)?;
            let (_server, port) =
                bench.serve_stock(server, |port| vec!["-p".to_owned(), port.to_string()])?;
            let host = bench.host(setting.family)?;
            let script = format!("rcopy {THERE} {host}:{} -p {port}", here.display());
            bench.guest().run(&script, longest)?
        }
    };
    if !client.is_ok() {
        return Ok(Verdict::Fail(format!(
            "the client: exit code {}: {}",
            client.status,
            client.last_line()
        )));
    }
    let there = bench.guest().must_within(&format!("md5sum {THERE}"), size.timeout)?;
    let here = must(Command::new("md5sum").arg(&here), size.timeout)?;
    let (here, there) = (first_word(&here), first_word(&there));
    bench.guest().must(&format!("rm -f {THERE}"))?;
    Ok(match here == there {
        true => Verdict::Pass(String::new()),
        false => Verdict::Fail(format!("{SUMS_DIFFER}: {here} on the host, {there} in the guest")),
    })
}
