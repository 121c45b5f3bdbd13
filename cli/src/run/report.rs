//! Report on the bytes that a program and its descendants moved by uiw: the sum of their counters,
//! which they publish in the directory of this run.
//!
//! ```text
//!   /tmp/uiw-run-NAME        0711 for root, otherwise 0700: nobody else can list it or make files in it
//!     uiw-run-lock           locked as long as `uiw run` lives
//!     SECRET                 1733 for root, otherwise 0700: UIW_COUNTERS
//!       *.counters, *.sockets
//! ```
//!
//! Programs started by root may become other users, as daemons do, and must still be able to create
//! their files. For root, everyone who knows the name of the directory may therefore write there.
//! The name is random, and programs get it in their environment, which other users cannot read. A
//! program under `uiw run` is trusted to report correct counts, but its files must not exhaust this
//! process or control a terminal.

use super::guard::{self, Guard};
use super::report_cannot_run;
use crate::shared::fail::{Failure, Result};
use crate::shared::text::{self, number};
use crate::stat::{UnreadableFiles, datagrams, operations};
use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock};
use rustix::process::{Pid, geteuid};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use uiw::counters::{Datagrams, Directions, Directory, Operations};
use uiw_cabi_core::counters;
use uiw_cabi_rsocket::preload::connections::{self, Carrier, ConnectionRecord, Role};

/// Exit code if the program succeeded but did not move the required payload by uiw.
const NOT_MET: u8 = 125;
/// Prefix of the names of run directories in `/tmp`.
const PREFIX: &str = "uiw-run-";
/// Maximum number of bytes read from all lists of connections together. A line has less than a
/// hundred.
const MAX_LIST_BYTES: u64 = 256 << 20;
/// Maximum length of a line in bytes.
const MAX_LINE: u64 = 128;
/// Maximum number of listed connections with different addresses.
const MAX_LISTED: usize = 1000;
/// Maximum number of listed libraries with different names.
const MAX_LIBRARIES: usize = 16;
/// Minimum number of bytes for which datagrams alone meet [`Requirement::Payload`].
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

/// Runs the program and reports after its end.
pub(super) fn run(
    command: Command,
    require: Option<Requirement>,
    as_json: bool,
) -> Result<ExitCode> {
    guard::run(
        |guard| watch(command, require, as_json, guard),
        || remove_ended_runs(&counters::user_directory()),
    )
}

fn watch(
    mut command: Command,
    require: Option<Requirement>,
    as_json: bool,
    guard: Guard,
) -> Result<ExitCode> {
    let run = RunDirectory::new(counters::user_directory())?;
    command.env(counters::VARIABLE, run.directory.path());
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(report_cannot_run(&command, &error)),
    };
    let code = guard.wait(Pid::from_child(&child))?;
    let sum = run.sum()?;
    drop(run);
    let is_met = sum.meets(require.unwrap_or_default());
    if as_json {
        text::note_json(&sum.json(code, is_met));
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
struct RunDirectory {
    directory: Directory,
    user: Directory,
    name: String,
    /// Locked as long as this process lives.
    _lock: File,
}

impl RunDirectory {
    /// Creates the directory, and links it in the directory of the user.
    fn new(user: Directory) -> Result<Self> {
        remove_ended_runs(&user);
        let failed = |error: &dyn std::fmt::Display| {
            Failure::local("cannot make a directory for the counters of the program", error)
        };
        let random = || {
            getrandom::u64().map(|number| format!("{number:016x}")).map_err(|error| failed(&error))
        };
        let (name, secret) = (random()?, random()?);
        // The runtime directory is not used, because a program that has become another user cannot
        // enter it.
        let base = PathBuf::from(format!("/tmp/{PREFIX}{name}"));
        let path = base.join(secret);
        let is_root = geteuid().is_root();
        let make = |path: &Path, mode: u32| {
            fs::DirBuilder::new().mode(0o700).create(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
        };
        let make = || {
            make(&base, if is_root { 0o711 } else { 0o700 })?;
            make(&path, if is_root { 0o1733 } else { 0o700 })?;
            let lock = path.join(Directory::RUN_LOCK);
            let lock = File::options().write(true).create_new(true).mode(0o600).open(lock)?;
            fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            io::Result::Ok(lock)
        };
        let lock = make().map_err(|error| {
            failed(&error).with_fix(
                "make /tmp writable (in a service PrivateTmp=yes), or do without the report",
            )
        })?;
        let run = Self { directory: Directory::new(path), user, name, _lock: lock };
        // Only `uiw stat` needs the link.
        if let Err(error) = run.user.link(&run.directory, &run.name) {
            tracing::info!(%error, "uiw stat will not show this run");
        }
        Ok(run)
    }

    /// Returns the sum of the counters of all processes.
    fn sum(&self) -> Result<CounterSum> {
        let failed = |error| Failure::local("cannot read the counters of the program", error);
        let (mut sum, mut warnings) = (CounterSum::default(), UnreadableFiles::default());
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
                    sum.with_others.add(&snapshot.with_other_devices());
                    sum.datagrams.add(&total.datagrams);
                    sum.add_library(snapshot.process.library);
                }
                Err(unreadable) => warnings.add(&unreadable),
            }
        }
        warnings.end();
        let mut left = MAX_LIST_BYTES;
        for file in socket_files(self.directory.path()) {
            sum.add_sockets(&file, &mut left);
        }
        Ok(sum)
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        remove_run(&self.directory, &self.user, &self.name);
    }
}

/// Returns the files with lists of connections, which processes have written.
fn socket_files(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .filter(|path| {
            path.as_os_str().as_encoded_bytes().ends_with(connections::SUFFIX.as_bytes())
        })
        .collect()
}

/// Removes the directory of a run, unless a process of that run still exists. In that case a later
/// run removes it.
fn remove_run(directory: &Directory, user: &Directory, name: &str) {
    if directory.remove_ended().unwrap_or(false)
        && let Some(base) = directory.path().parent()
        && fs::remove_dir_all(base).is_ok()
    {
        let _ = user.unlink(name);
    }
}

/// Removes the directories of earlier runs that were killed, or whose programs were still running
/// when `uiw run` ended.
fn remove_ended_runs(user: &Directory) {
    for directory in user.linked().unwrap_or_default() {
        let Some(base) = directory.path().parent() else { continue };
        let name = base.file_name().and_then(|name| name.to_str()?.strip_prefix(PREFIX));
        let Some(name) = name.map(str::to_owned) else { continue };
        match has_ended(directory.path()) {
            Ok(true) => remove_run(&directory, user, &name),
            // The directory is gone, because a restart of the machine has emptied /tmp.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.path().exists() => {
                let _ = user.unlink(&name);
            }
            Ok(false) | Err(_) => {}
        }
    }
}

/// Returns whether the `uiw run` process of a run has ended. The owner of the lock is checked,
/// because after a restart of the machine another user may have created files with the same names.
fn has_ended(path: &Path) -> io::Result<bool> {
    // Without NONBLOCK, opening a FIFO without a reader would block.
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let lock = File::from(rustix::fs::open(path.join(Directory::RUN_LOCK), flags, Mode::empty())?);
    let about = lock.metadata()?;
    if !about.is_file() || about.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// The counters of all processes of a run.
#[derive(Debug, Default)]
struct CounterSum {
    processes: u64,
    devices: u64,
    queue_pairs: u64,
    connections: u64,
    /// Operations on queue pairs connected to other processes.
    with_others: Operations,
    /// Operations on queue pairs connected within one process.
    within: Operations,
    /// Datagrams of UD queue pairs.
    datagrams: Datagrams,
    /// Number of processes for each library.
    libraries: BTreeMap<String, u64>,
    /// Connections of the preload library, with the number of equal ones.
    sockets: BTreeMap<ConnectionRecord, u64>,
    /// Number of connections that did not fit into `sockets`.
    unlisted_sockets: u64,
}

impl CounterSum {
    /// Counts a process that used a library.
    fn add_library(&mut self, library: String) {
        let is_listed =
            self.libraries.len() < MAX_LIBRARIES || self.libraries.contains_key(&library);
        *self
            .libraries
            .entry(if is_listed { library } else { "others".to_owned() })
            .or_default() += 1;
    }

    /// Counts the connections of a list. Reads at most `left` bytes, and subtracts the bytes read.
    /// Ignores the rest of a list after a line of another format.
    fn add_sockets(&mut self, file: &Path, left: &mut u64) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(opened) = rustix::fs::open(file, flags, Mode::empty()) else { return };
        let mut reader = BufReader::new(File::from(opened).take(*left));
        let mut line = String::new();
        while (&mut reader).take(MAX_LINE).read_line(&mut line).is_ok() {
            let Some(found) = line.strip_suffix('\n').and_then(ConnectionRecord::parse) else {
                break;
            };
            line.clear();
            if self.sockets.len() < MAX_LISTED || self.sockets.contains_key(&found) {
                *self.sockets.entry(found).or_default() += 1;
            } else {
                self.unlisted_sockets += 1;
            }
        }
        *left = reader.into_inner().limit();
    }

    /// Returns whether the required payload was sent to or received from another process.
    fn meets(&self, requirement: Requirement) -> bool {
        let bytes = |moved: Directions| moved.sent.bytes.saturating_add(moved.received.bytes);
        let needed = match requirement {
            Requirement::Payload => MIN_DATAGRAM_BYTES,
            Requirement::Any => 1,
        };
        bytes(self.with_others.total()) > 0 || bytes(self.datagrams.with_other_devices()) >= needed
    }

    /// Returns the report as text.
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
        let unreliable = match self.datagrams.with_other_devices() {
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

    /// Returns the lines that say which connections used rsockets and which used TCP.
    fn sockets_text(&self) -> String {
        let line = |(line, count): (&ConnectionRecord, &u64)| {
            let how = match line.role {
                Role::Connected => "to",
                Role::Accepted => "accepted at",
            };
            let carrier = match line.carrier {
                Carrier::Rsocket => "rsockets",
                Carrier::Tcp => "TCP",
            };
            format!(
                "\nuiw: over {carrier}: {} {how} {}",
                number(*count, "connection"),
                line.address
            )
        };
        let mut text: String = self.sockets.iter().map(line).collect();
        if self.unlisted_sockets > 0 {
            let count = number(self.unlisted_sockets, "connection");
            text.push_str(&format!("\nuiw: to or at other addresses: {count}"));
        }
        text
    }

    /// Returns a possible reason why no payload was moved.
    fn hint(&self) -> &'static str {
        let within = [self.within.total(), self.datagrams.same_device];
        if self.processes == 0 {
            "the program may be linked statically, have a libibverbs of its own, or have chosen another transport"
        } else if self.connections == 0 && self.datagrams.traffic == Directions::default() {
            "the program opened a device and chose another transport: see UIW_LOG=debug and its own messages"
        } else if within.iter().any(|moved| moved.sent.bytes > 0 || moved.received.bytes > 0) {
            "payload was moved within one process alone"
        } else if self.datagrams.with_other_devices() != Directions::default() {
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
            "unlisted_sockets": self.unlisted_sockets,
        })
    }
}

fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::time::Duration;

    /// The directory of a user, which is removed when this is dropped.
    struct User(PathBuf);

    impl User {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("uiw-report-{name}-{}", std::process::id()));
            fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }

        fn directory(&self) -> Directory {
            Directory::for_user(Some(&self.0))
        }
    }

    impl Drop for User {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A process of another user cannot find the lock or the directory. If it was given the name of
    /// the directory, it can create files there.
    #[test]
    fn report_directory_hidden_from_users() {
        let user = User::new("hidden");
        let run = RunDirectory::new(user.directory()).unwrap();
        let path = run.directory.path().to_owned();
        let base = path.parent().unwrap().to_owned();
        let own = fs::metadata(&base).unwrap().permissions().mode() & 0o7777;
        if !geteuid().is_root() {
            assert_eq!(own, 0o700);
            return;
        }
        assert_eq!(own, 0o711);
        let succeeds = |script: &str| {
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .env("BASE", &base)
                .env("GIVEN", &path)
                .uid(65_534)
                .gid(65_534);
            command.stderr(std::process::Stdio::null()).status().unwrap().success()
        };
        assert!(
            !succeeds("ls $BASE/*")
                && !succeeds(": > $BASE/x")
                && !succeeds("rm $BASE/uiw-run-lock")
        );
        assert!(!succeeds("ls $GIVEN/*"));
        assert!(succeeds("echo tcp connected 192.0.2.7:53 > $GIVEN/1.sockets"));
        assert_eq!(run.sum().unwrap().sockets.len(), 1);
        drop(run);
        assert!(!base.exists());
    }

    #[test]
    fn killed_run_is_swept() {
        let user = User::new("swept");
        let mut run = RunDirectory::new(user.directory()).unwrap();
        let path = run.directory.path().to_owned();
        // This process can take its own lock a second time, as if the run had ended.
        assert!(has_ended(&path).unwrap());
        run.user = Directory::new("/nonexistent");
        fs::write(path.join("something"), "").unwrap();
        remove_ended_runs(&user.directory());
        assert!(!path.exists() && user.directory().linked().unwrap().is_empty());
    }

    #[test]
    fn foreign_lock_does_not_hang() {
        let user = User::new("lock");
        let name = format!("test-{}", std::process::id());
        let base = PathBuf::from(format!("/tmp/{PREFIX}{name}"));
        let path = base.join("secret");
        fs::create_dir_all(&path).unwrap();
        let lock = path.join(Directory::RUN_LOCK);
        user.directory().link(&Directory::new(&path), &name).unwrap();
        let (done, swept) = std::sync::mpsc::channel();
        rustix::fs::mkfifoat(rustix::fs::CWD, &lock, Mode::RUSR | Mode::WUSR).unwrap();
        let directory = user.directory();
        std::thread::spawn(move || {
            remove_ended_runs(&directory);
            let _ = done.send(());
        });
        let is_swept = swept.recv_timeout(Duration::from_secs(10));
        // A lock that is a symbolic link is not opened either.
        fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink("/dev/null", &lock).unwrap();
        let opened = has_ended(&path);
        fs::remove_dir_all(&base).unwrap();
        assert!(is_swept.is_ok() && opened.is_err(), "{is_swept:?} {opened:?}");
    }

    #[test]
    fn hostile_lists_counted_in_part() {
        let user = User::new("lists");
        let file = |name: &str, text: String| {
            let path = user.0.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let mut sum = CounterSum::default();
        let mut left = MAX_LIST_BYTES;
        let many = (0..5000).map(|port| format!("tcp connected 192.0.2.7:{port}\n")).collect();
        sum.add_sockets(&file("many", many), &mut left);
        assert_eq!((sum.sockets.len(), sum.unlisted_sockets), (MAX_LISTED, 4000));
        assert!(sum.text().ends_with("to or at other addresses: 4,000 connections"));
        let long = format!(
            "tcp connected 192.0.2.7:1\n{}\ntcp connected 192.0.2.7:1\n",
            "x".repeat(1 << 20)
        );
        sum.add_sockets(&file("long", long), &mut left);
        assert_eq!(sum.sockets.values().sum::<u64>() + sum.unlisted_sockets, 5001);
        left = 30;
        sum.add_sockets(&file("short", "tcp connected 192.0.2.7:1\n".repeat(10)), &mut left);
        assert_eq!((left, sum.sockets.values().sum::<u64>() + sum.unlisted_sockets), (0, 5002));
        for number in 0..100 {
            sum.add_library(format!("library {number}"));
        }
        assert_eq!((sum.libraries.len(), sum.libraries["others"]), (MAX_LIBRARIES + 1, 84));
    }
}
