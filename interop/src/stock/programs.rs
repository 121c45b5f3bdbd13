//! The two libraries, and commands that run with them.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The library that makes rsockets of sockets, in a folder of the libraries.
const SOCKETS: &str = "rsocket/librspreload.so.1";

/// Names the folder of a finished build that tests use. Without it they run `cargo build`
/// themselves.
pub const BUILT: &str = "INTEROP_BUILT";

/// The user that runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The user that runs the tests.
    Same,
    /// The unprivileged user, with 64 KiB of memory that may be locked: what a program gets in a
    /// container. Only root can become that.
    Nobody,
}

/// Cargo's arguments for everything that is packaged. One command builds all of it, so that Cargo
/// unites the same features whatever a test needs of it, and builds every crate once.
pub const PACKAGES: [&str; 10] =
    ["-p", "uiw-cli", "-p", "uiw-ibverbs", "-p", "uiw-rdmacm", "-p", "uiw-rspreload", "-p", "uiw-python"];

/// The id of the unprivileged user on Debian.
const UNPRIVILEGED_UID: &str = "65534";

/// An ordinary user to run programs as: root can become one, any other user is one already. Nothing
/// where the programs for that are missing; the test is noted as skipped then.
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

/// The two libraries in a folder that all users may read. Removed when dropped.
pub struct Libraries {
    folder: PathBuf,
}

impl Libraries {
    /// The libraries under test, built if need be.
    ///
    /// # Panics
    /// When they cannot be built or copied.
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

    /// A file of the folder: the same file where that is possible, as the libraries are large.
    fn place(&self, from: &Path, name: &str) {
        let to = self.folder.join(name);
        if fs::hard_link(from, &to).is_err() {
            fs::copy(from, &to).expect("a copy of the library");
        }
    }

    /// Folder that contains them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A program that runs with them, as `user`, in English and without settings of the tests' own
    /// environment.
    pub fn command(&self, user: User, program: impl AsRef<OsStr>) -> Command {
        let mut command = match user {
            User::Same => Command::new(program),
            User::Nobody => {
                let mut command = Command::new("prlimit");
                command.args([
                    "--memlock=65536:65536",
                    "setpriv",
                    "--reuid",
                    UNPRIVILEGED_UID,
                    "--regid",
                    UNPRIVILEGED_UID,
                ]);
                command.args(["--clear-groups", "--"]).arg(program);
                command
            }
        };
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("UIW_") {
                command.env_remove(name);
            }
        }
        // A test of counters names a place for them.
        command.env("UIW_COUNTERS", "off");
        command.env("LC_ALL", "C").env("LD_LIBRARY_PATH", &self.folder).current_dir(env::temp_dir());
        command
    }
}

impl Drop for Libraries {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The uiw program.
///
/// # Panics
/// If it cannot be built.
pub fn uiw() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built().join("uiw"))
}

/// The folder with the program, the libraries and the Python module: the one that [`BUILT`] names,
/// or the one in which they are built once in a process. Cargo's own lock orders the builds of
/// parallel tests.
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

/// The folder of the program, if this line of Cargo's messages names the program.
fn program_folder(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let program = Path::new(message["executable"].as_str()?);
    (program.file_name()? == "uiw").then(|| program.parent().expect("the folder of a program").to_owned())
}

/// Compiles a C program against Debian's headers, and links it as any program is. Nothing without a
/// compiler or the headers; the test is noted as skipped then.
///
/// # Panics
/// When the source does not compile.
#[track_caller]
pub fn compile(libraries: &Libraries, source: &Path, flags: &[&str]) -> Option<PathBuf> {
    let compiler = crate::require("cc")?;
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        crate::skip("librdmacm-dev");
        return None;
    }
    let program = libraries.folder.join(source.file_stem().expect("a file name")).with_extension("program");
    let mut command = Command::new(compiler);
    command.arg("-o").arg(&program).arg(source).args(flags).args(["-lrdmacm", "-libverbs", "-lpthread"]);
    let output = command.output().expect("cc");
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    Some(program)
}
