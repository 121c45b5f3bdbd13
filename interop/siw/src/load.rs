//! Keeps every core of this machine busy with a process, for runs that must pass on a busy machine.

use crate::Result;
use crate::shell::Process;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::process::Command;

/// Processes that keep their cores busy. They end when this value is dropped and when this process
/// ends.
pub struct Load {
    processes: Vec<Process>,
}

impl Load {
    /// Starts one process on each core that this process may use.
    ///
    /// # Errors
    /// If `taskset` or `setpriv` cannot be run.
    pub fn start() -> Result<Self> {
        let allowed = sched_getaffinity(None)
            .map_err(|errno| crate::Error::Failed(format!("cores: {errno}")))?;
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let processes = cores.map(spin).collect::<Result<_>>()?;
        Ok(Self { processes })
    }

    /// Returns the number of cores whose process is still running.
    pub fn cores(&mut self) -> usize {
        self.processes.iter_mut().filter_map(|process| process.is_running().then_some(())).count()
    }
}

fn spin(core: usize) -> Result<Process> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "taskset", "--cpu-list"]).arg(core.to_string());
    Process::start(command.args(["sh", "-c", "while :; do :; done"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_loaded_until_drop() {
        let mut load = Load::start().expect("taskset and setpriv are part of util-linux");
        // Unlike `available_parallelism`, this does not depend on quotas of a control group.
        let allowed = sched_getaffinity(None).expect("the cores").count();
        assert_eq!(load.cores(), allowed as usize);
        let ids: Vec<u32> = load.processes.iter().map(Process::id).collect();
        drop(load);
        for id in ids {
            assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "process {id} is left");
        }
    }
}
