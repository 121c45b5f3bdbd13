//! Reading the counters of all programs.

use crate::shared::fail::{Failure, Result};
use std::path::PathBuf;
use uiw::counters::{ConnectionCounters, CounterFile, Directory, DirectoryKind, FileError, Owner, Snapshot};
use uiw_cabi_core::counters;
use uiw_llp::{StreamInfo, sock_diag};

/// One device of a program.
pub(super) struct Process {
    pub(super) file: CounterFile,
    pub(super) directory: Directory,
    pub(super) snapshot: Snapshot,
    /// Number here, while it runs.
    pub(super) pid: Option<u32>,
    /// It runs, and has no number in this PID namespace.
    pub(super) is_elsewhere: bool,
    /// Another program removes its file.
    pub(super) is_kept: bool,
}

/// All of them at one time.
#[derive(Default)]
pub(super) struct CollectedProcesses {
    pub(super) processes: Vec<Process>,
    /// Files that cannot be read, with the reason.
    pub(super) unreadable: Vec<(String, FileError)>,
}

impl CollectedProcesses {
    /// The same device, at this time.
    pub(super) fn same_as(&self, other: &Process) -> Option<&Snapshot> {
        let same = |process: &&Process| process.file.name() == other.file.name();
        self.processes.iter().find(same).map(|process| &process.snapshot)
    }
}

/// The directory that UIW_COUNTERS names, for instance that of a service; otherwise the user's
/// directory, then those of each `uiw run`.
fn directories() -> Result<Vec<Directory>> {
    let named = std::env::var_os(counters::VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = named {
        if let Err(error) = std::fs::read_dir(&path) {
            return Err(Failure::local(format!("cannot read the directory {}", path.display()), error));
        }
        return Ok(vec![Directory::given(path)]);
    }
    let user = counters::user_directory();
    let failed =
        |error| Failure::local(format!("cannot read the directory {}", user.path().display()), error);
    let linked = user.linked().map_err(failed)?;
    Ok(std::iter::once(user.clone()).chain(linked).collect())
}

/// Every device of every program, or of those that `which` names by number or name.
pub(super) fn all(which: Option<&str>) -> Result<CollectedProcesses> {
    let mut all = CollectedProcesses::default();
    for directory in directories()? {
        let files = match directory.files() {
            Ok(files) => files,
            // Its `uiw run` has removed it since, or it belongs to another user.
            Err(_) if directory.kind() == DirectoryKind::Given => continue,
            Err(error) => {
                let what = format!("cannot read the directory {}", directory.path().display());
                return Err(Failure::local(what, error));
            }
        };
        for file in files {
            match file {
                Ok(file) => all.add(file, &directory, which),
                Err(unreadable) => all.unreadable.push(unreadable),
            }
        }
    }
    all.processes.sort_by_key(|process| (process.pid.is_none(), process.snapshot.process.began_ns));
    Ok(all)
}

impl CollectedProcesses {
    fn add(&mut self, file: CounterFile, directory: &Directory, which: Option<&str>) {
        // First: a process that ends between the two is shown once more, with its last counts.
        let owner = file.owner();
        let (snapshot, owner) = match (file.snapshot(), owner) {
            (Ok(snapshot), Ok(owner)) => (snapshot, owner),
            (Err(error), _) => return self.unreadable.push((file.name().to_owned(), error)),
            (_, Err(error)) => return self.unreadable.push((file.name().to_owned(), error.into())),
        };
        let pid = match owner {
            Owner::Process(pid) => Some(pid),
            Owner::Elsewhere | Owner::Ended => None,
        };
        let process = &snapshot.process;
        let is_wanted =
            |which: &str| process.name == which || which.parse() == Ok(pid.unwrap_or(process.pid));
        if which.is_none_or(is_wanted) {
            self.processes.push(Process {
                is_kept: directory.kind() == DirectoryKind::Given,
                is_elsewhere: owner == Owner::Elsewhere,
                directory: directory.clone(),
                file,
                snapshot,
                pid,
            });
        }
    }
}

/// Asks the kernel for the round trip, retransmissions and window of a connection.
///
/// Returns `None` if the connection is not the kernel's TCP, or not in this process's network
/// namespace.
pub(super) fn tcp_info(connection: &ConnectionCounters) -> Option<StreamInfo> {
    if !connection.kernel {
        return None;
    }
    sock_diag::info(connection.local, connection.peer).ok().flatten()
}
