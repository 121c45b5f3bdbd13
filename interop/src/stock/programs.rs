//! The two libraries, and commands that use them.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Path of the preload library that converts sockets to rsockets, below a folder with the
/// libraries.
const SOCKETS: &str = "rsocket/librspreload.so.1";

/// Environment variable with the folder of a finished build for the tests. Without it, they run
/// `cargo build`.
pub const BUILT: &str = "INTEROP_BUILT";

/// User that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// User that runs the tests.
    Same,
    /// Unprivileged user with a limit of 64 KiB for locked memory, as in a container. Only root can
    /// become this user.
    Nobody,
}

/// Arguments of Cargo for everything that is packaged. A single command builds all of it, so that
/// Cargo always uses the same features, and builds every crate once.
pub const PACKAGES: [&str; 10] = [
    "-p",
    "uiw-cli",
    "-p",
    "uiw-ibverbs",
    "-p",
    "uiw-rdmacm",
    "-p",
    "uiw-rspreload",
    "-p",
    "uiw-python",
];

/// Returns `runner` with the program and the arguments of `command` as further arguments, in the
/// environment and the folder of `command`.
pub fn run_by(mut runner: Command, command: &Command) -> Command {
    runner.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => runner.env(name, value),
            None => runner.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        runner.current_dir(folder);
    }
    runner
}

/// Id of the unprivileged user on Debian.
const UNPRIVILEGED_UID: &str = "65534";

/// Returns an ordinary user to run programs as: if the tests run as root, an unprivileged one,
/// otherwise the user of the tests. Returns `None` if root has no program to change the user; the
/// test is then counted as skipped.
#[track_caller]
pub fn ordinary() -> Option<User> {
    use std::os::unix::fs::MetadataExt as _;
    let root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if !root {
        return Some(User::Same);
    }
    crate::require("setpriv")?;
    crate::require("prlimit")?;
    Some(User::Nobody)
}

/// The two libraries, in a folder that all users may read. Removed when dropped.
pub struct Libraries {
    folder: PathBuf,
}

impl Libraries {
    /// Returns the libraries to test, and builds them if necessary.
    ///
    /// # Panics
    /// If they cannot be built or copied.
    pub fn get() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("uiw-stock-{}-{count}", std::process::id()));
        fs::create_dir(&folder).expect("a folder for the libraries");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a readable folder");
        let libraries = Self { folder };
        fs::create_dir(libraries.folder.join("rsocket")).expect("a folder for the preload library");
        let built = built();
        libraries.place(&built.join("libibverbs.so"), "libibverbs.so.1");
        libraries.place(&built.join("librdmacm.so"), "librdmacm.so.1");
        libraries.place(&built.join("librspreload.so"), SOCKETS);
        libraries
    }

    /// Links a file into the folder if possible, because the libraries are large; otherwise copies
    /// it.
    fn place(&self, from: &Path, name: &str) {
        let to = self.folder.join(name);
        if fs::hard_link(from, &to).is_err() {
            fs::copy(from, &to).expect("a copy of the library");
        }
    }

    /// Returns the folder that contains the libraries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the command of a program that uses the libraries, as `user`, in English, and without
    /// settings from the environment of the tests.
    pub fn command(&self, user: User, program: impl AsRef<OsStr>) -> Command {
        let mut command = match user {
            User::Same => Command::new(program),
            User::Nobody => {
                let mut command = Command::new("prlimit");
                command.args(["--memlock=65536:65536", "setpriv", "--reuid", UNPRIVILEGED_UID]);
                command.args(["--regid", UNPRIVILEGED_UID, "--clear-groups", "--"]).arg(program);
                command
            }
        };
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("UIW_") {
                command.env_remove(name);
            }
        }
        // Tests of counters set a directory for them.
        command.env("UIW_COUNTERS", "off");
        command
            .env("LC_ALL", "C")
            .env("LD_LIBRARY_PATH", &self.folder)
            .current_dir(env::temp_dir());
        command
    }
}

impl Drop for Libraries {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the path of the program `uiw`.
///
/// # Panics
/// If it cannot be built.
pub fn uiw() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built().join("uiw"))
}

/// Returns the folder with the program, the libraries and the Python module. This is either the
/// folder that [`BUILT`] names, or the one in which the first call of the process builds them.
/// Cargo's own lock serializes the builds of concurrent tests.
///
/// # Panics
/// If they cannot be built.
pub fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| env::var_os(BUILT).map_or_else(build, PathBuf::from))
}

/// Builds all packages and returns the folder that they are in.
fn build() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--message-format=json"]).args(PACKAGES);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(output.status.success(), "cargo build: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().find_map(program_folder).expect("the program among the files that cargo made")
}

/// Returns the folder of the program, if this line of Cargo's messages contains its path.
fn program_folder(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let program = Path::new(message["executable"].as_str()?);
    (program.file_name()? == "uiw")
        .then(|| program.parent().expect("the folder of a program").to_owned())
}

/// Compiles a C program against Debian's headers, and links it like any other program. Returns
/// `None` without a compiler or the headers; the test is then counted as skipped.
///
/// # Panics
/// If the source does not compile.
#[track_caller]
pub fn compile(libraries: &Libraries, source: &Path, flags: &[&str]) -> Option<PathBuf> {
    let compiler = crate::require("cc")?;
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        crate::skip("librdmacm-dev");
        return None;
    }
    let program =
        libraries.folder.join(source.file_stem().expect("a file name")).with_extension("program");
    let mut command = Command::new(compiler);
    command.arg("-o").arg(&program).arg(source).args(flags).args([
        "-lrdmacm",
        "-libverbs",
        "-lpthread",
    ]);
    let output = command.output().expect("cc");
    assert!(
        output.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Some(program)
}
