//! A second process of this program on this machine, which ends with us.

use crate::shared::fail::{Failure, Result};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the child has to end after its standard input did.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A child that listens.
pub(crate) struct Server {
    child: Child,
    /// Its EOF makes the child exit, even if this process is killed.
    stdin: Option<ChildStdin>,
    address: SocketAddr,
}

impl Server {
    /// Starts this program with `args`; its first line ends with the address where it listens.
    pub(crate) fn start(args: &[&str]) -> Result<Self> {
        let failed = |why: &dyn std::fmt::Display| Failure::local("cannot start a second process", why);
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut child = Command::new(program)
            .args(args)
            // One process writes the capture, and faults are the parent's.
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

impl Drop for Server {
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
