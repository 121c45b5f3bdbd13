//! `cargo xtask install`: installs the program, the two C libraries and their other files below a
//! prefix.

mod build;
mod file;
mod layout;
mod list;
mod toolchain;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) use build::{Built, PACKAGES, PYTHON};
use file::{FileContent, InstalledFile};
pub(crate) use layout::Layout;

/// Options of `cargo xtask install`.
#[derive(clap::Args)]
#[command(after_help = "\
Below PREFIX: bin/uiw; libibverbs.so.1, librdmacm.so.1 and rsocket/librspreload with its link, in LIBDIR; man pages, completions, a valgrind
suppression file and the list of what was installed in share/; a systemd unit in lib/systemd/system/. No root, no kernel module:
    PREFIX/bin/uiw run -- ibv_devices
--destdir is for packagers: files go below it, and their contents name PREFIX. The
variable STRIP names the program that strips, for instance one for another architecture.
Exit code 1 when the build fails or the folder cannot be written.")]
pub(crate) struct Options {
    /// Where to install; the folder is created if it does not exist
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Put everything below this folder, as if it were the root
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// The libraries' folder below the prefix [default: lib/uiw for /usr and /usr/local, where the
    /// loader looks in lib; lib otherwise]
    #[arg(long, value_name = "DIR")]
    libdir: Option<PathBuf>,
    /// Install a debug build, which is faster to build and slower to run
    #[arg(long)]
    debug: bool,
    /// Keep symbols and line numbers
    #[arg(long)]
    no_strip: bool,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    crate::process::exit_code(build_and_install(options).map(|()| true))
}

fn build_and_install(options: &Options) -> Result<(), String> {
    let layout =
        Layout::new(&options.prefix, options.libdir.as_deref(), options.destdir.as_deref())?;
    let built = Built::make(options.debug)?;
    install(&layout, &built, !options.no_strip, |path| println!("{}", path.display()))
}

/// Installs a release build without printing the installed files.
pub(crate) fn release(prefix: &Path) -> Result<(), String> {
    let layout = Layout::new(prefix, None, None)?;
    install(&layout, &Built::make(false)?, true, |_| {})
}

/// Path of the list of installed files, below the prefix.
const INSTALLED_LIST: &str = "share/uiw/installed";

/// Installs all files, and removes files of an earlier installation that this one does not have.
fn install(
    layout: &Layout,
    built: &Built,
    strip: bool,
    done: impl Fn(&Path),
) -> Result<(), String> {
    let old = fs::read_to_string(layout.place(INSTALLED_LIST)).unwrap_or_default();
    let old: BTreeSet<_> =
        old.lines().map(PathBuf::from).filter(|path| layout::is_below(path)).collect();
    let files = list::all(layout, built, strip)?;
    let new: BTreeSet<_> =
        files.iter().map(|file| file.path.clone()).chain([INSTALLED_LIST.into()]).collect();
    let write = |paths: &BTreeSet<PathBuf>| {
        let lines = paths.iter().map(|path| format!("{}\n", path.display()));
        put(
            layout,
            &InstalledFile {
                path: INSTALLED_LIST.into(),
                content: FileContent::Text(lines.collect()),
            },
        )
    };
    // The list is written first, so that an interrupted installation can be removed.
    write(&(&old | &new))?;
    for file in &files {
        done(&put(layout, file)?);
    }
    for path in &old - &new {
        let _ = fs::remove_file(layout.place(path));
    }
    write(&new).map(drop)
}

fn put(layout: &Layout, file: &InstalledFile) -> Result<PathBuf, String> {
    let to = layout.place(&file.path);
    file.put(&to).map_err(|error| format!("{}: {error}", to.display()))?;
    Ok(to)
}

/// Installs all files except the list of installed files, because packages have lists of their own.
pub(crate) fn stage(layout: &Layout, built: &Built, strip: bool) -> Result<(), String> {
    list::all(layout, built, strip)?.iter().try_for_each(|file| put(layout, file).map(drop))
}

/// Copies a built library without its symbols.
pub(crate) fn stripped(built: &Built, name: &str, to: &Path) -> Result<(), String> {
    let file =
        InstalledFile { path: PathBuf::new(), content: built.stripped(name, "--strip-unneeded") };
    file.put(to).map_err(|error| format!("{}: {error}", to.display()))
}
