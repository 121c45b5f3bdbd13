//! `uiw generate`: man pages and shell completions, from the definition of the command line. Hidden: it is for packagers.

use crate::shared::fail::{Exit, Failure, Result};
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Write the man pages of every command, and completions for bash, zsh and fish.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write: DIR/man has the pages, DIR/completions the completions
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    write(&args.folder, command).map_err(|error| {
        Failure::new(Exit::Failed, args.folder.display(), error, "choose a folder that can be written")
    })
}

fn write(folder: &Path, command: clap::Command) -> io::Result<()> {
    let (pages, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    // There is no `uiw help` in the manual: it has what the pages have.
    let mut command = command.disable_help_subcommand(true);
    clap_mangen::generate_to(command.clone(), &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "uiw", &completions)?;
    }
    Ok(())
}
