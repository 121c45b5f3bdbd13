//! What a program and all that it has started moved by uiw: the sum of their counters, which they publish in a directory of this run.

use super::cannot_run;
use super::guard::{self, Guard};
use crate::shared::fail::{Failure, Result};
use crate::shared::text::number;
use crate::stat::{datagrams, operations};
use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock};
use rustix::process::{Pid, geteuid};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use uiw::counters::{Datagrams, Directions, Directory, Operations};
use uiw_cabi_core::counters;
use uiw_cabi_rsocket::preload::connections::{self, Carrier, Line, Role};

/// The exit code when the program ended well, and moved nothing by uiw.
const NOT_MET: u8 = 125;
/// Bytes of payload from which datagrams alone meet [`Requirement::Payload`].
const MIN_DATAGRAM_BYTES: u64 = 64 << 10;

/// Payload that `--require` demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Requirement {
    /// Payload on a connection, or at least 64 KiB by datagrams
    #[default]
    Payload,
    /// Any payload
    Any,
}

/// Runs the program, and reports when it has ended.
pub(super) fn run(command: Command, require: Option<Requirement>, as_json: bool) -> Result<ExitCode> {
    guard::run(|guard| watch(command, require, as_json, guard), || sweep(&counters::user()))
}

fn watch(
    mut command: Command,
    require: Option<Requirement>,
    as_json: bool,
    guard: Guard,
) -> Result<ExitCode> {
    let run = Run::new()?;
    command.env(counters::VARIABLE, run.directory.path());
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(&command, &error)),
    };
    let code = guard.wait(Pid::from_child(&child))?;
    let sum = run.sum()?;
    drop(run);
    let is_met = sum.meets(require.unwrap_or_default());
    if as_json {
        note!("{}", sum.json(code, is_met));
    } else {
        note!("uiw: {}", sum.text());
    }
    if code == 0 && require.is_some() && !is_met {
        if !as_json {
            note!("hint: {}", sum.hint());
        }
        return Ok(ExitCode::from(NOT_MET));
    }
    Ok(ExitCode::from(code))
}

/// The directory of one run.
struct Run {
    directory: Directory,
    user: Directory,
    name: String,
    /// Locked as long as this process lives.
    _lock: File,
}

impl Run {
    fn new() -> Result<Self> {
        let user = counters::user();
        sweep(&user);
        let failed = |error: &dyn std::fmt::Display| {
            Failure::local("cannot make a directory for the counters of the program", error)
        };
        let name = format!("{:016x}", getrandom::u64().map_err(|error| failed(&error))?);
        // Not in the runtime directory, which a program that has become another user cannot enter.
        let path = PathBuf::from(format!("/tmp/uiw-run-{name}"));
        // Root's programs become other users: these make files in it, and cannot list it. Others' programs cannot.
        let mode = if geteuid().is_root() { 0o1733 } else { 0o700 };
        let make = || {
            fs::DirBuilder::new().mode(mode).create(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            let lock = File::options().write(true).create_new(true).open(path.join(Directory::RUN_LOCK))?;
            fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            io::Result::Ok(lock)
        };
        let lock = make().map_err(|error| {
            failed(&error)
                .with_fix("make /tmp writable (in a service PrivateTmp=yes), or do without the report")
        })?;
        let run = Self { directory: Directory::given(path), user, name, _lock: lock };
        // `uiw stat` finds it by the link; the report does without.
        if let Err(error) = run.user.link(&run.directory, &run.name) {
            tracing::info!(%error, "uiw stat will not show this run");
        }
        Ok(run)
    }

    /// The counters of every process so far.
    fn sum(&self) -> Result<Sum> {
        let failed = |error| Failure::local("cannot read the counters of the program", error);
        let mut sum = Sum::default();
        for file in self.directory.files().map_err(failed)? {
            let read = file.and_then(|file| {
                let snapshot = file.snapshot();
                snapshot.map_err(|error| (file.name().to_owned(), error))
            });
            match read {
                Ok(snapshot) => {
                    let total = snapshot.total();
                    sum.processes += 1;
                    sum.devices += snapshot.process.devices_opened;
                    sum.queue_pairs += snapshot.process.queue_pairs_created;
                    sum.connections += total.established;
                    sum.within.add(&total.same_device);
                    sum.with_others.add(&snapshot.with_others());
                    sum.datagrams.add(&total.datagrams);
                    *sum.libraries.entry(snapshot.process.library).or_default() += 1;
                }
                Err((file, error)) => note!("warning: {file}: {error}"),
            }
        }
        for file in socket_files(self.directory.path()) {
            count_sockets(&file, &mut sum.sockets);
        }
        Ok(sum)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        remove(&self.directory, &self.user, &self.name);
    }
}

/// The lists of connections that processes have made.
fn socket_files(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .filter(|path| path.as_os_str().as_encoded_bytes().ends_with(connections::SUFFIX.as_bytes()))
        .collect()
}

/// Counts the connections of a list. Other programs of the user may write there: what is no list is left out.
fn count_sockets(file: &Path, sockets: &mut BTreeMap<Line, u64>) {
    // A connection has less than a hundred bytes.
    const LONGEST: u64 = 256 << 20;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(file, flags, Mode::empty()) else { return };
    let lines = BufReader::new(File::from(opened).take(LONGEST)).lines();
    for line in lines.map_while(io::Result::ok).filter_map(|line| Line::parse(&line)) {
        *sockets.entry(line).or_default() += 1;
    }
}

/// Removes a run's directory, unless a process that it has started still runs: a later run does then.
fn remove(directory: &Directory, user: &Directory, name: &str) {
    if directory.remove_ended().unwrap_or(false) {
        let _ = fs::remove_file(directory.path().join(Directory::RUN_LOCK));
        for file in socket_files(directory.path()) {
            let _ = fs::remove_file(file);
        }
        if fs::remove_dir(directory.path()).is_ok() {
            let _ = user.unlink(name);
        }
    }
}

/// Removes what runs have left that were killed, or whose programs went on.
fn sweep(user: &Directory) {
    for directory in user.linked().unwrap_or_default() {
        let name = directory.path().file_name().and_then(|name| name.to_str()?.strip_prefix("uiw-run-"));
        let Some(name) = name.map(str::to_owned) else { continue };
        match is_over(directory.path()) {
            Ok(true) => remove(&directory, user, &name),
            // It is gone: restarted machines lose what is in /tmp.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.path().exists() => {
                let _ = user.unlink(&name);
            }
            Ok(false) | Err(_) => {}
        }
    }
}

/// Returns whether the process of a run has ended.
fn is_over(path: &Path) -> io::Result<bool> {
    let lock = File::options().write(true).open(path.join(Directory::RUN_LOCK))?;
    Ok(fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// The counters of all processes of a run.
#[derive(Debug, Default)]
struct Sum {
    processes: u64,
    devices: u64,
    queue_pairs: u64,
    connections: u64,
    /// On queue pairs to other processes.
    with_others: Operations,
    /// On queue pairs of one process to itself.
    within: Operations,
    /// Of UD queue pairs.
    datagrams: Datagrams,
    /// How many processes counted by each library.
    libraries: BTreeMap<String, u64>,
    /// Connections of the preload library, and how many of each.
    sockets: BTreeMap<Line, u64>,
}

impl Sum {
    /// Returns whether as much payload as is required went to another process or came from one.
    fn meets(&self, requirement: Requirement) -> bool {
        let bytes = |moved: Directions| moved.sent.bytes.saturating_add(moved.received.bytes);
        let needed = match requirement {
            Requirement::Payload => MIN_DATAGRAM_BYTES,
            Requirement::Any => 1,
        };
        bytes(self.with_others.total()) > 0 || bytes(self.datagrams.with_others()) >= needed
    }

    /// One line.
    fn text(&self) -> String {
        if self.processes == 0 {
            return format!("no process opened a device{}", self.sockets_text());
        }
        let moved = self.with_others.total();
        let libraries: Vec<_> = match self.libraries.len() {
            1 => self.libraries.keys().cloned().collect(),
            _ => self.libraries.iter().map(|(name, count)| format!("{name} ({count})")).collect(),
        };
        let sockets = self.sockets_text();
        let unreliable = match self.datagrams.with_others() {
            none if none == Directions::default() => String::new(),
            moved => format!(
                "; by datagrams {} sent to other processes, {} received from them",
                number(moved.sent.bytes, "byte"),
                number(moved.received.bytes, "byte"),
            ),
        };
        format!(
            "{} with {}, {} and {}: {} sent to other processes, {} received from them{unreliable}; by {}{sockets}",
            processes(self.processes),
            number(self.devices, "device"),
            number(self.queue_pairs, "queue pair"),
            number(self.connections, "connection"),
            number(moved.sent.bytes, "byte"),
            number(moved.received.bytes, "byte"),
            libraries.join(", "),
        )
    }

    /// Which connections went over rsockets and which over TCP: a line each.
    fn sockets_text(&self) -> String {
        let line = |(line, count): (&Line, &u64)| {
            let how = match line.role {
                Role::Connected => "to",
                Role::Accepted => "accepted at",
            };
            let carrier = match line.carrier {
                Carrier::Rsocket => "rsockets",
                Carrier::Tcp => "TCP",
            };
            format!("\nuiw: over {carrier}: {} {how} {}", number(*count, "connection"), line.address)
        };
        self.sockets.iter().map(line).collect()
    }

    /// What may be the reason that nothing was moved.
    fn hint(&self) -> &'static str {
        let within = [self.within.total(), self.datagrams.same_device];
        if self.processes == 0 {
            "the program may be linked statically, have a libibverbs of its own, or have chosen another transport"
        } else if self.connections == 0 && self.datagrams.traffic == Directions::default() {
            "the program opened a device and chose another transport: see UIW_LOG=debug and its own messages"
        } else if within.iter().any(|moved| moved.sent.bytes > 0 || moved.received.bytes > 0) {
            "payload was moved within one process alone"
        } else if self.datagrams.with_others() != Directions::default() {
            "less than 64 KiB were moved by datagrams alone, as libraries do that set up connections and then choose another transport; \
             --require=any accepts that"
        } else {
            "connections were made, and no payload was moved on them"
        }
    }

    fn json(&self, code: u8, is_met: bool) -> serde_json::Value {
        let moved = self.with_others.total();
        json!({
            "type": "run",
            "exit_code": code,
            "moved_payload": is_met,
            "processes": self.processes,
            "devices_opened": self.devices,
            "queue_pairs_created": self.queue_pairs,
            "connections": self.connections,
            "bytes_sent": moved.sent.bytes,
            "bytes_received": moved.received.bytes,
            "with_others": operations(&self.with_others),
            "within_processes": operations(&self.within),
            "datagrams": datagrams(&self.datagrams),
            "libraries": self.libraries,
            "sockets": self.sockets.iter().map(|(line, count)| json!({
                "carrier": if line.carrier == Carrier::Rsocket { "rsocket" } else { "tcp" },
                "role": if line.role == Role::Connected { "connected" } else { "accepted" },
                "address": line.address.to_string(),
                "connections": count,
            })).collect::<Vec<_>>(),
        })
    }
}

fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}
