//! Runs MPI jobs on UCX and libfabric as packaged by Debian. Each rank is on a host of its own, and
//! every pair of ranks communicates over uiw's RC queue pairs.

use crate::lossy::LossyPath;
use crate::reported::{is_reliable, parsed, reliable, unreliable};
use crate::wire::Capture;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{Hosts, Libraries, Network, Running, User, WaitLimit, uiw};

/// MPI implementation: its programs, and the options of its mpirun for its own address, the
/// addresses of the ranks and the remote shell.
struct MpiPrograms {
    compiler: &'static str,
    mpirun: &'static str,
    /// Number of ranks, at least four because one is killed.
    ranks: u8,
    personas: [&'static str; 2],
    /// Words placed before the command of a rank.
    prefix: &'static str,
    /// Whether the ranks exit without `MPI_Finalize`. Each rank's command then waits until all
    /// ranks have reported, because the process manager ends the other commands when the first one
    /// ends.
    leave: bool,
    options: fn(Ipv4Addr, &[Ipv4Addr], &str) -> Vec<String>,
}

const OPEN_MPI: MpiPrograms = MpiPrograms {
    compiler: "mpicc.openmpi",
    mpirun: "mpirun.openmpi",
    ranks: 8,
    personas: ["roce", "ib"],
    prefix: "",
    leave: false,
    options: |_, hosts, agent| open_mpi(hosts, agent, &["--mca", "pml", "ucx"]),
};

/// Open MPI on libfabric's verbs provider, with tagged messages on RC queue pairs. No device is
/// chosen, and no address is given.
const OPEN_MPI_OFI: MpiPrograms = MpiPrograms {
    compiler: "mpicc.openmpi",
    mpirun: "mpirun.openmpi",
    ranks: 4,
    personas: ["iwarp", "roce"],
    prefix: "",
    leave: false,
    options: |_, hosts, agent| {
        let provider = ["--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"];
        open_mpi(
            hosts,
            agent,
            &[&["--mca", "pml", "cm", "--mca", "mtl", "ofi"][..], &provider].concat(),
        )
    },
};

fn open_mpi(hosts: &[Ipv4Addr], agent: &str, transport: &[&str]) -> Vec<String> {
    let hosts: Vec<_> = hosts.iter().map(|address| format!("{address}:1")).collect();
    let common = ["--allow-run-as-root", "--mca", "plm_rsh_agent", agent];
    let options = common.iter().chain(transport).chain(&["--host"]);
    options.map(|option| (*option).to_owned()).chain([hosts.join(",")]).collect()
}

const MPICH: MpiPrograms = MpiPrograms {
    compiler: "mpicc.mpich",
    mpirun: "mpirun.mpich",
    ranks: 8,
    personas: ["roce", "ib"],
    prefix: "",
    leave: false,
    options: |own, hosts, agent| {
        let hosts: Vec<_> = hosts.iter().map(Ipv4Addr::to_string).collect();
        let (own, hosts) = (own.to_string(), hosts.join(","));
        let options =
            ["-launcher", "ssh", "-launcher-exec", agent, "-localhost", &own, "-hosts", &hosts];
        options.into_iter().map(str::to_owned).collect()
    },
};

/// Program and scripts of an MPI job.
struct MpiJob {
    libraries: Libraries,
    program: PathBuf,
}

impl MpiJob {
    /// Returns `None`, and counts the test as skipped, if something is missing.
    #[track_caller]
    fn new(mpi: &MpiPrograms) -> Option<Self> {
        uiw_interop::require(mpi.mpirun)?;
        uiw_interop::require("unshare")?;
        let compiler = uiw_interop::require(mpi.compiler)?;
        let libraries = Libraries::get();
        let program = libraries.folder().join("mpi");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/c/mpi.c");
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
        let output = command.output().expect("the compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { libraries, program })
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.libraries.folder().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .expect("an executable script");
        path.to_str().expect("a path of text").to_owned()
    }

    /// Returns `mpirun` with one rank on each of `hosts` and with a remote shell that enters a
    /// host's namespace instead of connecting to it. The hosts can reach the address `own`;
    /// `prefix` precedes each rank's command, and `options` are the options of `uiw run`.
    fn command<N: AsRef<str>>(
        &self,
        mpi: &MpiPrograms,
        (own, hosts): (Ipv4Addr, impl Iterator<Item = (Ipv4Addr, N)>),
        (prefix, options): (&str, &str),
        args: &[&str],
    ) -> Command {
        let (addresses, names): (Vec<_>, Vec<_>) = hosts.unzip();
        let cases = addresses.iter().zip(&names).fold(String::new(), |cases, (address, name)| {
            cases + &format!("{address}) host={};; ", name.as_ref())
        });
        let agent = self.script(
            "agent",
            &format!(
                "while [ \"${{1#-}}\" != \"$1\" ]; do shift; done\n\
                 case $1 in {cases} *) exit 1;; esac; shift\n\
                 exec ip netns exec $host unshare --pid --fork --kill-child --mount-proc --ipc --uts -- \
                 sh -c \"hostname $host; $*\""
            ),
        );
        let folder = self.libraries.folder().display();
        let (exec, end) = if mpi.leave {
            let all = (0..mpi.ranks)
                .map(|rank| format!("-e {folder}/reported-{rank}"))
                .collect::<Vec<_>>()
                .join(" -a ");
            (
                "",
                format!(
                    "code=$?; : > {folder}/reported-$rank; until [ {all} ]; do sleep 0.1; done; exit $code"
                ),
            )
        } else {
            ("exec", String::new())
        };
        // The standard error of each rank goes to its own file, because the output of several ranks
        // would be mixed.
        let rank = self.script(
            "rank",
            &format!(
                "export UIW_LIB={folder} {prefix}; rank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\n\
                 {exec} {} run {options} -- \"$@\" 2> {folder}/report-$rank\n{end}",
                uiw().display(),
            ),
        );
        let mut command = self.libraries.command(User::Same, mpi.mpirun);
        command
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("UIW_COUNTERS")
            .env("TMPDIR", self.libraries.folder());
        command.args((mpi.options)(own, &addresses, &agent)).args([
            "-np",
            &addresses.len().to_string(),
            &rank,
        ]);
        command.arg(&self.program).args(args);
        command
    }

    /// Like [`MpiJob::command`], but starts the job on hosts connected by a switch.
    fn start(&self, mpi: &MpiPrograms, hosts: &Hosts, options: &str, args: &[&str]) -> Running {
        let places = (hosts.switch_address(), hosts.places());
        Running::start(hosts.at_switch(self.command(mpi, places, (mpi.prefix, options), args)))
    }

    /// Returns what rank `rank` wrote to standard error, including its report.
    fn said(&self, rank: u8) -> String {
        fs::read_to_string(self.libraries.folder().join(format!("report-{rank}")))
            .unwrap_or_default()
    }
}

/// Asserts that only uiw's bytes passed between two ranks. The process manager has connections
/// between each host and its own host.
fn between_ranks(capture: Capture, hosts: &Hosts) -> Result<(), String> {
    let switch = hosts.switch_address();
    capture.end().is_uiws_but_for(|end| end.ip() == switch, 4 << 20)
}

/// Without device nodes, UCX transfers messages over TCP. The reports fail the job for this, and
/// the capture shows it.
fn are_hidden_devices_noticed(mpi: &MpiPrograms) {
    let (Some(job), Some(hosts)) = (MpiJob::new(mpi), Hosts::new(mpi.ranks)) else { return };
    let Some(capture) = Capture::of_hosts(&job.libraries, &hosts) else { return };
    let places = (hosts.switch_address(), hosts.places());
    let args: &[_] = if mpi.leave { &["leave"] } else { &[] };
    let mut command = job.command(mpi, places, ("", "--require --json --persona roce"), args);
    // By default, Open MPI uses UCX only with devices.
    command
        .env("OMPI_MCA_opal_common_ucx_tls", "any")
        .env("OMPI_MCA_opal_common_ucx_devices", "any");
    let ended = Running::start(hosts.at_switch(command)).end();
    let said = between_ranks(capture, &hosts).expect_err("the capture shows TCP between ranks");
    assert!(said.contains(" bytes between 10.77.0.1:"), "{said}");
    assert_ne!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.count("is done"), usize::from(mpi.ranks), "{ended:?}");
    for rank in 0..mpi.ranks {
        let said = job.said(rank);
        assert!(said.contains('{'), "no report of rank {rank}: {said:?} {ended:?}");
        assert_eq!(reliable(&parsed(&said)), 0);
    }
}

#[test]
fn hidden_devices_are_noticed() {
    are_hidden_devices_noticed(&OPEN_MPI);
}

/// With UCX 1.13 on TCP, MPICH's MPI_Finalize hangs in most runs, because it waits for peers that
/// wait for the process manager. The ranks therefore exit without it.
#[test]
fn hidden_devices_of_mpich_are_noticed() {
    let mpich = MpiPrograms {
        leave: true,
        options: |own, hosts, agent| {
            // A rank that exits must not end the others.
            std::iter::once("-disable-auto-cleanup".to_owned())
                .chain((MPICH.options)(own, hosts, agent))
                .collect()
        },
        ..MPICH
    };
    are_hidden_devices_noticed(&mpich);
}

fn every_pair_and_collectives(mpi: &MpiPrograms) {
    let (Some(job), Some(hosts)) = (MpiJob::new(mpi), Hosts::new(mpi.ranks)) else { return };
    for persona in mpi.personas {
        let options = format!("--require --json --sysfs --persona {persona}");
        let Some(capture) = Capture::of_hosts(&job.libraries, &hosts) else { return };
        let ended = job.start(mpi, &hosts, &options, &[]).end();
        assert_eq!(between_ranks(capture, &hosts), Ok(()), "{ended:?}");
        let said: Vec<_> = (0..mpi.ranks).map(|rank| job.said(rank)).collect();
        assert_eq!(ended.code, 0, "{ended:?}\n{said:#?}");
        assert_eq!(ended.count("is done"), usize::from(mpi.ranks), "{ended:?}");
        for said in said {
            // Each rank sends at least a mebibyte to each other rank and receives as much from it.
            is_reliable(&parsed(&said), 2 * u64::from(mpi.ranks - 1) * (1 << 20));
        }
    }
}

#[test]
fn open_mpi_verifies_pairs_and_collectives() {
    every_pair_and_collectives(&OPEN_MPI);
}

#[test]
fn open_mpi_on_libfabric_verifies_pairs() {
    every_pair_and_collectives(&OPEN_MPI_OFI);
}

#[test]
fn mpich_verifies_every_pair_and_collectives() {
    every_pair_and_collectives(&MPICH);
}

/// The job ends, and none of its processes remains on any host.
fn a_killed_rank_ends_the_job(mpi: &MpiPrograms) {
    let (Some(job), Some(hosts)) = (MpiJob::new(mpi), Hosts::new(mpi.ranks)) else { return };
    // Without a report, `uiw run` executes the rank in its place. MPICH's process manager ends a
    // job on several hosts when it sees ranks that were ended by a signal. These are the other
    // ranks, which UCX aborts when rank 3 does not answer.
    let ended = job.start(mpi, &hosts, "--sysfs --persona roce", &["3"]).end();
    assert_ne!(ended.code, 0, "{ended:?}");
    assert_eq!(
        (ended.count("rank 3 will kill itself"), ended.count("is done")),
        (1, 0),
        "{ended:?}"
    );
    let mut limit = WaitLimit::new(Duration::from_secs(30));
    while !hosts.processes().is_empty() {
        assert!(!limit.is_over(), "left: {:?}", hosts.processes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn killed_rank_ends_open_mpi_job() {
    a_killed_rank_ends_the_job(&OPEN_MPI);
}

#[test]
fn killed_rank_ends_libfabric_job() {
    a_killed_rank_ends_the_job(&OPEN_MPI_OFI);
}

#[test]
fn killed_rank_ends_mpich_job() {
    a_killed_rank_ends_the_job(&MPICH);
}

/// UCX uses only datagrams, on a path that loses, duplicates and reorders them. UCX's own protocol
/// repeats them, and the ranks compare every byte.
#[test]
fn datagrams_alone_survive_a_lossy_path() {
    let (Some(job), Some(network)) = (MpiJob::new(&OPEN_MPI), Network::path()) else { return };
    let wan = LossyPath::start(&network);
    let places = (network.server_address(), network.places());
    let run = ("UCX_TLS=ud_verbs,self", "--require --json --sysfs --persona roce");
    let ended = Running::start(network.server(job.command(&OPEN_MPI, places, run, &[]))).end();
    let said = [job.said(0), job.said(1)];
    assert_eq!((ended.code, ended.count("is done")), (0, 2), "{ended:?}\n{said:#?}");
    let reports = said.map(|said| parsed(&said));
    for report in &reports {
        assert!(unreliable(report) >= 2 << 20 && reliable(report) == 0, "{report}");
    }
    wan.has_lost_datagrams(&reports);
}
