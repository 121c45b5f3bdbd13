//! Programs with time limits, and their output.

use super::wait_limit::WaitLimit;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time limit of a program.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for a killed program to end.
const KILLED: Duration = Duration::from_secs(30);
/// Time limit for the output to end after the program.
const OUTPUT_ENDS: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Running program, which is killed when dropped.
pub struct Running {
    child: Child,
    name: String,
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    limit: WaitLimit,
}

/// Program that has ended.
#[derive(Debug)]
pub struct ProcessEnd {
    /// Exit code. For a killed program, 128 plus the number of the signal, as in a shell.
    pub code: i32,
    /// Standard output and standard error, in the order in which the lines arrived.
    pub said: String,
    name: String,
}

impl Running {
    /// Starts a program.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let said = Arc::<Mutex<String>>::default();
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            readers.push(collect(out, &said));
        }
        if let Some(err) = child.stderr.take() {
            readers.push(collect(err, &said));
        }
        Self { child, name, said, readers, limit: WaitLimit::new(TIMEOUT) }
    }

    /// Waits until the program listens on TCP port `port`.
    ///
    /// # Panics
    /// If it ends before that, or takes too long.
    pub fn wait_listening(&mut self, port: u16) {
        self.wait_until("listens", |this| listens(this.child.id(), port));
    }

    /// Waits until the program has a socket on UDP port `port`.
    ///
    /// # Panics
    /// If it ends before that, or takes too long.
    pub fn wait_bound(&mut self, port: u16) {
        self.wait_until("has the UDP port", |this| binds(this.child.id(), port));
    }

    /// Waits until the program has written `text`.
    ///
    /// # Panics
    /// If it ends before that, or takes too long.
    pub fn wait_saying(&mut self, text: &str) {
        self.wait_until(text, |this| this.said().contains(text));
    }

    fn wait_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            if let Some(status) = self.child.try_wait().expect("a child") {
                // The last output may not have been read yet.
                self.join();
                assert!(done(self), "{}: {status} before `{what}`:\n{}", self.name, self.said());
                return;
            }
            assert!(!self.limit.is_over(), "{}: no `{what}` in time:\n{}", self.name, self.said());
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns whether the program has ended.
    ///
    /// # Panics
    /// If its state cannot be queried.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Returns the output so far.
    #[must_use]
    pub fn said(&self) -> String {
        self.said.lock().expect("no reader panics").clone()
    }

    /// Returns the result of the program, or `None` while it runs.
    ///
    /// # Panics
    /// If its state cannot be queried.
    #[must_use]
    pub fn ended(&mut self) -> Option<ProcessEnd> {
        let status = self.child.try_wait().expect("a child")?;
        self.join();
        Some(ProcessEnd { code: code(status), said: self.said(), name: self.name.clone() })
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// If it takes too long.
    #[must_use]
    pub fn end(mut self) -> ProcessEnd {
        loop {
            if let Some(end) = self.ended() {
                return end;
            }
            assert!(!self.limit.is_over(), "{} does not end:\n{}", self.name, self.said());
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Like [`Running::end`], for programs that may hang. If the program has not ended within
    /// `time`, kills it and returns `None`.
    ///
    /// # Panics
    /// If the killed program does not end.
    #[must_use]
    pub fn end_within(mut self, time: Duration) -> Option<ProcessEnd> {
        let mut limit = WaitLimit::new(time);
        while self.child.try_wait().expect("a child").is_none() {
            if limit.is_over() {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        }
        Some(self.end())
    }

    /// Terminates a server that does not end by itself.
    ///
    /// # Panics
    /// If it has ended already, or does not end after it was killed.
    #[must_use]
    pub fn stop(mut self) -> ProcessEnd {
        self.assert_running();
        self.end_or_stop()
    }

    fn assert_running(&mut self) {
        let early = self.child.try_wait().expect("a child");
        assert!(early.is_none(), "{} ended by itself: {early:?}\n{}", self.name, self.said());
    }

    /// Like [`Running::stop`], for programs that may have ended already.
    #[must_use]
    pub fn end_or_stop(mut self) -> ProcessEnd {
        let _ = self.child.kill();
        self.limit = WaitLimit::new(KILLED);
        self.end()
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the processor time of the program in ticks of 10 ms (proc(5): utime and stime of
    /// `/proc/PID/stat`).
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let of_fields = behind_name.split_whitespace().skip(11).take(2);
        of_fields.map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn signal(&self, signal: Signal) {
        let sent = kill_process(Pid::from_child(&self.child), signal);
        assert!(sent.is_ok(), "{} cannot be sent {signal:?}: {sent:?}", self.name);
    }

    /// Interrupts the program like Ctrl-C, and waits for its end.
    ///
    /// # Panics
    /// If it has ended already, or does not end.
    #[must_use]
    pub fn interrupt(mut self) -> ProcessEnd {
        self.assert_running();
        self.signal(Signal::INT);
        self.end()
    }

    /// Waits for the end of the output, which a process that the program has left may keep open.
    fn join(&mut self) {
        let mut limit = WaitLimit::new(OUTPUT_ENDS);
        for reader in self.readers.drain(..) {
            while !reader.is_finished() && !limit.is_over() {
                thread::sleep(LOOK_EVERY);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ProcessEnd {
    /// Asserts that the program has ended with exit code 0.
    ///
    /// # Panics
    /// If it has not; the message contains its output.
    #[track_caller]
    pub fn well(&self) -> &Self {
        assert_eq!(self.code, 0, "{}:\n{}", self.name, self.said);
        self
    }

    /// Returns the number of lines that contain `text`.
    #[must_use]
    pub fn count(&self, text: &str) -> usize {
        self.said.lines().filter(|line| line.contains(text)).count()
    }
}

/// Returns the exit code. For a killed program, 128 plus the number of the signal.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn collect(from: impl Read + Send + 'static, said: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let said = Arc::clone(said);
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            said.lock().expect("no reader panics").push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    })
}

/// Returns whether any process in the network namespace of `process` listens on `port`.
#[must_use]
pub fn listens(process: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|family| {
        let table = fs::read_to_string(format!("/proc/{process}/net/{family}")).unwrap_or_default();
        table.lines().skip(1).any(|line| is_listener(line, port))
    })
}

/// Returns whether any process in the network namespace of `process` has a socket at UDP port
/// `port`.
#[must_use]
pub fn binds(process: u32, port: u16) -> bool {
    ["udp", "udp6"].iter().any(|family| {
        let table = fs::read_to_string(format!("/proc/{process}/net/{family}")).unwrap_or_default();
        table.lines().skip(1).any(|line| local_port(line) == Some(port))
    })
}

/// Parses a line of the table: number, local address and port in hexadecimal, peer, state; 0A is
/// LISTEN.
fn is_listener(line: &str, port: u16) -> bool {
    local_port(line) == Some(port) && line.split_whitespace().nth(3) == Some("0A")
}

fn local_port(line: &str) -> Option<u16> {
    let (_, hex) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
    u16::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_distinguished_from_connections() {
        let line =
            "   0: 0100007F:1D2F 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 17 1";
        assert!(is_listener(line, 0x1D2F));
        assert!(!is_listener(line, 0x1D30));
        assert!(!is_listener(&line.replace(" 0A ", " 01 "), 0x1D2F));
    }

    #[test]
    fn left_process_delays_no_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!"]);
        let ended = Running::start(command).end();
        let left = ended.well().said.trim().parse().ok().and_then(Pid::from_raw);
        kill_process(left.expect("a process id"), Signal::KILL).expect("it still runs");
    }

    #[test]
    fn ends_are_reported() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let ended = Running::start(command).end();
        assert_eq!((ended.code, ended.count("out"), ended.count("err")), (3, 1, 1));
        let mut command = Command::new("sh");
        command.args(["-c", "echo there; exec sleep 600"]);
        let mut running = Running::start(command);
        running.wait_saying("there");
        assert_eq!(running.stop().code, 128 + 9);
    }
}
