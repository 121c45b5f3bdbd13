//! A second process of this program, which ends together with this one.

use crate::shared::fail::{Failure, Result};
use std::env;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Time within which the child must end after the end of its standard input.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the file of this program.
pub(crate) fn own_file() -> Result<PathBuf> {
    env::current_exe().map_err(|error| Failure::local("cannot find the program's own file", error))
}

/// A child process that runs a server.
pub(crate) struct ChildServer {
    child: Child,
    /// The child exits on EOF, which it also gets if this process is killed.
    stdin: Option<ChildStdin>,
    address: SocketAddr,
}

impl ChildServer {
    /// Starts this program with `args`. The first line that it prints must end with the address on
    /// which it listens.
    pub(crate) fn start(args: &[&str]) -> Result<Self> {
        let failed =
            |why: &dyn std::fmt::Display| Failure::local("cannot start a second process", why);
        let program = env::current_exe().map_err(|error| failed(&error))?;
        let mut child = Command::new(program)
            .args(args)
            // Only the parent writes the capture and injects faults.
            .env_remove("UIW_PCAP")
            .env_remove("UIW_FAULT")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let stdin = child.stdin.take();
        let mut first_line = String::new();
        let read = match child.stdout.take() {
            Some(stdout) => BufReader::new(stdout).read_line(&mut first_line),
            None => Ok(0),
        };
        let address = first_line.split_whitespace().next_back().and_then(|word| word.parse().ok());
        match (read, address) {
            (Ok(_), Some(address)) => Ok(Self { child, stdin, address }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(&"it did not say where it listens"))
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
