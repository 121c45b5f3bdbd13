//! Tests `ibv_reg_mr` with all kinds of memory: runs `guest/registration.c` on siw and on uiw. The
//! expected results are those of the table in `cabi/verbs/src/mapping.rs`.

use crate::bench::Bench;
use crate::cache::Cache;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::{Error, Result};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Lines that differ between the two drivers; QUIRKS.md, "Memory", gives the reasons.
const DIFFERENT: &[(&str, &str)] = &[
    ("beyond 2^64: registered", "beyond 2^64: EINVAL"),
    ("beyond what a program has: registered", "beyond what a program has: EFAULT"),
    ("no access, read: registered", "no access, read: EFAULT"),
];
/// Additional differences on Linux 6.12.
const DIFFERENT_LATER: &[(&str, &str)] =
    &[("beyond what a program has: EINVAL", "beyond what a program has: EFAULT")];

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("errno of ibv_reg_mr", compare).directions(Direction::OURS).short()]
}

fn compare(bench: &mut Bench, setting: &Setting, _: Direction) -> Result<Verdict> {
    let siw = bench.guest().run("registration", TIMEOUT)?;
    let program = Cache::open(bench.parts().kernel.as_deref())?
        .made("guest/bin/registration")
        .display()
        .to_string();
    let mut command = bench.stock(&program, "libibverbs-dev", setting)?;
    let uiw = crate::shell::run(&mut command, TIMEOUT)?;
    for (whose, output) in [("siw", &siw), ("uiw", &uiw)] {
        if !output.is_ok() || output.out.lines().count() < 20 {
            return Err(Error::Failed(format!("registration on {whose}: {}", output.last_line())));
        }
    }
    let pairs: Vec<_> = siw.out.lines().zip(uiw.out.lines()).collect();
    let different: Vec<(&str, &str)> = pairs
        .iter()
        .map(|(siw, uiw)| (siw.trim(), uiw.trim()))
        .filter(|(siw, uiw)| siw != uiw)
        .collect();
    let expected = if bench.parts().kernel.is_some() { DIFFERENT_LATER } else { DIFFERENT };
    let is_right = different == expected && siw.out.lines().count() == uiw.out.lines().count();
    let seen = if is_right {
        format!("{} answers, {} differ as QUIRKS.md says", pairs.len(), different.len())
    } else {
        let listed: Vec<String> =
            different.iter().map(|(siw, uiw)| format!("siw: {siw}, uiw: {uiw}")).collect();
        format!("these differ: {}", listed.join("; "))
    };
    Ok(Verdict::of(is_right, seen))
}
