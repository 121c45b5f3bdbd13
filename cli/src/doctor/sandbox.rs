//! Checks for restrictions by sandboxes of services and containers, and their consequences.

use super::checks::{Check, CheckState};
use super::preload;
use crate::run;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use uiw_cabi_core::counters;
use uiw_cli_sys::calls::{self, Call, Purpose, Refusal};
use uiw_cli_sys::sysfs;

/// Runs all checks. Those that fork come first, because a process with several threads cannot fork
/// safely.
pub(super) fn run_checks(program: Option<&Path>) -> Vec<Check> {
    vec![
        check_system_calls(),
        check_namespaces(),
        check_address_families(),
        preload::check(program),
        check_counters(),
        check_run_reports(),
        check_descriptors(),
        check_threads(),
    ]
}

/// Returns the number after `word` in /proc/self/status.
fn read_status(word: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(':'))?.trim().parse().ok()
}

fn check_system_calls() -> Check {
    const NAME: &str = "system calls";
    let (mode, filters) = (read_status("Seccomp"), read_status("Seccomp_filters"));
    let filter = match mode {
        None => "seccomp unknown, as /proc is not mounted".to_owned(),
        Some(0) => "no seccomp filter".to_owned(),
        Some(1) => "seccomp in strict mode".to_owned(),
        Some(_) => filters
            .map_or("a seccomp filter".to_owned(), |count| format!("seccomp filters: {count}")),
    };
    let details = |refused: &[(&Call, Refusal)]| {
        let refused: BTreeMap<_, _> = refused
            .iter()
            .map(|(call, refusal)| (call.name, Value::from(describe_refusal(*refusal))))
            .collect();
        json!({ "seccomp": mode, "filters": filters, "no_new_privs": read_status("NoNewPrivs") == Some(1), "refused": refused })
    };
    match calls::refused() {
        Err(error) => Check::ok(NAME, format!("{filter}; calls cannot be tried: {error}"))
            .with_details(details(&[]))
            .with_problem(
                CheckState::Limited,
                "allow another process (TasksMax=, --pids-limit, ulimit -u)",
            ),
        Ok(refused) if refused.is_empty() => {
            Check::ok(NAME, format!("{filter}; uiw's calls are permitted"))
                .with_details(details(&[]))
        }
        Ok(refused) => {
            let mut by_purpose = BTreeMap::<_, Vec<_>>::new();
            for (call, refusal) in &refused {
                by_purpose.entry(call.purpose).or_default().push(format!(
                    "{} ({})",
                    call.name,
                    describe_refusal(*refusal)
                ));
            }
            let says = by_purpose.iter().map(|(purpose, names)| {
                format!("refused are {}: {}", names.join(", "), consequence(*purpose))
            });
            let state = if by_purpose.contains_key(&Purpose::Everything) {
                CheckState::No
            } else {
                CheckState::Limited
            };
            let says = says.collect::<Vec<_>>().join("; ");
            Check::ok(NAME, format!("{filter}; {says}")).with_details(details(&refused)).with_problem(
                state,
                "permit them (SystemCallFilter=@system-service, or the container's seccomp profile)",
            )
        }
    }
}

fn describe_refusal(refusal: Refusal) -> String {
    match refusal {
        Refusal::Error(number) => {
            let names =
                [(Errno::PERM, "EPERM"), (Errno::ACCESS, "EACCES"), (Errno::NOSYS, "ENOSYS")];
            let name = names.iter().find(|(known, _)| known.raw_os_error() == number);
            name.map_or_else(|| format!("error {number}"), |(_, name)| (*name).to_owned())
        }
        Refusal::Kills => "ends the process".to_owned(),
    }
}

fn consequence(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Everything => "nothing runs",
        Purpose::Datagrams => "UD queue pairs cannot be used",
        Purpose::Counters => "counters are not published",
        Purpose::Copies => "`uiw cp` and `uiw serve --share` cannot be used",
        Purpose::Pairs => "`uiw run` with --sockets, --require, --json and -v cannot be used",
        Purpose::Scheduling => "peers wait longer for a busy machine",
    }
}

fn check_namespaces() -> Check {
    const NAME: &str = "namespaces";
    match sysfs::permitted() {
        Ok(()) => Check::ok(NAME, "mounts in a namespace of its own: uiw run --sysfs"),
        Err(error) => Check::ok(NAME, format!("{error}: uiw run --sysfs cannot be used"))
            .with_problem(CheckState::Limited, run::sysfs_fix()),
    }
}

/// Checks the socket address families. Netlink is often refused, because few services need it.
fn check_address_families() -> Check {
    const NAME: &str = "address families";
    let families = [
        ("AF_INET", AddressFamily::INET, SocketType::STREAM, "nothing runs over IPv4"),
        ("AF_INET6", AddressFamily::INET6, SocketType::STREAM, "nothing runs over IPv6"),
        (
            "AF_NETLINK",
            AddressFamily::NETLINK,
            SocketType::RAW,
            "addresses are asked for by ioctl, `uiw stat` has no round trips and retransmissions, and modes of AF_XDP are not known",
        ),
        (
            "AF_UNIX",
            AddressFamily::UNIX,
            SocketType::STREAM,
            "the stacks packet and xdp of --llp cannot be used",
        ),
    ];
    let mut refused = BTreeMap::new();
    let mut says = Vec::new();
    for (name, family, kind, consequence) in families {
        if let Err(error) = socket_with(family, kind, SocketFlags::CLOEXEC, None) {
            let error = std::io::Error::from(error);
            says.push(format!("{name} is refused ({error}): {consequence}"));
            refused.insert(name, error.raw_os_error());
        }
    }
    let details = json!({ "refused": refused });
    if refused.is_empty() {
        let all = families.map(|(name, ..)| name).join(", ");
        return Check::ok(NAME, format!("{all} are permitted")).with_details(details);
    }
    let fix = "RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX, or the container's seccomp profile; IPv6 may be off in the kernel";
    let state = if refused.contains_key("AF_INET") { CheckState::No } else { CheckState::Limited };
    Check::ok(NAME, says.join("; ")).with_details(details).with_problem(state, fix)
}

/// Checks the directory in which programs of this user publish their counters.
fn check_counters() -> Check {
    const NAME: &str = "counters";
    let directory = counters::user_directory();
    let path = directory.path().display();
    match directory.check() {
        Ok(()) => Check::ok(NAME, format!("published in {path}")),
        Err(error) => Check::ok(
            NAME,
            format!("not published in {path}: {error}: `uiw stat` shows no program"),
        )
        .with_problem(
            CheckState::Limited,
            "a writable /tmp (PrivateTmp=yes) or runtime directory (XDG_RUNTIME_DIR), or UIW_COUNTERS=DIR",
        ),
    }
}

/// Checks whether `uiw run --require` can create its directory in /tmp, which every user can reach.
fn check_run_reports() -> Check {
    const NAME: &str = "reports of runs";
    match access("/tmp", Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Check::ok(NAME, "uiw run --require, --json and -v"),
        Err(error) => {
            let error = std::io::Error::from(error);
            Check::ok(
                NAME,
                format!("/tmp: {error}: uiw run --require, --json and -v cannot be used"),
            )
            .with_problem(CheckState::Limited, "make /tmp writable (in a service PrivateTmp=yes)")
        }
    }
}

/// Number of descriptors that suffices for a device with eight shards and a program with a few
/// files.
const FEW_DESCRIPTORS: u64 = 256;

fn check_descriptors() -> Check {
    const NAME: &str = "descriptors";
    let limit = getrlimit(Resource::Nofile);
    let details = json!({ "limit": limit.current, "most": limit.maximum });
    match limit.current {
        Some(few) if few < FEW_DESCRIPTORS => {
            let says = format!("{few}: a device takes up to 40, and each connection one or two");
            Check::ok(NAME, says).with_details(details).with_problem(
                CheckState::Limited,
                "ulimit -n 4096 (LimitNOFILE= of a service, --ulimit nofile of a container)",
            )
        }
        Some(enough) => {
            Check::ok(NAME, format!("{enough}, of which a connection takes one or two"))
                .with_details(details)
        }
        None => Check::ok(NAME, "no limit").with_details(details),
    }
}

/// Maximum number of threads of a device with eight shards: one for each shard, and one each for
/// out-of-band connections, datagrams and trimming memory.
const THREADS: usize = 11;

fn check_threads() -> Check {
    const NAME: &str = "threads";
    let (lock, mut made, mut error) = (Arc::new(Mutex::new(())), Vec::new(), None);
    let held = lock.lock();
    while made.len() < THREADS && error.is_none() {
        let lock = Arc::clone(&lock);
        // Each thread waits until the lock is released.
        match std::thread::Builder::new().spawn(move || drop(lock.lock())) {
            Ok(thread) => made.push(thread),
            Err(why) => error = Some(why),
        }
    }
    drop(held);
    let count = made.len();
    for thread in made {
        let _ = thread.join();
    }
    let limit = getrlimit(Resource::Nproc).current;
    let details = json!({ "made": count, "wanted": THREADS, "limit": limit });
    match error {
        None => Check::ok(NAME, format!("{count} could be made, as many as a device uses"))
            .with_details(details),
        Some(error) => {
            let state = if count == 0 { CheckState::No } else { CheckState::Limited };
            let says =
                format!("{count} of {THREADS} can be made: {error}: nothing connects without one");
            Check::ok(NAME, says).with_details(details).with_problem(
                state,
                "ulimit -u (TasksMax= of a service, --pids-limit of a container)",
            )
        }
    }
}
