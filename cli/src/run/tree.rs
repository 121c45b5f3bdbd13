//! Ending all descendants of this process.

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal, wait,
};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Time within which killed processes must end. A process that waits for a device or a file system
/// in the kernel may need it.
const KILLED: Duration = Duration::from_secs(10);

/// Kills all descendants of this process and waits for their end. This process must be a subreaper,
/// so that it becomes the parent of orphaned descendants and finds them.
pub(super) fn kill_descendants() {
    let limit = Instant::now() + KILLED;
    loop {
        // Reap before making the list: the children of a process that has ended then belong to this
        // process.
        reap();
        let found = descendants(getpid());
        if found.is_empty() || Instant::now() > limit {
            return;
        }
        for process in found {
            kill(process);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process and its parent at the time of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessEntry {
    number: Pid,
    parent: Pid,
}

/// Kills a process. Its number may belong to another process by now, so it is only killed if it
/// still has the same parent, or this process as its new parent.
///
/// Without process descriptors (before Linux 5.3, or in a sandbox), only children of this process
/// are killed, whose numbers are not reused before they are reaped. Other descendants become such
/// children when their parents have ended.
fn kill(process: ProcessEntry) {
    match pidfd_open(process.number, PidfdFlags::empty()) {
        Ok(opened) => {
            if parent(process.number).is_some_and(|now| now == process.parent || now == getpid()) {
                let _ = pidfd_send_signal(&opened, Signal::KILL);
            }
        }
        Err(_) if process.parent == getpid() => {
            let _ = kill_process(process.number, Signal::KILL);
        }
        Err(_) => {}
    }
}

/// Takes the exit codes of ended children, which are orphaned processes.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Returns all descendants of `root`.
fn descendants(root: Pid) -> Vec<ProcessEntry> {
    // If /proc belongs to another PID namespace, its numbers name other processes.
    if fs::read_link("/proc/self").map_or(true, |own| own.to_str() != Some(&root.to_string())) {
        return Vec::new();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers =
        entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let mut children = BTreeMap::<i32, Vec<ProcessEntry>>::new();
    for number in numbers {
        if let Some(parent) = parent(number) {
            children.entry(parent.as_raw_pid()).or_default().push(ProcessEntry { number, parent });
        }
    }
    let mut found = Vec::new();
    let mut of = vec![root];
    while let Some(next) = of.pop() {
        let next = children.remove(&next.as_raw_pid()).unwrap_or_default();
        of.extend(next.iter().map(|process| process.number));
        found.extend(next);
    }
    found
}

fn parent(process: Pid) -> Option<Pid> {
    parent_in(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Returns the parent, which is the fourth field of `/proc/PID/stat`. The second field, the name,
/// may contain blanks and brackets.
fn parent_in(stat: &str) -> Option<Pid> {
    Pid::from_raw(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn parent_parsed_after_any_name() {
        assert_eq!(parent_in("12 (a) b (c) S 7 12 12 0"), Pid::from_raw(7));
        // The first process has no parent.
        assert_eq!(parent_in("1 (init) S 0 1 1 0"), None);
        assert_eq!(parent_in("12 (a"), None);
    }

    #[test]
    fn grandchildren_are_found() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let (parent, number) =
            (Pid::from_child(&child), Pid::from_raw(line.trim().parse().unwrap()).unwrap());
        assert!(descendants(getpid()).contains(&ProcessEntry { number, parent }));
        let _ = kill_process(number, Signal::KILL);
        child.wait().unwrap();
    }
}
