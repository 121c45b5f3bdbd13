//! One run under callgrind: the instructions that the program's first thread executed, by address, and its system calls.
//!
//! Only the first thread is counted. The C libraries' background thread runs when the clock says so; its instructions would make the
//! count depend on how busy the machine is.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Counts of one thread.
#[derive(Debug, Default)]
pub(super) struct Profile {
    pub(super) instructions: u64,
    pub(super) system_calls: u64,
    /// How often the instruction at each address of an object (an ELF file) was executed.
    pub(super) executed: HashMap<PathBuf, HashMap<u64, u64>>,
}

/// Runs a program under callgrind. `folder` is where its output goes meanwhile.
///
/// # Errors
/// When valgrind is not there, or the program fails.
pub(super) fn profile(program: &Command, folder: &Path) -> Result<Profile, String> {
    let out = folder.join("callgrind.out");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--dump-instr=yes", "--collect-systime=yes", "--separate-threads=yes"]);
    // Plain positions and names: the dump of these programs is small.
    command.args(["--compress-pos=no", "--compress-strings=no"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command
        .output()
        .map_err(|error| format!("valgrind: {error}; on Debian `apt-get install valgrind`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(stderr.lines().last().unwrap_or("the run failed").to_owned());
    }
    // One file a thread; the first thread's is number 1.
    let dump = out.with_extension("out-01");
    let text = fs::read_to_string(&dump).map_err(|error| format!("{}: {error}", dump.display()))?;
    parse(&text)
}

/// Reads a dump (<https://valgrind.org/docs/manual/cl-format.html>).
fn parse(dump: &str) -> Result<Profile, String> {
    let mut profile = Profile::default();
    let mut object: Option<&mut HashMap<u64, u64>> = None;
    let mut columns = None;
    let mut is_call = false;
    for line in dump.lines() {
        if let Some(events) = line.strip_prefix("events: ") {
            columns = events.split(' ').position(|event| event == "sysCount");
        } else if let Some(totals) = line.strip_prefix("summary: ") {
            let column = |at: usize| totals.split(' ').nth(at).and_then(|total| total.parse().ok());
            profile.instructions = column(0).ok_or("callgrind's summary has no instructions")?;
            profile.system_calls =
                columns.and_then(column).ok_or("callgrind's summary has no system calls")?;
        } else if let Some(file) = line.strip_prefix("ob=") {
            object = Some(profile.executed.entry(file.into()).or_default());
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(cost) = line.strip_prefix("0x") {
            // The line behind `calls=` is what the called function cost, which has lines of its own.
            if !std::mem::take(&mut is_call) {
                let mut fields = cost.split(' ');
                let address = fields.next().and_then(|address| u64::from_str_radix(address, 16).ok());
                // Address, line, instructions. A line without instructions has system calls alone.
                let count = fields.nth(1).map_or(Some(0), |count| count.parse::<u64>().ok());
                let (Some(address), Some(count)) = (address, count) else {
                    return Err(format!("callgrind's dump has a line {line:?}"));
                };
                *object.as_deref_mut().ok_or("callgrind names no object")?.entry(address).or_default() +=
                    count;
            }
        }
    }
    if profile.instructions == 0 {
        return Err("callgrind counted nothing".to_owned());
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "\
events: Ir sysCount sysTime
summary: 17 3 40

ob=/lib/libc.so.6
fl=???
fn=send
0x40 0 5
0x44 0 5
calls=5 0x1000 0
0x44 0 7 3 40

ob=/bin/program
fn=main
0x44 7 2
0x44 8 5
";

    #[test]
    fn a_dump_is_read() {
        let profile = parse(DUMP).unwrap();
        assert_eq!((profile.instructions, profile.system_calls), (17, 3));
        assert_eq!(profile.executed[Path::new("/lib/libc.so.6")], HashMap::from([(0x40, 5), (0x44, 5)]));
        assert_eq!(profile.executed[Path::new("/bin/program")], HashMap::from([(0x44, 7)]));
    }

    #[test]
    fn malformed_dumps_are_errors() {
        assert!(parse("").is_err());
        assert!(parse(&DUMP.replace("sysCount", "other")).is_err());
        assert!(parse(&DUMP.replace("0x40 0 5", "0x40 0 five")).is_err());
    }
}
