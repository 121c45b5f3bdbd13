//! What tests of the program share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// The program's output with these arguments.
pub(crate) fn uiw(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uiw")).args(args).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `uiw serve`, killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// Lines that it logs, read by a thread: the server does not wait for a reader.
    log: Receiver<String>,
    /// Those that were waited for.
    seen: String,
}

impl Server {
    /// On a free port of this machine.
    pub(crate) fn start() -> Self {
        Self::with(&["--listen", "127.0.0.1:0"])
    }

    pub(crate) fn with(args: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_uiw")).arg("serve").args(args))
    }

    /// Runs a command that is `uiw serve`.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).trim().to_owned();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, address, log, seen: String::new() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next line of the log with `what` in it.
    pub(crate) fn wait_logged(&mut self, what: &str) -> String {
        loop {
            let line = self
                .log
                .recv()
                .unwrap_or_else(|_| panic!("the server ended before `{what}`: {}", self.seen));
            self.seen += &format!("{line}\n");
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Waits until it has ended in order, and returns what it has logged.
    pub(crate) fn finish(mut self) -> String {
        self.seen.extend(self.log.iter().map(|line| line + "\n"));
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.seen);
        std::mem::take(&mut self.seen)
    }

    /// Ends it in order, and returns what it has logged.
    pub(crate) fn log(self) -> String {
        self.signal(Signal::INT);
        self.finish()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
