//! Commands that run tests. Several run at the same time, because most tests mostly wait.

use std::io;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{self, ChildEnd};

/// Command that runs tests.
pub(super) struct Job {
    pub(super) name: String,
    pub(super) command: Command,
}

/// Job that has ended, with its output.
pub(super) struct FinishedJob {
    pub(super) name: String,
    pub(super) end: io::Result<ChildEnd>,
    pub(super) lines: Vec<String>,
    pub(super) took: Duration,
}

/// Runs all jobs, `count` at the same time, and starts them in this order. Calls `ended` for each
/// job when it has ended. Jobs that still run at `deadline` are ended.
pub(super) fn run(jobs: Vec<Job>, count: usize, deadline: Instant, ended: impl FnMut(FinishedJob)) {
    let queue = Mutex::new(jobs.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..count {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(job) = next() {
                    // The receiver exists until all senders are dropped.
                    let _ = sender.send(job.run(deadline));
                }
            });
        }
        drop(sender);
        receiver.iter().for_each(ended);
    });
}

impl Job {
    fn run(mut self, deadline: Instant) -> FinishedJob {
        let begun = Instant::now();
        let mut lines = Vec::new();
        let end = if begun < deadline {
            process::run_lines(self.command.stderr(Stdio::piped()), deadline, |line| {
                lines.push(line.to_owned());
            })
        } else {
            Ok(ChildEnd::TimedOut)
        };
        FinishedJob { name: self.name, end, lines, took: begun.elapsed() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: name.to_owned(), command }
    }

    /// Two jobs that wait for each other must run at the same time. A third one runs after them.
    #[test]
    fn concurrent_jobs_keep_lines_together() {
        let folder = std::env::temp_dir().join(format!("uiw-jobs-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let meet = |own: &str, other: &str| {
            let place = folder.display();
            shell(
                own,
                &format!(
                    "echo a; touch {place}/{own}; until [ -e {place}/{other} ]; do sleep 0.01; done; echo b >&2"
                ),
            )
        };
        let jobs = vec![meet("one", "two"), meet("two", "one"), shell("three", "exit 3")];
        let mut all = Vec::new();
        run(jobs, 2, Instant::now() + Duration::from_secs(60), |job| all.push(job));
        std::fs::remove_dir_all(&folder).unwrap();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        // Each of the two outputs has its own order.
        all.iter_mut().for_each(|job| job.lines.sort());
        let ends: Vec<_> = all.iter().map(|job| (job.name.as_str(), job.lines.join(" "))).collect();
        assert_eq!(
            ends,
            [("one", "a b".to_owned()), ("three", String::new()), ("two", "a b".to_owned())]
        );
        assert_eq!(all[1].end.as_ref().unwrap(), &ChildEnd::Failure("exit status: 3".to_owned()));
    }

    #[test]
    fn deadline_ends_all_jobs() {
        let jobs = vec![shell("runs", "echo begun; sleep 60"), shell("waits", "echo begun")];
        let mut all = Vec::new();
        run(jobs, 1, Instant::now() + Duration::from_millis(500), |job| all.push(job));
        assert!(all.iter().all(|job| job.end.as_ref().is_ok_and(|end| *end == ChildEnd::TimedOut)));
        assert_eq!(all.iter().map(|job| job.lines.len()).collect::<Vec<_>>(), [1, 0]);
    }
}
