//! The engine of commit 02b5a5a, built on this machine by this compiler: the ceiling that later engines are measured beside.
//!
//! `git archive` writes the sources to `target/baseline-02b5a5a/tree`: no worktree is registered in the repository, and files have the
//! commit's time, so that Cargo builds them once. The program that measures is copied to the examples there.

use super::super::programs;
use std::fs;
use std::path::{Path, PathBuf};

const COMMIT: &str = "02b5a5a";
/// Path of the program in both trees.
const EXAMPLE: &str = "verbs/examples/threads.rs";

/// What defines `QpInit` there.
const QP: &str = "verbs/src/qp/handle.rs";
/// What the program makes a queue pair with, and that commit does not have.
const CONSTRUCTORS: &str = "
impl QpInit {
    /// Queues of the usual depth.
    #[must_use]
    pub fn new(send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>) -> Self {
        let (send_cq, recv_cq) = (Arc::clone(send_cq), Arc::clone(recv_cq));
        Self { send_cq, recv_cq, srq: None, cap: QpCap::default(), signal_all: true, num: None }
    }

    /// Other capacities.
    #[must_use]
    pub fn cap(self, cap: QpCap) -> Self {
        Self { cap, ..self }
    }
}
";

/// The program and the libraries.
pub(super) struct Baseline {
    /// The example `threads` of `uiw-verbs`.
    pub(super) threads: PathBuf,
    /// The folder of the two C libraries.
    pub(super) libraries: PathBuf,
}

impl Baseline {
    /// Builds what is not built yet.
    ///
    /// # Errors
    /// When the repository does not have the commit, or the build fails.
    pub(super) fn build() -> Result<Self, String> {
        let folder = crate::workspace::target()?.join(format!("baseline-{COMMIT}"));
        let (tree, target) = (folder.join("tree"), folder.join("target"));
        if !tree.is_dir() {
            crate::history::export(COMMIT, &tree)?;
        }
        add_constructors(&tree.join(QP))?;
        place(&crate::workspace::root().join(EXAMPLE), &tree.join(EXAMPLE))?;
        eprintln!("xtask: the engine of {COMMIT}:");
        programs::cargo_build(&tree, &target, &["-p", "uiw-verbs", "--example", "threads"])?;
        let libraries = folder.join("lib");
        programs::build_libraries(&tree, &target, &libraries)?;
        Ok(Self { threads: target.join("release/examples/threads"), libraries })
    }
}

/// Adds [`CONSTRUCTORS`] to a file, unless it has them.
fn add_constructors(to: &Path) -> Result<(), String> {
    let at = |error| format!("{}: {error}", to.display());
    let old = fs::read_to_string(to).map_err(at)?;
    if old.ends_with(CONSTRUCTORS) {
        return Ok(());
    }
    fs::write(to, old + CONSTRUCTORS).map_err(at)
}

/// Copies the program, unless the same is there: Cargo would build again. The library had another name then.
fn place(from: &Path, to: &Path) -> Result<(), String> {
    let now = fs::read_to_string(from).map_err(|error| format!("{}: {error}", from.display()))?;
    let new = now.replace("uiw_verbs::", "verbs::");
    if fs::read_to_string(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    fs::write(to, new).map_err(|error| format!("{}: {error}", to.display()))
}
