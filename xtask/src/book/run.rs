//! `cargo xtask book --run`: the commands of the pages, and `docs/newcomer.sh`, in a fresh root that has the packages.

use super::Options;
use super::commands::Commands;
use super::crates::Crates;
use super::root::{self, Root};
use super::script;
use super::transcript::{self, Step};
use super::update::Update;
use crate::dist::{self, Kind};
use crate::process::{self, End};
use crate::report::Tally;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a page's commands may take together.
const CAP: Duration = Duration::from_secs(600);

/// Where the crates are seen in the fresh root, and what is built of them.
const CRATES: &str = "/opt/crates";
const BUILT: &str = "/opt/built";

/// The page that installs uiw itself.
const INSTALLS: &str = "docs/installing.md";

/// Runs the pages that the options name, and the script; the score is the last line on stdout. False when one failed. The pages are below `source`.
pub(super) fn run(source: &Path, commands: &Commands<'_>, options: &Options) -> Result<bool, String> {
    process::handle_interrupts(|| {});
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| name.contains(only));
    let names = commands.pages.keys().map(|path| path.display().to_string());
    // What takes longest first. The script's expectations are the pages'.
    let script = (!options.update).then(|| script::PATH.to_owned());
    let names: Vec<_> = script.into_iter().chain(names).filter(|name| wanted(name)).collect();
    let mut total = Tally::default();
    let set_up = match missing() {
        Some(missing) => Err(missing),
        None => Fresh::new(options.debug)?,
    };
    match &set_up {
        Err(missing) => {
            names.iter().for_each(|name| println!("SKIPPED: {name}: {missing}"));
            total.skipped = names.len() as u64;
        }
        Ok(fresh) => {
            let failed = fresh.run_all(commands, &names, options.update.then_some(source));
            total.failed = failed;
            total.passed = names.len() as u64 - failed;
        }
    }
    println!("{total}");
    Ok(total.failed == 0)
}

/// What a fresh root needs and this machine does not have.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("root".to_owned());
    }
    root::PROGRAMS
        .iter()
        .find(|program| !crate::packages::on_path(program))
        .map(|program| (*program).to_owned())
}

/// The fresh root, and what lies above it.
struct Fresh {
    root: Root,
    work: Work,
    toolchain: PathBuf,
}

/// The folders of this run, removed at the end.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Fresh {
    /// Makes the root and the packages. The inner error is what is missing here.
    fn new(debug: bool) -> Result<Result<Self, String>, String> {
        let folder = crate::workspace::target()?.join("newcomer");
        let work = Work(folder.join(format!("work-{}", std::process::id())));
        fs::create_dir_all(&work.0).map_err(|error| format!("{}: {error}", work.0.display()))?;
        let crates = Crates::package(work.0.join("crates"))?;
        let place = work.0.join("reader").join(&CRATES[1..]);
        let root = match Root::get(&folder).and_then(|root| crates.vendor(&place).map(|()| root)) {
            Ok(root) => root,
            Err(missing) => return Ok(Err(missing)),
        };
        let toolchain = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let fresh = Self { root, work, toolchain: toolchain.trim().into() };
        crates.place(&place, CRATES, BUILT, &fresh.home().join(".cargo/config.toml"))?;
        // The packages are in the reader's folder.
        let packages = dist::make(&fresh.home(), &[Kind::Tarball, Kind::Deb, Kind::Wheel], debug)?;
        let deb = packages.iter().find(|file| file.extension().is_some_and(|kind| kind == "deb"));
        let deb = deb.ok_or("no Debian package was made")?;
        output(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(fresh.installed()))?;
        let script = crate::workspace::root().join(script::PATH);
        let copied = fs::copy(&script, fresh.home().join("newcomer.sh"));
        copied.map_err(|error| format!("{}: {error}", script.display()))?;
        Ok(Ok(fresh))
    }

    fn layer(&self, name: &str) -> PathBuf {
        self.work.0.join(name)
    }

    /// The layer of the package, for pages that do not install it.
    fn installed(&self) -> PathBuf {
        self.layer("installed")
    }

    /// The reader's folder.
    fn home(&self) -> PathBuf {
        self.layer("reader").join("root")
    }

    /// Runs pages, two at a time, as they mostly wait. Gives the number of those that failed. Writes what they print to the pages below `update`.
    fn run_all(&self, commands: &Commands<'_>, names: &[String], update: Option<&Path>) -> u64 {
        let (next, failed) = (AtomicUsize::new(0), AtomicU64::new(0));
        let work = || {
            while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                match self.run(commands, name, update) {
                    Ok(()) => println!("{name}: passed in {:.1} s", started.elapsed().as_secs_f64()),
                    Err(why) => {
                        println!("FAILED: {name}: {why}");
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

    /// Runs a page or the script.
    fn run(&self, commands: &Commands<'_>, name: &str, update: Option<&Path>) -> Result<(), String> {
        let said = self.layer(&name.replace('/', "-"));
        fs::create_dir(&said).map_err(|error| format!("{}: {error}", said.display()))?;
        let read = |file: &str| fs::read_to_string(said.join(file)).unwrap_or_default();
        if name == script::PATH {
            self.shell("./newcomer.sh > /mnt/said 2>&1; echo $? > /mnt/code", &said, true)?;
            script::compare(&commands.script, &read("said"))?;
            let code = read("code");
            return if code.trim() == "0" {
                Ok(())
            } else {
                Err(format!("exit code {code}{}", read("said")))
            };
        }
        let sections = commands.pages.get(Path::new(name)).ok_or("no such page")?;
        let steps: Vec<&Step> = sections.iter().flat_map(|section| &section.steps).collect();
        let mut script = String::new();
        for (number, step) in steps.iter().enumerate() {
            // In the shell itself: a command may begin a job that a later one ends.
            script +=
                &format!("{{ {}}} > /mnt/{number}.said 2>&1; echo $? > /mnt/{number}.code\n", step.script());
        }
        fs::write(said.join("script"), script).map_err(|error| error.to_string())?;
        let end = self.shell("exec bash /mnt/script", &said, name == INSTALLS)?;
        let mut changes = Update::default();
        for (number, step) in steps.iter().enumerate() {
            let (printed, code) = (read(&format!("{number}.said")), read(&format!("{number}.code")));
            let fits = transcript::fits(step.printed(), &printed.lines().collect::<Vec<_>>());
            if !fits && code.trim() == "0" && update.is_some() {
                changes.add(step, &printed)?;
            } else if !fits || code.trim() != "0" {
                let (command, expected) = (step.script(), step.printed().join("\n"));
                let code =
                    if code.is_empty() { format!("{end:?}") } else { format!("exit code {}", code.trim()) };
                return Err(format!("\n$ {command}{code}, expected:\n{expected}\nprinted:\n{printed}"));
            }
        }
        match update {
            Some(source) => changes.write(&source.join(name)),
            None => Ok(()),
        }
    }

    /// Runs a shell in the root, with `said` as its /mnt.
    fn shell(&self, script: &str, said: &Path, is_bare: bool) -> Result<End, String> {
        let place = said.join("root");
        fs::create_dir(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        let (reader, installed) = (self.layer("reader"), self.installed());
        let layers: &[&Path] = if is_bare { &[&reader] } else { &[&reader, &installed] };
        let built = self.layer("built");
        fs::create_dir_all(&built).map_err(|error| format!("{}: {error}", built.display()))?;
        let seen =
            [(said, "mnt", "rw"), (self.toolchain.as_path(), "opt/rust", "ro"), (&built, &BUILT[1..], "rw")];
        let mut command = self.root.command(layers, &place, script, &seen);
        let end = process::run(command.stdout(Stdio::null()), Instant::now() + CAP);
        end.map_err(|error| format!("unshare: {error}"))
    }
}

/// What a command that succeeds prints.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}
