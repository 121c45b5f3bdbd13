//! `cargo xtask install`: the program, the two C libraries and all that belongs to them, below a prefix.

mod build;
mod file;
mod layout;
mod list;
mod manifest;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) use build::{Built, PACKAGES, PYTHON};
pub(crate) use layout::Layout;
use manifest::Manifest;

/// Options of `cargo xtask install`.
#[derive(clap::Args)]
#[command(after_help = "\
Below PREFIX: bin/uiw; libibverbs.so.1, librdmacm.so.1 and rsocket/librspreload with its link, in LIBDIR; man pages, completions, a valgrind
suppression file and the list of what was installed in share/; a systemd unit in lib/systemd/system/. No root, no kernel module:
    PREFIX/bin/uiw run -- ibv_devices
--destdir is for packagers: files go below it, and their contents name PREFIX. --uninstall removes what the list names, and the folders
that were made for it if they are empty. The variable STRIP names the program that strips, for instance one for another architecture.
Exit code 1 when the build fails or the folder cannot be written.")]
pub(crate) struct Options {
    /// Where to install; made if it is not there
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// Put everything below this folder, as if it were the root
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// The libraries' folder below the prefix [default: lib/uiw for /usr and /usr/local, where the loader looks in lib; lib otherwise]
    #[arg(long, value_name = "DIR")]
    libdir: Option<PathBuf>,
    /// Remove what was installed
    #[arg(long, conflicts_with_all = ["debug", "no_strip"])]
    uninstall: bool,
    /// Install what a debug build makes: quicker to build, slower to run
    #[arg(long)]
    debug: bool,
    /// Keep symbols and line numbers
    #[arg(long)]
    no_strip: bool,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    match install_or_remove(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("error: {line}");
            ExitCode::FAILURE
        }
    }
}

fn install_or_remove(options: &Options) -> Result<(), String> {
    let layout = Layout::new(&options.prefix, options.libdir.as_deref(), options.destdir.as_deref())?;
    if options.uninstall {
        return uninstall(&layout, |path| println!("removed {}", path.display()));
    }
    let built = Built::make(options.debug)?;
    install(&layout, &built, !options.no_strip, |path| println!("{}", path.display()))
}

/// Installs what a release build makes, and prints nothing.
pub(crate) fn release(prefix: &Path) -> Result<(), String> {
    let layout = Layout::new(prefix, None, None)?;
    install(&layout, &Built::make(false)?, true, |_| {})
}

/// Puts everything in its place. What an earlier installation has put there and this one does not have is removed.
fn install(layout: &Layout, built: &Built, strip: bool, done: impl Fn(&Path)) -> Result<(), String> {
    let files = list::all(layout, built, strip)?;
    let mut new = Manifest::of(layout, &files);
    let old = Manifest::read(layout)?.unwrap_or_default();
    new.add_folders(&old);
    // First, so that an installation that was interrupted can be removed.
    new.with_files(&old).write(layout)?;
    for file in &files {
        let to = layout.place(&file.path);
        file.put(&to).map_err(|error| format!("{}: {error}", to.display()))?;
        done(&to);
    }
    old.without_files(&new).remove(layout, |_| {})?;
    new.write(layout)
}

/// Puts everything in its place, without the list of it: packages have one of their own.
pub(crate) fn stage(layout: &Layout, built: &Built, strip: bool) -> Result<(), String> {
    for file in list::all(layout, built, strip)? {
        let to = layout.place(&file.path);
        file.put(&to).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

/// Copies a library that was built, without its symbols.
pub(crate) fn stripped(built: &Built, name: &str, to: &Path) -> Result<(), String> {
    let file = file::File { path: PathBuf::new(), content: built.stripped(name, "--strip-unneeded") };
    file.put(to).map_err(|error| format!("{}: {error}", to.display()))
}

fn uninstall(layout: &Layout, done: impl Fn(&Path)) -> Result<(), String> {
    let installed = Manifest::read(layout)?.ok_or_else(|| {
        let list = Manifest::place(layout);
        format!("nothing is installed in {}: no {}", layout.place("").display(), list.display())
    })?;
    installed.remove(layout, done)
}
