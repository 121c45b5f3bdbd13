//! The program, its server, and directories of one test.

use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory, removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let number = getrandom::u64().unwrap();
        let path =
            std::env::temp_dir().join(format!("uiw-cp-test-{}-{number:x}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A new directory in it.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory of a test may be read-only.
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(&self.0).status();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program in a directory, with the keys of that directory alone. It runs as the owner of the
/// directory.
pub(crate) fn command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uiw"));
    command
        .current_dir(directory)
        .stdin(Stdio::null())
        .env("XDG_CONFIG_HOME", directory.join("config"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let owner = directory.metadata().unwrap().uid();
    if owner != rustix::process::geteuid().as_raw() {
        command.uid(owner);
    }
    command
}

/// `uiw cp --json`, and its last object.
pub(crate) fn copied(directory: &Path, arguments: &[&str]) -> Value {
    summary(&command(directory).args(["cp", "--json"]).args(arguments).output().unwrap())
}

/// The last object of a transfer that succeeded.
pub(crate) fn summary(output: &Output) -> Value {
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

/// An exit code, and an error and a hint at the end of standard error.
pub(crate) fn fails(directory: &Path, arguments: &[&str], code: i32, says: &str) {
    let output = command(directory).arg("cp").args(arguments).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    let lines: Vec<_> = error.lines().collect();
    let [.., last, hint] = lines[..] else { panic!("{error}") };
    assert!(last.starts_with("error: ") && hint.starts_with("hint: "), "{error}");
    assert!(error.contains(says), "{arguments:?}: {error}");
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `uiw serve`, killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    log: PathBuf,
}

impl Server {
    /// On a free port of this machine.
    pub(crate) fn start(directory: &Path, arguments: &[impl AsRef<OsStr>]) -> Self {
        Self::listening("127.0.0.1:0", directory, arguments)
    }

    pub(crate) fn listening(
        address: &str,
        directory: &Path,
        arguments: &[impl AsRef<OsStr>],
    ) -> Self {
        let mut command = command(directory);
        let log =
            File::options().append(true).create(true).open(directory.join("serve.log")).unwrap();
        command.args(["serve", "--listen", address]).args(arguments).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").unwrap().trim().to_owned();
        Self { child, address, log: directory.join("serve.log") }
    }

    /// Waits for a line of the log that has all of `parts`.
    pub(crate) fn wait_logged(&self, parts: &[&str]) -> String {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let log = std::fs::read_to_string(&self.log).unwrap();
            if let Some(line) =
                log.lines().find(|line| parts.iter().all(|part| line.contains(part)))
            {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline, "no line with {parts:?}: {log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it without any order, and returns its address for another one.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::take(&mut self.address)
    }

    pub(crate) fn is_up(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that no two files or blocks have in common.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out
}
