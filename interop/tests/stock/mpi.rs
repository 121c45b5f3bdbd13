//! MPI jobs on UCX, as Debian has them: each rank on a host of its own, every pair of ranks on our RC queue pairs.

use crate::reported::{is_reliable, parsed};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use uiw_interop::stock::{Hosts, Libraries, Running, User, uiw};

const RANKS: u8 = 8;

/// An implementation of MPI: its programs, and how its mpirun is told where ranks run.
struct Mpi {
    compiler: &'static str,
    mpirun: &'static str,
    options: fn(&Hosts, &str) -> Vec<String>,
}

const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    mpirun: "mpirun.openmpi",
    options: |hosts, agent| {
        let hosts: Vec<_> = hosts.addresses().map(|address| format!("{address}:1")).collect();
        let options =
            ["--allow-run-as-root", "--mca", "plm_rsh_agent", agent, "--mca", "pml", "ucx", "--host"];
        options.into_iter().map(str::to_owned).chain([hosts.join(",")]).collect()
    },
};

const MPICH: Mpi = Mpi {
    compiler: "mpicc.mpich",
    mpirun: "mpirun.mpich",
    options: |hosts, agent| {
        let names: Vec<_> = hosts.addresses().map(|address| address.to_string()).collect();
        let (own, names) = (hosts.switch_address().to_string(), names.join(","));
        let options = ["-launcher", "ssh", "-launcher-exec", agent, "-localhost", &own, "-hosts", &names];
        options.into_iter().map(str::to_owned).collect()
    },
};

/// A job, ready to be started.
struct Job {
    hosts: Hosts,
    libraries: Libraries,
    program: PathBuf,
}

impl Job {
    /// Nothing where something is missing; the test is noted as skipped then.
    #[track_caller]
    fn new(mpi: &Mpi) -> Option<Self> {
        uiw_interop::require(mpi.mpirun)?;
        uiw_interop::require("unshare")?;
        let compiler = uiw_interop::require(mpi.compiler)?;
        let hosts = Hosts::new(RANKS)?;
        let libraries = Libraries::get();
        let program = libraries.folder().join("mpi");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/mpi.c");
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
        let output = command.output().expect("the compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { hosts, libraries, program })
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.libraries.folder().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an executable script");
        path.to_str().expect("a path of text").to_owned()
    }

    /// `mpirun` with a remote shell of ours, which enters a host instead of connecting to it.
    fn start(&self, mpi: &Mpi, options: &str, args: &[&str]) -> Running {
        let agent = self.script(
            "agent",
            &format!(
                "while [ \"${{1#-}}\" != \"$1\" ]; do shift; done; host=${{1##*.}}; shift\n\
                 exec ip netns exec {}$host unshare --pid --fork --kill-child --mount-proc --ipc --uts -- \
                 sh -c \"hostname host$host; $*\"",
                self.hosts.prefix()
            ),
        );
        // Standard errors of several ranks would be mixed.
        let rank = self.script(
            "rank",
            &format!(
                "UIW_LIB={folder} exec {} run --sysfs {options} -- \"$@\" \
                 2> {folder}/report-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}",
                uiw().display(),
                folder = self.libraries.folder().display(),
            ),
        );
        let mut command = self.libraries.command(User::Same, mpi.mpirun);
        command
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("UIW_COUNTERS")
            .env("TMPDIR", self.libraries.folder());
        command.args((mpi.options)(&self.hosts, &agent)).args(["-np", &RANKS.to_string(), &rank]);
        command.arg(&self.program).args(args);
        Running::start(self.hosts.at_switch(command))
    }

    /// What rank `rank` wrote to standard error, its report among it.
    fn said(&self, rank: u8) -> String {
        fs::read_to_string(self.libraries.folder().join(format!("report-{rank}"))).unwrap_or_default()
    }
}

fn every_pair_and_collectives(mpi: &Mpi) {
    let Some(job) = Job::new(mpi) else { return };
    for persona in ["roce", "ib"] {
        let options = format!("--require --json --persona {persona}");
        let ended = job.start(mpi, &options, &[]).end();
        let said: Vec<_> = (0..RANKS).map(|rank| job.said(rank)).collect();
        assert_eq!(ended.code, 0, "{ended:?}\n{said:#?}");
        assert_eq!(ended.count("is done"), usize::from(RANKS), "{ended:?}");
        for said in said {
            // A mebibyte to and from each of seven ranks, and less of it.
            is_reliable(&parsed(&said), 14 << 20);
        }
    }
}

#[test]
fn open_mpi_verifies_every_pair_and_collectives() {
    every_pair_and_collectives(&OPEN_MPI);
}

#[test]
fn mpich_verifies_every_pair_and_collectives() {
    every_pair_and_collectives(&MPICH);
}

/// The job ends, and no process of it is left in any host.
fn a_killed_rank_ends_the_job(mpi: &Mpi) {
    let Some(job) = Job::new(mpi) else { return };
    // Without a report `uiw run` becomes the rank. MPICH's process manager ends a job of several hosts when it sees ranks that a signal
    // ended: the others, which UCX aborts when rank 3 does not answer.
    let ended = job.start(mpi, "--persona roce", &["3"]).end();
    assert_ne!(ended.code, 0, "{ended:?}");
    assert_eq!((ended.count("rank 3 will kill itself"), ended.count("is done")), (1, 0), "{ended:?}");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !job.hosts.processes().is_empty() {
        assert!(Instant::now() < deadline, "left: {:?}", job.hosts.processes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_rank_ends_a_job_of_open_mpi() {
    a_killed_rank_ends_the_job(&OPEN_MPI);
}

#[test]
fn a_killed_rank_ends_a_job_of_mpich() {
    a_killed_rank_ends_the_job(&MPICH);
}
