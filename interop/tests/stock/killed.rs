//! Kills `uiw run --require`: neither processes nor files remain, whichever of its two processes is
//! killed.

use crate::reported::run;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uiw_interop::stock::{Libraries, Running, WaitLimit, free_port};

/// Run whose program has started three processes: one in the same session, one in another session,
/// and one whose parent has ended.
struct KilledRun {
    libraries: Libraries,
    running: Running,
    processes: Vec<u32>,
    counters: PathBuf,
}

impl KilledRun {
    #[track_caller]
    fn start() -> Option<Self> {
        uiw_interop::require("rping")?;
        let libraries = Libraries::get();
        let runtime = libraries.folder().join("runtime");
        fs::create_dir(&runtime).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        let script = format!(
            "sleep 1000 & echo process $!; setsid sleep 1000 & echo process $!; \
             (sleep 1000 & echo process $!); echo process $$; echo counters $UIW_COUNTERS; echo all; \
             exec rping -s -a 127.0.0.1 -p {}",
            free_port()
        );
        let mut command = run(&libraries, &["--require"], &["sh", "-c", &script]);
        command.env("XDG_RUNTIME_DIR", &runtime);
        let mut running = Running::start(command);
        running.wait_saying("all");
        let said = running.said();
        let of = |name: &str| {
            said.lines()
                .filter_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let processes = of("process ").iter().map(|number| number.parse().unwrap()).collect();
        let counters = PathBuf::from(&of("counters ")[0]);
        let run = Self { libraries, running, processes, counters };
        run.until("the program publishes counters", || run.files() > 0);
        assert!(run.links() == 1 && run.processes.iter().all(|number| runs(*number)));
        Some(run)
    }

    fn files(&self) -> usize {
        let names = fs::read_dir(&self.counters).into_iter().flatten().flatten();
        names.filter(|entry| entry.path().extension().is_some_and(|end| end == "counters")).count()
    }

    /// Returns the number of links of `uiw stat` to directories of runs.
    fn links(&self) -> usize {
        fs::read_dir(self.libraries.folder().join("runtime/uiw")).map_or(0, Iterator::count)
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let mut limit = WaitLimit::new(Duration::from_secs(30));
        while !done() {
            assert!(!limit.is_over(), "not in time: {what}\n{}", self.running.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn nothing_is_left(&self) {
        for number in &self.processes {
            self.until("its processes end", || !runs(*number));
        }
        self.until("its counters are removed", || !self.counters.exists());
        self.until("its link is removed", || self.links() == 0);
    }
}

/// Returns whether the process exists and has not ended.
fn runs(number: u32) -> bool {
    fs::read_to_string(format!("/proc/{number}/stat")).is_ok_and(|stat| {
        !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
    })
}

#[test]
fn killed_run_leaves_nothing() {
    let Some(run) = KilledRun::start() else { return };
    run.running.signal(Signal::KILL);
    run.nothing_is_left();
}

/// The threads of the first process end one after the other, and it remains the parent of the
/// second process until the last thread has ended. In this test the last one is a thread that gets
/// only the processor time that a busy process leaves.
#[test]
fn killed_run_cleaned_despite_late_thread() {
    const RUNS: usize = 8;
    let allowed = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let processor = allowed.trim().split(['-', ',']).next().unwrap();
    let mut busy = Command::new("taskset");
    busy.args(["-c", processor, "sh", "-c", "echo busy; while :; do :; done"]);
    let mut busy = Running::start(busy);
    busy.wait_saying("busy");
    for _ in 0..RUNS {
        let Some(run) = KilledRun::start() else { return };
        let thread = thread_of(run.running.id(), "uiw-signals").to_string();
        for command in
            [&["taskset", "-c", "-p", processor, &thread][..], &["chrt", "-i", "-p", "0", &thread]]
        {
            let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
            assert!(output.status.success(), "{command:?}: {output:?}");
        }
        run.running.signal(Signal::KILL);
        run.nothing_is_left();
    }
}

fn thread_of(process: u32, name: &str) -> u32 {
    let threads =
        fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|entry| entry.unwrap());
    let named =
        |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
    let found = threads
        .filter(|entry| named(&entry.path()))
        .find_map(|entry| entry.file_name().to_str()?.parse().ok());
    found.unwrap_or_else(|| panic!("no thread {name} of {process}"))
}

/// Kills the process that waits for the program and writes the report.
#[test]
fn run_with_killed_guard_leaves_nothing() {
    let Some(run) = KilledRun::start() else { return };
    let first = run.running.id();
    let second = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    kill(second.trim(), Signal::KILL);
    run.nothing_is_left();
    assert_eq!(run.running.end().code, 137);
}

/// A run that ends normally leaves daemons of the program and their counters alone.
#[test]
fn daemons_outlive_a_run() {
    let libraries = Libraries::get();
    let script = "setsid sleep 1000 >/dev/null 2>&1 & echo process $!";
    let ended = Running::start(run(&libraries, &["--require"], &["sh", "-c", script])).end();
    let number =
        ended.said.lines().find_map(|line| line.strip_prefix("process ")).unwrap().to_owned();
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(Path::new(&format!("/proc/{number}")).exists());
    kill(&number, Signal::TERM);
}

fn kill(process: &str, signal: Signal) {
    let process = process.parse().ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(process, signal).expect("the process exists");
}
