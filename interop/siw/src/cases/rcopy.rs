//! rdma-core's rcopy on rsockets, on uiw's libraries on the host and on the kernel's siw in the guest: a file of one has the same sum at the other.

use crate::bench::Bench;
use crate::case::{Axes, Case, Direction, Setting, Verdict};
use crate::shell::{must, run};
use crate::test_vm::SPARE;
use crate::{Error, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How long a copy may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// By then the guest ends its program in any case.
const LONGEST: Duration = Duration::from_secs(90);
const BYTES: usize = 3_000_003;
/// The file in the guest.
const THERE: &str = "/tmp/rcopy";

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("stock rcopy of 3 MB", copy).axes(Axes::Crc).short()]
}

/// The file on the host; removed when dropped.
struct Here(PathBuf);

impl Here {
    fn sum(&self) -> Result<String> {
        must(Command::new("md5sum").arg(&self.0), TIMEOUT).map(|line| first_word(&line))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn first_word(line: &str) -> String {
    line.split_whitespace().next().unwrap_or_default().to_owned()
}

fn copy(bench: &mut Bench, setting: &Setting, direction: Direction) -> Result<Verdict> {
    bench.build_libraries();
    let here = Here(std::env::temp_dir().join(format!("uiw-siw-rcopy-{}", std::process::id())));
    bench.guest().must(&format!("rm -f {THERE}"))?;
    let client = match direction {
        Direction::Ours => {
            let bytes: Vec<u8> =
                (0..BYTES as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            fs::write(&here.0, bytes).map_err(Error::io(here.0.display()))?;
            let _server = bench.serve_guest(&format!("rcopy -p {SPARE}"), SPARE, LONGEST)?;
            let mut client = bench.stock("rcopy", "rdmacm-utils", setting)?;
            let at = bench
                .net()
                .guest(setting.family, SPARE)
                .ok_or_else(|| Error::Missing("IPv6 (user-mode networking)".to_owned()))?;
            client.arg(&here.0).arg(format!("{}:{THERE}", at.ip())).args(["-p", &at.port().to_string()]);
            run(&mut client, TIMEOUT)?
        }
        Direction::Theirs => {
            bench.guest().must(&format!("head -c {BYTES} /dev/urandom > {THERE}"))?;
            let server = bench.stock("rcopy", "rdmacm-utils", setting)?;
            let (_server, port) =
                bench.serve_stock(server, |port| vec!["-p".to_owned(), port.to_string()])?;
            let host = bench.host(setting.family)?;
            let script = format!("rcopy {THERE} {host}:{} -p {port}", here.0.display());
            bench.guest().run(&script, LONGEST)?
        }
    };
    if !client.is_ok() {
        return Ok(Verdict::Fail(format!("the client: exit code {}: {}", client.status, client.last_line())));
    }
    let there = bench.guest().must(&format!("md5sum {THERE}"))?;
    let (here, there) = (here.sum()?, first_word(&there));
    Ok(Verdict::of(here == there, if here == there { String::new() } else { "the sums differ".to_owned() }))
}
