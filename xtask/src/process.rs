//! Child processes, each in its own process group, which is killed at a deadline together with all
//! processes in it, and temporary files, which are removed even after an interrupt.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Interval at which a waiting loop checks the child.
const TICK: Duration = Duration::from_millis(100);
/// Time to wait for the end of the output after the child has exited. A process that it left
/// running may keep the output open.
const GRACE: Duration = Duration::from_secs(5);

/// Process groups that are currently running, for the interrupt handler.
static RUNNING: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// Existing temporary files and folders, for the interrupt handler.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Result of a child process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    /// Exit code 0.
    Success,
    /// A different exit code, or a signal.
    Failure(String),
    /// The deadline expired, and the whole process group was killed.
    TimedOut,
}

/// Returns the exit code of a command that has succeeded or failed, or could not run at all.
pub(crate) fn exit_code<E: Display>(done: Result<bool, E>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns what a command prints to stdout.
///
/// # Errors
/// Returns the command and all of its output if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}\n{text}{error}", args.join(" "), output.status))
}

/// Runs a command with our stdout and stderr.
///
/// # Errors
/// Returns the program and its status if it fails.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("cannot run {program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
}

fn locked<T>(list: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles interrupts in a thread that kills the running process groups, removes temporary files and
/// what killed tests have left, and exits.
///
/// SIGINT is handled even if the shell has set it to be ignored, as it does for commands in the
/// background. Otherwise, the programs that tests interrupt would ignore it as well.
pub(crate) fn handle_interrupts() {
    let mut handled = vec![SIGINT, SIGTERM];
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // nohup(1) has set this signal of a lost terminal to be ignored.
    if !ignores_hangup(&status) {
        handled.push(SIGHUP);
    }
    match Signals::new(handled) {
        Ok(mut signals) => drop(thread::spawn(move || {
            if signals.forever().next().is_some() {
                end_all();
            }
        })),
        Err(error) => {
            eprintln!("xtask: an interrupt may leave processes and temporary files: {error}");
        }
    }
}

fn end_all() -> ! {
    // The lock is held until the exit, so that no other process is started.
    let running = locked(&RUNNING);
    running.iter().copied().for_each(kill_group);
    // The other threads reap the processes.
    let deadline = Instant::now() + GRACE;
    while running.iter().any(|id| group_exists(*id)) && Instant::now() < deadline {
        thread::sleep(TICK);
    }
    locked(&TEMPORARY).iter().for_each(|path| remove(path));
    uiw_siw::test_vm::sweep();
    std::process::exit(130)
}

/// Returns whether SIGHUP is ignored, according to `/proc/self/status` (proc_pid_status(5)).
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

/// Path of a temporary file or folder, which is removed on drop and on an interrupt.
#[derive(Debug)]
pub(crate) struct TempPath(PathBuf);

impl TempPath {
    pub(crate) fn new(path: PathBuf) -> Self {
        locked(&TEMPORARY).push(path.clone());
        Self(path)
    }
}

impl Deref for TempPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        remove(&self.0);
        locked(&TEMPORARY).retain(|path| *path != self.0);
    }
}

fn remove(path: &Path) {
    let _ = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path));
}

/// Runs a command with our stdout and stderr until it ends or `deadline` expires.
pub(crate) fn run(command: &mut Command, deadline: Instant) -> io::Result<ChildEnd> {
    let mut child = ProcessGroup::spawn(command.stdin(Stdio::null()))?;
    child.wait(deadline)
}

/// Like [`run`], but an interrupt does not kill the command.
pub(crate) fn run_uninterrupted(command: &mut Command, deadline: Instant) -> io::Result<ChildEnd> {
    let mut child = ProcessGroup::spawn(command.stdin(Stdio::null()))?;
    locked(&RUNNING).retain(|id| *id != child.id);
    child.wait(deadline)
}

/// Runs a command and calls `line` for each line of its stdout, and of its stderr if that is a
/// pipe, as soon as the line arrives.
pub(crate) fn run_lines(
    command: &mut Command,
    deadline: Instant,
    mut line: impl FnMut(&str),
) -> io::Result<ChildEnd> {
    let mut group = ProcessGroup::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let lines = group.lines();
    let mut exited: Option<(Instant, ChildEnd)> = None;
    loop {
        match lines.recv_timeout(TICK) {
            Ok(text) => line(&text),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if Instant::now() >= deadline {
            group.kill();
            return Ok(ChildEnd::TimedOut);
        }
        match &exited {
            None => {
                exited = group
                    .child
                    .try_wait()?
                    .map(|status| (Instant::now() + GRACE, child_end(status)));
            }
            Some((until, _)) if Instant::now() >= *until => break,
            Some(_) => {}
        }
    }
    match exited {
        Some((_, end)) => Ok(end),
        None => group.wait(deadline),
    }
}

/// Process group of a child. Its remaining processes are killed on drop.
struct ProcessGroup {
    child: Child,
    id: i32,
}

impl ProcessGroup {
    fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut running = locked(&RUNNING);
        let child = command.process_group(0).spawn()?;
        let id = i32::try_from(child.id()).unwrap_or(0);
        running.push(id);
        Ok(Self { child, id })
    }

    fn lines(&mut self) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel();
        if let Some(stderr) = self.child.stderr.take() {
            let sender = sender.clone();
            thread::spawn(move || read_lines(BufReader::new(stderr), &sender));
        }
        if let Some(stdout) = self.child.stdout.take() {
            thread::spawn(move || read_lines(BufReader::new(stdout), &sender));
        }
        receiver
    }

    fn wait(&mut self, deadline: Instant) -> io::Result<ChildEnd> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(child_end(status));
            }
            if Instant::now() >= deadline {
                self.kill();
                return Ok(ChildEnd::TimedOut);
            }
            thread::sleep(TICK);
        }
    }

    fn kill(&mut self) {
        kill_group(self.id);
        // Reaps the child. It is already dead, so this does not wait.
        let _ = self.child.wait();
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        kill_group(self.id);
        locked(&RUNNING).retain(|id| *id != self.id);
    }
}

fn kill_group(id: i32) {
    if id > 0
        && let Some(pid) = Pid::from_raw(id)
    {
        // The only possible failure is that the group is already gone.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

fn group_exists(id: i32) -> bool {
    Pid::from_raw(id).is_some_and(|pid| test_kill_process_group(pid).is_ok())
}

fn child_end(status: ExitStatus) -> ChildEnd {
    if status.success() { ChildEnd::Success } else { ChildEnd::Failure(status.to_string()) }
}

/// Sends each line to a channel. Bytes that are not UTF-8 are replaced.
fn read_lines(mut from: impl BufRead, to: &mpsc::Sender<String>) {
    let mut bytes = Vec::new();
    while let Ok(1..) = from.read_until(b'\n', &mut bytes) {
        let text = String::from_utf8_lossy(&bytes);
        if to.send(text.trim_end_matches(['\n', '\r']).to_owned()).is_err() {
            return;
        }
        bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn in_secs(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn lines_and_success() {
        let mut lines = Vec::new();
        let end =
            run_lines(&mut shell("echo a; echo b"), in_secs(20), |l| lines.push(l.to_owned()))
                .unwrap();
        assert_eq!(end, ChildEnd::Success);
        assert_eq!(lines, ["a", "b"]);
    }

    #[test]
    fn failure_has_its_code() {
        let end = run(&mut shell("exit 3"), in_secs(20)).unwrap();
        assert_eq!(end, ChildEnd::Failure("exit status: 3".into()));
        assert_eq!(succeed(&mut shell("exit 3")), Err("sh: exit status: 3".into()));
    }

    #[test]
    fn failure_has_its_output() {
        assert_eq!(output(&mut shell("echo a; echo b >&2")), Ok("a\n".into()));
        let failure = output(&mut shell("echo a; echo b >&2; exit 3")).unwrap_err();
        assert_eq!(failure, "sh -c echo a; echo b >&2; exit 3: exit status: 3\na\nb\n");
        let missing = output(&mut Command::new("/no/such/program")).unwrap_err();
        assert!(missing.starts_with("cannot run /no/such/program: "), "{missing}");
    }

    #[test]
    fn ignored_hangup_recognised() {
        let status = |mask: &str| format!("Name:\txtask\nSigIgn:\t{mask}\nSigCgt:\t00000001\n");
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")) && !ignores_hangup(""));
    }

    #[test]
    fn temporary_paths_removed() {
        let folder = std::env::temp_dir().join(format!("uiw-temporary-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = TempPath::new(folder.join("file"));
        fs::write(&*file, "").unwrap();
        let whole = TempPath::new(folder.clone());
        assert!(locked(&TEMPORARY).contains(&folder));
        drop(file);
        assert_eq!(fs::read_dir(&*whole).unwrap().count(), 0);
        drop(whole);
        assert!(!folder.exists() && !locked(&TEMPORARY).contains(&folder));
    }

    #[test]
    fn deadline_ends_grandchildren_too() {
        let started = Instant::now();
        let end = run_lines(
            &mut shell("sleep 60 & sleep 60"),
            started + Duration::from_millis(300),
            |_| {},
        );
        assert_eq!(end.unwrap(), ChildEnd::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
