//! `cargo xtask dist`: creates all packages for users from one build.

mod archive;
mod bom;
mod check;
mod crates;
mod deb;
mod emulator;
mod glibc;
mod notices;
mod oci;
mod root;
mod sums;
mod wheel;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use clap::ValueEnum;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::arch::Arch;
use crate::install::{self, Built, Layout};
use crate::process::TempPath;
use crates::Crates;
use emulator::Emulator;
use glibc::GlibcNeeds;
use root::Root;
pub(crate) use sums::hex as sha256;

/// Options of `cargo xtask dist`.
#[derive(clap::Args)]
#[command(after_help = "\
Makes a tarball, a Debian package, a Python wheel, a list of the crates in them (CycloneDX), an OCI image in an archive, and
SHA256SUMS. With cargo-zigbuild (`pip install cargo-zigbuild ziglang` in a virtual environment) the programs run with glibc 2.28 or newer, otherwise with that of this
system; names and dependencies of the packages say which. Times in the packages are SOURCE_DATE_EPOCH, or that of the last commit. The image
needs mmdebstrap, umoci, and Debian's packages.
--target makes packages for another processor. It needs cargo-zigbuild, that processor's binutils (Debian: binutils-aarch64-linux-gnu), and Rust's standard
library for it: where Rust has none (`rustup target add`), Debian's compiler and library are unpacked below the target folder by mmdebstrap.
--check runs what was made: tarball, wheel and Debian package in a fresh Debian made by mmdebstrap, the image by podman. Packages for another processor are
run by QEMU (Debian: qemu-user-static and binfmt-support). A check whose program is absent is skipped by name. Exit code 1 when something failed.")]
pub(crate) struct Options {
    /// Folder for the packages [default: dist in Cargo's target folder, below the name of
    /// --target]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only these
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_values_t = Kind::value_variants().to_vec())]
    only: Vec<Kind>,
    /// Package what a debug build makes: quicker to build, slower to run
    #[arg(long, conflicts_with = "target")]
    debug: bool,
    /// The target, as Rust names it [default: that of this machine]
    #[arg(long, value_name = "TARGET", value_parser = Arch::of_target)]
    target: Option<Arch>,
    /// Run what was made
    #[arg(long)]
    check: bool,
}

/// Kind of package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The files below a folder, to be unpacked in /usr/local or elsewhere
    Tarball,
    /// A Debian package
    Deb,
    /// A Python wheel with the module and the program
    Wheel,
    /// The crates in all of these, as CycloneDX
    Bom,
    /// A small Debian with the package, as an OCI image
    Oci,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", clap::builder::PossibleValue::get_name))
    }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let made = PackageBuild::make(options);
    crate::process::exit_code(
        made.and_then(|dist| if options.check { check::run(&dist) } else { Ok(true) }),
    )
}

/// Creates packages of these kinds in a folder, and returns their paths.
pub(crate) fn make(out: &Path, only: &[Kind], debug: bool) -> Result<Vec<PathBuf>, String> {
    let options = Options {
        out: Some(out.to_path_buf()),
        only: only.to_vec(),
        debug,
        target: None,
        check: false,
    };
    Ok(std::mem::take(&mut PackageBuild::make(&options)?.made)
        .into_iter()
        .map(|(_, file)| file)
        .collect())
}

/// Common properties of the packages, and the packages that exist so far.
struct PackageBuild {
    /// Folder for the packages.
    out: PathBuf,
    /// Folder for temporary files.
    work: TempPath,
    version: String,
    /// Processor for which the packages are built.
    arch: Arch,
    /// Time stamp of all files in the packages.
    time: OffsetDateTime,
    needs: GlibcNeeds,
    crates: Crates,
    /// Licence texts of the crates.
    notices: String,
    made: Vec<(Kind, PathBuf)>,
    /// Emulator that runs programs for the processor, started at the first use.
    emulator: OnceLock<Result<Emulator, String>>,
    /// Root folder with a Debian for the processor, created at the first use.
    root: OnceLock<Result<Root, String>>,
}

impl PackageBuild {
    fn make(options: &Options) -> Result<Self, String> {
        let arch = options.target.unwrap_or_else(Arch::here);
        let built = Built::portable(options.debug, arch)?;
        let target = crate::workspace::target()?;
        let folder =
            if options.target.is_some() { target.join(arch.target()) } else { target.clone() };
        let out = options.out.clone().unwrap_or_else(|| folder.join("dist"));
        let files = ["uiw", "libibverbs.so", "librdmacm.so", "librspreload.so", "lib_uiw.so"]
            .map(|name| built.file(name));
        let crates = Crates::of_packages(arch)?;
        let mut dist = Self {
            work: TempPath::new(target.join(format!("dist-work-{}", std::process::id()))),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            arch,
            time: time()?,
            needs: GlibcNeeds::of(&files)?,
            notices: notices::of(&crates)?,
            crates,
            made: Vec::new(),
            emulator: OnceLock::new(),
            root: OnceLock::new(),
            out,
        };
        fs::create_dir_all(&dist.out)
            .map_err(|error| format!("{}: {error}", dist.out.display()))?;
        fs::create_dir_all(&*dist.work)
            .map_err(|error| format!("{}: {error}", dist.work.display()))?;
        eprintln!(
            "xtask: the programs need glibc 2.{} and {}",
            dist.needs.minor,
            dist.needs.listed()
        );
        if let Some(oldest) = built.glibc().filter(|oldest| dist.needs.minor > *oldest) {
            return Err(format!(
                "the programs were built for glibc 2.{oldest} and need 2.{}",
                dist.needs.minor
            ));
        }
        for kind in
            Kind::value_variants().iter().copied().filter(|kind| options.only.contains(kind))
        {
            let file = dist.make_one(kind, &built).map_err(|error| format!("{kind}: {error}"))?;
            println!("{}", file.display());
            dist.made.push((kind, file));
        }
        let names = dist.made.iter().filter_map(|(_, file)| file.file_name()?.to_str());
        sums::write(&dist.out, names).map_err(|error| format!("SHA256SUMS: {error}"))?;
        Ok(dist)
    }

    /// Ensures that programs for the processor can run. The error names the missing prerequisite.
    fn emulator(&self) -> Result<(), String> {
        let start = || Emulator::start(self.arch);
        self.emulator.get_or_init(start).as_ref().map(drop).map_err(Clone::clone)
    }

    /// Returns a root folder with a Debian for the processor.
    fn root(&self) -> Result<&Root, String> {
        self.emulator()?;
        self.root
            .get_or_init(|| Root::make(self.work.join("root"), self.arch))
            .as_ref()
            .map_err(Clone::clone)
    }

    fn make_one(&self, kind: Kind, built: &Built) -> Result<PathBuf, String> {
        match kind {
            Kind::Tarball => self.tarball(built),
            Kind::Deb => deb::make(self, built),
            Kind::Wheel => wheel::make(self, built),
            Kind::Bom => bom::make(self),
            Kind::Oci => oci::make(self),
        }
    }

    /// Returns the path of the package of a kind, if it was created.
    fn package(&self, kind: Kind) -> Option<&Path> {
        self.made.iter().find(|(made, _)| *made == kind).map(|(_, file)| file.as_path())
    }

    /// Returns the time stamp in seconds since 1970, or 0 if it is earlier.
    fn seconds(&self) -> u64 {
        self.time.unix_timestamp().try_into().unwrap_or(0)
    }

    /// Returns the time stamp in the format of RFC 3339.
    fn timestamp(&self) -> Result<String, String> {
        self.time.format(&Rfc3339).map_err(|error| error.to_string())
    }

    /// Creates a folder with all installed files below `prefix`, and the licences.
    fn stage(&self, built: &Built, name: &str, prefix: &str) -> Result<PathBuf, String> {
        let root = self.work.join(name);
        let layout = Layout::new(Path::new(prefix), None, Some(&root))?;
        install::stage(&layout, built, true)?;
        let notices = layout.place("share/doc/uiw/THIRD-PARTY-LICENSES");
        fs::write(&notices, &self.notices)
            .map_err(|error| format!("{}: {error}", notices.display()))?;
        Ok(root)
    }

    fn tarball(&self, built: &Built) -> Result<PathBuf, String> {
        let name =
            format!("uiw-{}-{}-linux-glibc2.{}", self.version, self.arch.name(), self.needs.minor);
        let root = self.stage(built, "tarball", "/usr/local")?;
        let file = self.out.join(format!("{name}.tar"));
        archive::tar(&root.join("usr/local"), &name, self.seconds(), &file)?;
        archive::gzip(&[file])?;
        Ok(self.out.join(format!("{name}.tar.gz")))
    }
}

/// Returns the time stamp for the files in the packages: SOURCE_DATE_EPOCH if that is set,
/// otherwise the time of the last commit.
fn time() -> Result<OffsetDateTime, String> {
    let parse = |text: &str| OffsetDateTime::from_unix_timestamp(text.trim().parse().ok()?).ok();
    if let Some(value) = env::var_os("SOURCE_DATE_EPOCH") {
        return value
            .to_str()
            .and_then(parse)
            .ok_or_else(|| "SOURCE_DATE_EPOCH: not a number of seconds".to_owned());
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(crate::workspace::root());
    let committed = git.output().ok().filter(|output| output.status.success());
    let committed = committed.and_then(|output| parse(&String::from_utf8_lossy(&output.stdout)));
    // A source tree without history has no commit, so the current time is used.
    Ok(committed.unwrap_or_else(OffsetDateTime::now_utc))
}
