//! `uiw generate`: man pages and shell completions, from the definition of the command line.
//! Hidden: it is for packagers.

use crate::shared::fail::{Exit, Failure, Result};
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Write the man pages of every command, and completions for bash, zsh and fish.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Output folder: pages go to DIR/man, completions to DIR/completions
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    write(&args.folder, command).map_err(|error| {
        Failure::new(
            Exit::Failed,
            args.folder.display(),
            error,
            "choose a folder that can be written",
        )
    })
}

fn write(folder: &Path, command: clap::Command) -> io::Result<()> {
    let (pages, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    // The manual omits `uiw help`, which only repeats the other pages.
    let mut command = command.disable_help_subcommand(true);
    clap_mangen::generate_to(command.clone(), &pages)?;
    command.build();
    mend_page(&pages, "uiw", &command)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "uiw", &completions)?;
    }
    Ok(())
}

/// Replaces the synopsis by the usage line of `--help` and renames the last section to a
/// conventional name, in the page of a command and in the pages of its subcommands.
fn mend_page(pages: &Path, name: &str, command: &clap::Command) -> io::Result<()> {
    let page = pages.join(format!("{name}.1"));
    // Hidden commands have no page.
    if page.exists() {
        let text = fs::read_to_string(&page)?.replacen("\n.SH EXTRA\n", "\n.SH NOTES\n", 1);
        let usage =
            command.clone().render_usage().to_string().replace("Usage: ", "").replace('-', "\\-");
        let (before, rest) = text.split_once("\n.SH SYNOPSIS\n").unwrap_or((&text, ""));
        let after = rest.split_once("\n.SH ").map_or("", |(_, after)| after);
        let usage = usage.lines().map(str::trim).collect::<Vec<_>>().join("\n.br\n");
        fs::write(&page, format!("{before}\n.SH SYNOPSIS\n{usage}\n.SH {after}"))?;
    }
    let subcommands = command.get_subcommands();
    subcommands
        .into_iter()
        .try_for_each(|sub| mend_page(pages, &format!("{name}-{}", sub.get_name()), sub))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn manual_page_has_usage_and_notes() {
        let folder = std::env::temp_dir().join(format!("uiw-generate-{}", std::process::id()));
        write(&folder, crate::Cli::command()).unwrap();
        let page = |name: &str| fs::read_to_string(folder.join("man").join(name)).unwrap();
        let text = page("uiw-cp.1");
        assert!(
            text.contains("\n.SH SYNOPSIS\nuiw cp [OPTIONS] SRC... TARGET\n.SH DESCRIPTION\n"),
            "{text}"
        );
        assert!(text.contains("\n.SH NOTES\n") && !text.contains("EXTRA"), "{text}");
        assert!(page("uiw-key-pin.1").contains("\nuiw key pin [OPTIONS] <FILE> <KEY> <NAME>\n"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
