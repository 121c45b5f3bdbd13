//! Reading the counters of all programs of a user.

use crate::shared::fail::{Failure, Result};
use std::path::PathBuf;
use uiw::counters::{
    ConnectionCounters, CounterFile, Directory, DirectoryKind, FileError, Owner, Snapshot,
};
use uiw_cabi_core::counters;
use uiw_llp::{StreamInfo, sock_diag};

/// One device of a program.
pub(super) struct ProgramDevice {
    pub(super) file: CounterFile,
    pub(super) directory: Directory,
    pub(super) snapshot: Snapshot,
    /// Process number in this PID namespace, while the program runs.
    pub(super) pid: Option<u32>,
    /// True if the program runs in another PID namespace.
    pub(super) is_elsewhere: bool,
    /// True if this program does not remove the file, because another program does.
    pub(super) is_kept: bool,
}

/// Counters of all devices of all programs at one time.
#[derive(Default)]
pub(super) struct CollectedDevices {
    pub(super) processes: Vec<ProgramDevice>,
    /// Names of files that cannot be read, with the reason.
    pub(super) unreadable: Vec<(String, FileError)>,
}

impl CollectedDevices {
    /// Returns the snapshot of the same device in this collection.
    pub(super) fn find_same(&self, other: &ProgramDevice) -> Option<&Snapshot> {
        let same = |process: &&ProgramDevice| process.file.name() == other.file.name();
        self.processes.iter().find(same).map(|process| &process.snapshot)
    }
}

/// Returns the directory named by UIW_COUNTERS, for instance that of a service. Without it, returns
/// the directory of the user and those of each `uiw run`.
fn directories() -> Result<Vec<Directory>> {
    let named =
        std::env::var_os(counters::VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = named {
        if let Err(error) = std::fs::read_dir(&path) {
            return Err(Failure::local(
                format!("cannot read the directory {}", path.display()),
                error,
            ));
        }
        return Ok(vec![Directory::new(path)]);
    }
    let user = counters::user_directory();
    let failed = |error| {
        Failure::local(format!("cannot read the directory {}", user.path().display()), error)
    };
    let linked = user.linked().map_err(failed)?;
    Ok(std::iter::once(user.clone()).chain(linked).collect())
}

/// Collects every device of every program, or of programs that `which` names by number or name.
pub(super) fn collect_devices(which: Option<&str>) -> Result<CollectedDevices> {
    let mut all = CollectedDevices::default();
    for directory in directories()? {
        let files = match directory.files() {
            Ok(files) => files,
            // `uiw run` has removed the directory in the meantime, or it belongs to another user.
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

impl CollectedDevices {
    fn add(&mut self, file: CounterFile, directory: &Directory, which: Option<&str>) {
        // Read the owner before the counters: a process that ends in between is shown once more,
        // with its last counts.
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
            self.processes.push(ProgramDevice {
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
