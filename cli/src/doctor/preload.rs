//! Check whether a program would load uiw's libraries under `uiw run`.

use super::checks::{Check, CheckState};
use crate::run;
use serde_json::json;
use std::env;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "preloading";

/// Program that is checked if the user names none.
const SHELL: &str = "/bin/sh";

/// Checks `program`, or the shell as an example of a program that the loader starts.
pub(super) fn check(program: Option<&Path>) -> Check {
    let program = &find_program(program.unwrap_or(Path::new(SHELL)));
    let of = |check: Check| check.with_subject(&program.display().to_string());
    let libraries = match run::find_libraries() {
        Ok(libraries) => libraries,
        Err(failure) => {
            return of(
                Check::ok(NAME, failure.cause()).with_problem(CheckState::Limited, failure.fix())
            );
        }
    };
    let library = libraries.join(run::LIBRARIES[0]);
    let kind = match FileKind::from_file(program) {
        Ok(kind) => kind,
        Err(error) => {
            return of(Check::ok(NAME, error.to_string())
                .with_problem(CheckState::No, "check the program's path"));
        }
    };
    let details = |is_preloaded| json!({ "library": library, "preloaded": is_preloaded });
    let no = |why: String, fix: &str| {
        of(Check::ok(NAME, format!("{why}: it does not use uiw"))
            .with_details(details(false))
            .with_problem(CheckState::No, fix))
    };
    match kind {
        FileKind::Static => no("it is linked statically".to_owned(), "link it dynamically, or use the crate uiw"),
        FileKind::Other => no("it is no program of this architecture".to_owned(), "for a script name its interpreter"),
        FileKind::Loader(loader) if !is_glibc(&loader) => {
            let why = format!("its loader {} is not glibc's", loader.display());
            no(why, "use a program that is built for glibc")
        }
        FileKind::Loader(_) => match ask_loader(program, &library) {
            Ok(LoaderVerdict::Preloaded) => {
                of(Check::ok(NAME, format!("{} is loaded first", library.display())).with_details(details(true)))
            }
            Ok(LoaderVerdict::Secure) => no(
                "it runs with more rights than its user (setuid, setgid or file capabilities), and the loader ignores LD_PRELOAD".to_owned(),
                "run a copy without these, as the user that it would become, or in a service with AmbientCapabilities= and without them",
            ),
            Ok(LoaderVerdict::NotPreloaded(why)) => no(why, "put the libraries on a file system that programs may be run from (no noexec), readable for this user"),
            Err(error) => no(format!("it cannot be started: {error}"), "check that it may be executed"),
        },
    }
}

fn is_glibc(loader: &Path) -> bool {
    let name = loader.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ld-linux") || name.starts_with("ld64.so")
}

/// Kind of a program file, which determines how the system starts it.
#[derive(Debug, PartialEq, Eq)]
enum FileKind {
    /// A program that this loader starts.
    Loader(PathBuf),
    /// A program without a loader.
    Static,
    /// A script, or a program of another architecture.
    Other,
}

impl FileKind {
    /// Reads the headers of the file (elf(5)).
    fn from_file(program: &Path) -> io::Result<Self> {
        const PT_INTERP: u32 = 3;
        let file = File::open(program)?;
        let mut header = [0; 64];
        match file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Self::Other),
            result => result?,
        }
        let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        // A 64-bit little-endian ELF file.
        if header[..6] != *b"\x7fELF\x02\x01" || read_number(&header, 18, 2) != machine {
            return Ok(Self::Other);
        }
        let [at, size, count] =
            [(32, 8), (54, 2), (56, 2)].map(|(at, len)| read_number(&header, at, len));
        for index in 0..count {
            let mut entry = [0; 56];
            file.read_exact_at(&mut entry, at.saturating_add(index * size))?;
            if read_number(&entry, 0, 4) == u64::from(PT_INTERP) {
                let [at, len] = [8, 32].map(|field| read_number(&entry, field, 8));
                let mut name = vec![0; len.min(4096) as usize];
                file.read_exact_at(&mut name, at)?;
                let name = String::from_utf8_lossy(&name);
                return Ok(Self::Loader(name.trim_end_matches('\0').into()));
            }
        }
        Ok(Self::Static)
    }
}

/// Returns the file that `uiw run` would start: a name without a slash is searched in PATH.
fn find_program(program: &Path) -> PathBuf {
    let is_name = !program.as_os_str().as_encoded_bytes().contains(&b'/');
    let folders = env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
    let found =
        env::split_paths(&folders).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| program.to_owned())
}

/// Returns the little-endian number in the `len` bytes at offset `at`.
fn read_number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Answer of the loader to the question whether it would load the library.
enum LoaderVerdict {
    Preloaded,
    /// The loader does not answer, because the program has more rights than its user.
    Secure,
    NotPreloaded(String),
}

/// Asks the loader whether it would load `library`. Instead of starting the program, the loader
/// lists the libraries, as for ldd(1).
fn ask_loader(program: &Path, library: &Path) -> io::Result<LoaderVerdict> {
    /// Exit code of the loader if it must not list the libraries.
    const SECURE: i32 = 5;
    let mut command = Command::new(program);
    command.env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_PRELOAD", library).stdin(Stdio::null());
    let output = command.output()?;
    let name = library.to_string_lossy();
    let text = String::from_utf8_lossy(&output.stdout);
    if text
        .lines()
        .any(|line| line.trim().starts_with(&*name) || line.contains(&format!("=> {name}")))
    {
        return Ok(LoaderVerdict::Preloaded);
    }
    if output.status.code() == Some(SECURE) {
        return Ok(LoaderVerdict::Secure);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("LD_PRELOAD")).or(said.lines().next());
    Ok(LoaderVerdict::NotPreloaded(
        line.unwrap_or("the loader does not load the library").to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_programs_are_distinguished() {
        let own = env::current_exe().unwrap();
        let FileKind::Loader(loader) = FileKind::from_file(&own).unwrap() else {
            panic!("{own:?}")
        };
        assert!(is_glibc(&loader), "{loader:?}");
        assert!(!is_glibc(Path::new("/lib/ld-musl-x86_64.so.1")));
        // The loader itself needs no loader.
        assert_eq!(FileKind::from_file(&loader).unwrap(), FileKind::Static);
        assert_eq!(FileKind::from_file(Path::new("/proc/self/status")).unwrap(), FileKind::Other);
        assert!(FileKind::from_file(Path::new("/nonexistent")).is_err());
    }
}
