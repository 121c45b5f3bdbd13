//! Programs on this machine, which run to their end with a time limit, or in the background until
//! dropped.

use crate::{Error, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use uiw_interop::find;

const TICK: Duration = Duration::from_millis(5);

/// Result of a program.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit code. 128 plus the signal for a killed program, 124 if the time limit has passed.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Output {
    /// Returns whether its exit code is 0.
    pub fn is_ok(&self) -> bool {
        self.status == 0
    }

    /// Returns the reason of a failure: the first line that contains "error:", otherwise the last
    /// line of the output, preferably that of standard error.
    pub fn last_line(&self) -> &str {
        let lines =
            || self.out.lines().chain(self.err.lines()).filter(|line| !line.trim().is_empty());
        lines()
            .find(|line| line.contains("error:"))
            .or_else(|| lines().next_back())
            .unwrap_or("no output")
    }
}

/// Output of a program while it runs.
#[derive(Default)]
struct OutputStream {
    text: Mutex<String>,
    grown: Condvar,
}

/// Background program in its own process group, which is killed when dropped, or when this process
/// ends.
pub struct Process {
    child: Child,
    out: Arc<OutputStream>,
    err: Arc<OutputStream>,
    readers: Vec<thread::JoinHandle<()>>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts the program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let what = format!("cannot run {}", command.get_program().to_string_lossy());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(Error::io(what))?;
        let (out, err) = (Arc::<OutputStream>::default(), Arc::<OutputStream>::default());
        let mut readers = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            readers.push(follow(pipe, &out));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.push(follow(pipe, &err));
        }
        Ok(Self { child, out, err, readers, ended: None })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the program is still running.
    pub fn is_running(&mut self) -> bool {
        self.poll().is_none()
    }

    fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Returns what was written to standard output since the last call.
    pub fn news(&mut self) -> String {
        std::mem::take(&mut *self.out.text.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until standard output has a line that contains `what`, and returns the line.
    ///
    /// # Errors
    /// If the program ends or the time limit passes before.
    pub fn wait_for(&mut self, what: &str, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        let out = Arc::clone(&self.out);
        loop {
            let ended = self.poll();
            let text = out.text.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(line) = text.lines().find(|line| line.contains(what)) {
                return Ok(line.to_owned());
            }
            if ended.is_some() || Instant::now() >= deadline {
                let why = if ended.is_some() { "it ended" } else { "nothing came" };
                drop(text);
                return Err(Error::Failed(format!(
                    "waiting for \"{what}\": {why}: {}",
                    self.so_far().last_line()
                )));
            }
            let _ = out.grown.wait_timeout(text, Duration::from_millis(50));
        }
    }

    /// Waits for the end of the program, and kills it when the time limit has passed.
    pub fn finish(mut self, timeout: Duration) -> Output {
        let deadline = Instant::now() + timeout;
        let mut expired = false;
        while self.poll().is_none() {
            if Instant::now() >= deadline {
                expired = true;
                self.kill();
                break;
            }
            thread::sleep(TICK);
        }
        // Processes that the program has left running would keep the pipes open.
        kill_group(self.child.id());
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let mut output = self.so_far();
        output.status = if expired { 124 } else { self.ended.map_or(125, code) };
        output
    }

    /// Kills the program and the processes that it has started at once (SIGKILL).
    pub fn kill(&mut self) {
        kill_group(self.child.id());
        if self.ended.is_none() {
            self.ended = self.child.wait().ok();
        }
    }

    fn so_far(&self) -> Output {
        let text = |stream: &OutputStream| {
            stream.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        Output { status: 0, out: text(&self.out), err: text(&self.err) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn kill_group(id: u32) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // The only possible failure is that the group has ended already.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

fn follow(
    mut pipe: impl Read + Send + 'static,
    stream: &Arc<OutputStream>,
) -> thread::JoinHandle<()> {
    let stream = Arc::clone(stream);
    thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(len @ 1..) = pipe.read(&mut bytes) {
            let mut text = stream.text.lock().unwrap_or_else(PoisonError::into_inner);
            text.push_str(&String::from_utf8_lossy(&bytes[..len]));
            stream.grown.notify_all();
        }
    })
}

/// Runs a program to its end.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, timeout: Duration) -> Result<Output> {
    Ok(Process::start(command)?.finish(timeout))
}

/// Runs a program that must succeed, and returns its standard output.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn must(command: &mut Command, timeout: Duration) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = run(command, timeout)?;
    if output.is_ok() {
        return Ok(output.out);
    }
    Err(Error::Failed(format!("{name} failed ({}): {}", output.status, output.last_line())))
}

/// Checks that all `programs`, each given with its Debian package, are installed.
///
/// # Errors
/// [`Error::Missing`] with the first missing program and its package.
pub fn need(programs: &[(&str, &str)]) -> Result<()> {
    match programs.iter().find(|(program, _)| find(program).is_none()) {
        None => Ok(()),
        Some((program, package)) => {
            Err(Error::Missing(format!("no `{program}` here (Debian package {package})")))
        }
    }
}

/// Returns the last component of a path, for file names and messages.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status() {
        let output = run(&mut sh("echo a; echo b >&2; exit 3"), Duration::from_secs(20)).unwrap();
        assert_eq!((output.status, output.out.as_str(), output.err.as_str()), (3, "a\n", "b\n"));
    }

    #[test]
    fn hanging_program_killed() {
        let output = run(&mut sh("sleep 60 & sleep 60"), Duration::from_millis(100)).unwrap();
        assert_eq!(output.status, 124);
    }

    #[test]
    fn waits_for_a_line() {
        let mut process = Process::start(&mut sh("echo one; echo two; sleep 60")).unwrap();
        assert_eq!(process.wait_for("two", Duration::from_secs(20)).unwrap(), "two");
        assert!(process.wait_for("three", Duration::from_millis(10)).is_err());
    }
}
