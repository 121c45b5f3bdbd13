//! `cargo xtask book --run`: runs the commands of the pages, and `docs/newcomer.sh`, in a fresh
//! root with the packages.

use super::Options;
use super::commands::Commands;
use super::crates::Crates;
use super::root::{self, Root};
use super::script;
use super::transcript::{self, Section, Step};
use crate::dist::{self, Kind};
use crate::process::{self, ChildEnd, TempPath, output};
use crate::report::Tally;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time that all commands of a page together may take.
const CAP: Duration = Duration::from_secs(600);

/// Folder in the fresh root with the crates.
const CRATES: &str = "/opt/crates";
const BUILT: &str = "/opt/built";

/// Page that installs uiw itself, like the script.
const INSTALLS: &str = "docs/installing.md";

/// Runs the selected pages and the script. The last line on stdout is the number of passed and
/// failed ones. Returns `false` if one failed.
pub(super) fn run(commands: &Commands, options: &Options) -> Result<bool, String> {
    let wanted = |name: &&Path| {
        options.only.as_deref().is_none_or(|only| name.display().to_string().contains(only))
    };
    let mut names: Vec<&Path> = commands.keys().map(PathBuf::as_path).filter(wanted).collect();
    // The script takes the longest, so it starts first.
    names.sort_by_key(|name| *name != Path::new(script::PATH));
    if names.is_empty() {
        return Err(
            "--only selects nothing: no page with commands has its text in the name".to_owned()
        );
    }
    let mut total = Tally::default();
    let set_up = match missing() {
        Some(missing) => Err(missing),
        None => FreshRoot::new(options.debug)?,
    };
    match &set_up {
        Err(missing) => {
            names.iter().for_each(|name| println!("SKIPPED: {}: {missing}", name.display()));
            total.skipped = names.len() as u64;
        }
        Ok(fresh) => {
            let failed = fresh.run_all(commands, &names);
            total.failed = failed;
            total.passed = names.len() as u64 - failed;
        }
    }
    println!("{total}");
    Ok(total.failed == 0)
}

/// Returns a program or right that a fresh root needs and this machine does not have.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("root".to_owned());
    }
    root::PROGRAMS
        .iter()
        .find(|program| !crate::packages::on_path(program))
        .map(|program| (*program).to_owned())
}

/// Fresh root, with the folders that its overlays use.
struct FreshRoot {
    root: Root,
    /// Folders of this run.
    work: TempPath,
    toolchain: PathBuf,
}

impl FreshRoot {
    /// Creates the root and the packages. The inner error names a missing prerequisite.
    fn new(debug: bool) -> Result<Result<Self, String>, String> {
        let folder = crate::workspace::target()?.join("newcomer");
        let work = TempPath::new(folder.join(format!("work-{}", std::process::id())));
        fs::create_dir_all(&*work).map_err(|error| format!("{}: {error}", work.display()))?;
        let crates = Crates::package(work.join("crates"))?;
        let place = work.join("reader").join(&CRATES[1..]);
        let root = match Root::get(&folder).and_then(|root| crates.vendor(&place).map(|()| root)) {
            Ok(root) => root,
            Err(missing) => return Ok(Err(missing)),
        };
        let toolchain = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let fresh = Self { root, work, toolchain: toolchain.trim().into() };
        crates.place(&place, CRATES, BUILT, &fresh.home().join(".cargo/config.toml"))?;
        // The packages are in the home folder of the reader.
        let packages = dist::make(&fresh.home(), &[Kind::Tarball, Kind::Deb, Kind::Wheel], debug)?;
        let deb = packages.iter().find(|file| file.extension().is_some_and(|kind| kind == "deb"));
        let deb = deb.ok_or("no Debian package was made")?;
        output(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(fresh.installed()))?;
        Ok(Ok(fresh))
    }

    fn layer(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// Returns the layer with the installed package, for pages that do not install it.
    fn installed(&self) -> PathBuf {
        self.layer("installed")
    }

    /// Returns the home folder of the reader.
    fn home(&self) -> PathBuf {
        self.layer("reader").join("root")
    }

    /// Runs the pages, two at the same time, because they mostly wait. Returns the number of pages
    /// that failed.
    fn run_all(&self, commands: &Commands, names: &[&Path]) -> u64 {
        let (next, failed) = (AtomicUsize::new(0), AtomicU64::new(0));
        let work = || {
            while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                match self.run(&commands[*name], name) {
                    Ok(()) => {
                        let seconds = started.elapsed().as_secs_f64();
                        println!("{}: passed in {seconds:.1} s", name.display());
                    }
                    Err(why) => {
                        println!("FAILED: {}: {why}", name.display());
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(work);
            work();
        });
        failed.into_inner()
    }

    /// Runs the steps of a page or of the script.
    fn run(&self, sections: &[Section], name: &Path) -> Result<(), String> {
        let said = self.layer(&name.display().to_string().replace('/', "-"));
        fs::create_dir(&said).map_err(|error| format!("{}: {error}", said.display()))?;
        let read = |file: &str| fs::read_to_string(said.join(file)).unwrap_or_default();
        let steps: Vec<&Step> = sections.iter().flat_map(|section| &section.steps).collect();
        let mut script = String::new();
        for (number, step) in steps.iter().enumerate() {
            // The commands run in the shell itself, because a command may start a job that a later
            // one ends.
            script += &format!(
                "{{ {}}} > /mnt/{number}.said 2>&1; echo $? > /mnt/{number}.code\n",
                step.script()
            );
        }
        fs::write(said.join("script"), script).map_err(|error| error.to_string())?;
        let is_bare = [INSTALLS, script::PATH].iter().any(|path| name == Path::new(path));
        let end = self.shell("exec bash /mnt/script", &said, is_bare)?;
        for (number, step) in steps.iter().enumerate() {
            let (printed, code) =
                (read(&format!("{number}.said")), read(&format!("{number}.code")));
            let output_matches =
                transcript::output_matches(step.printed(), &printed.lines().collect::<Vec<_>>());
            if !output_matches || code.trim() != "0" {
                let (command, expected) = (step.script(), step.printed().join("\n"));
                let code = if code.is_empty() {
                    format!("{end:?}")
                } else {
                    format!("exit code {}", code.trim())
                };
                return Err(format!(
                    "\n$ {command}{code}, expected:\n{expected}\nprinted:\n{printed}"
                ));
            }
        }
        Ok(())
    }

    /// Runs a shell in the root, in which the folder `said` is mounted as /mnt.
    fn shell(&self, script: &str, said: &Path, is_bare: bool) -> Result<ChildEnd, String> {
        let place = said.join("root");
        fs::create_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        let (reader, installed) = (self.layer("reader"), self.installed());
        let layers: &[&Path] = if is_bare { &[&reader] } else { &[&reader, &installed] };
        let built = self.layer("built");
        fs::create_dir_all(&built).map_err(|error| format!("{}: {error}", built.display()))?;
        let seen = [
            (said, "mnt", "rw"),
            (self.toolchain.as_path(), "opt/rust", "ro"),
            (&built, &BUILT[1..], "rw"),
        ];
        let mut command = self.root.command(layers, &place, script, &seen);
        let end = process::run(command.stdout(Stdio::null()), Instant::now() + CAP);
        end.map_err(|error| format!("unshare: {error}"))
    }
}
