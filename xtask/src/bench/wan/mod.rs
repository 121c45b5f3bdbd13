//! `cargo xtask bench wan`: emulated long paths, each program beside another one that does the same work.

mod copies;
mod interruptions;
mod path;
mod streams;
mod summary;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use super::programs::cargo_build;
use path::Network;
use summary::{Bar, Figures};

/// What can be asked for.
#[derive(clap::Args)]
#[command(after_help = "\
Needs root, for network namespaces of its own; `rclone` and `tar` for the rows that name them. Both programs of a round meet the same losses by frame: the
emulator starts anew with the same seed. They take turns at coming first. Prints a line a row: the median of the ratios with their range, the bar, and
whether it is reached; of cubic with loss the geometric mean of all ratios with its 95 % interval, behind each ratio. The whole takes five hours:
choose with --only. Exit code 1 when a row is below its bar or could not be measured.")]
pub(crate) struct Options {
    /// Only rows whose name contains this
    #[arg(long, value_name = "SUBSTR")]
    only: Option<String>,
    /// Print the names of the rows
    #[arg(long)]
    list: bool,
    /// Pairs of runs; of a row of whole files three at most
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seeds of each cell of cubic with loss
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// Cells of cubic with loss at a time, each on a path of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,
    /// Seconds of a stream
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// MiB of the file that is copied
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(8..))]
    mebibytes: u32,
    /// Seconds for which the path is cut
    #[arg(long, default_value_t = 300)]
    cut_seconds: u32,
    /// Lines of a Markdown table
    #[arg(long)]
    markdown: bool,
}

/// A row of the table.
struct Row {
    name: String,
    bar: Bar,
    what: What,
}

/// What is measured.
enum What {
    /// A file by `uiw cp` beside rclone.
    File { congestion: &'static str },
    /// The same beside the line.
    FileOfLine { congestion: &'static str },
    /// Many small files beside tar over a bare connection.
    Files,
    /// The path is cut at half.
    Cut,
    /// The server is killed at half.
    Killed,
    /// Writes with TLS beside Writes without.
    Tls,
    /// Writes beside a bare connection.
    Stream { cell: Cell, congestion: &'static str },
    /// All cells of cubic with loss.
    Lossy,
}

/// A path of the matrix.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    /// One way, in milliseconds.
    delay: u32,
    rate: &'static str,
    /// In percent.
    loss: &'static str,
}

const PATHS: [(u32, &str); 4] = [(5, "1Gbit"), (25, "200Mbit"), (50, "200Mbit"), (100, "50Mbit")];
const LOSSES: [&str; 4] = ["0", "0.01", "0.1", "1"];

impl Cell {
    fn all() -> impl Iterator<Item = Self> {
        PATHS.iter().flat_map(|(delay, rate)| LOSSES.map(|loss| Self { delay: *delay, rate, loss }))
    }

    fn name(self) -> String {
        format!("{} ms, {}, {} % loss", 2 * self.delay, self.rate, self.loss)
    }

    /// Arguments of the emulator.
    fn options(self, seed: u32) -> Vec<String> {
        let Self { delay, rate, loss } = self;
        format!("--delay {delay}ms --rate {rate} --loss {loss}% --seed {seed}")
            .split(' ')
            .map(str::to_owned)
            .collect()
    }
}

/// 100 ms, 200 Mbit/s, 0.1 % loss.
const LONG: Cell = Cell { delay: 50, rate: "200Mbit", loss: "0.1" };
/// Bits a second of its line.
const LONG_RATE: f64 = 200e6;

fn rows() -> Vec<Row> {
    let row = |name: &str, bar, what| Row { name: name.to_owned(), bar, what };
    let mut rows = vec![
        row("file, cubic, beside rclone", Bar::AtLeast(1.1), What::File { congestion: "cubic" }),
        row("file, bbr, beside rclone", Bar::AtLeast(1.1), What::File { congestion: "bbr" }),
        row("file, bbr, of the line", Bar::AtLeast(0.85), What::FileOfLine { congestion: "bbr" }),
        row("10,000 files of 4 KiB, beside tar", Bar::AtLeast(0.5), What::Files),
        row("path cut at half, MiB more than the file", Bar::AtMost(64.0), What::Cut),
        row("server killed at half, MiB more than the file", Bar::AtMost(64.0), What::Killed),
        row("TLS beside clear", Bar::AtLeast(0.97), What::Tls),
    ];
    for congestion in ["bbr", "cubic"] {
        for cell in Cell::all().filter(|cell| congestion == "bbr" || cell.loss == "0") {
            let name = format!("{congestion}, {}", cell.name());
            rows.push(Row { name, bar: Bar::AtLeast(0.9), what: What::Stream { cell, congestion } });
        }
    }
    rows.push(row("cubic, all cells with loss", Bar::AtLeast(0.85), What::Lossy));
    rows
}

/// Runs the rows.
pub(crate) fn run(options: &Options) -> ExitCode {
    let rows = match super::chosen(rows(), |row| row.name.clone(), options.only.as_deref(), options.list) {
        Ok(rows) => rows,
        Err(exit) => return exit,
    };
    let bench = match Bench::new(options) {
        Ok(bench) => bench,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::FAILURE;
        }
    };
    if options.markdown {
        println!("| row | bar | median | range | |\n|---|---|---|---|---|");
    }
    let mut all = true;
    for row in rows {
        match bench.measure(&row) {
            Ok(figures) => all &= figures.print(&row.name, row.bar, options.markdown),
            Err(why) => {
                eprintln!("error: {}: {why}", row.name);
                all = false;
            }
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What every row has.
struct Bench<'a> {
    options: &'a Options,
    uiw: PathBuf,
    /// Removed at the end.
    folder: Folder,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options) -> Result<Self, String> {
        let target = crate::workspace::target()?;
        cargo_build(&crate::workspace::root(), &target, &["-p", "uiw-cli"])?;
        let folder = Folder(target.join(format!("bench-wan-{}", std::process::id())));
        std::fs::create_dir_all(&folder.0).map_err(|error| format!("{}: {error}", folder.0.display()))?;
        Ok(Self { options, uiw: target.join("release/uiw"), folder })
    }

    fn measure(&self, row: &Row) -> Result<Figures, String> {
        match row.what {
            What::File { congestion } => self.file(congestion),
            What::FileOfLine { congestion } => self.file_of_line(congestion),
            What::Files => self.files(),
            What::Cut => self.cut(),
            What::Killed => self.killed(),
            What::Tls => self.tls(),
            What::Stream { cell, congestion } => self.stream(cell, congestion),
            What::Lossy => self.lossy(),
        }
    }

    fn network(&self) -> Result<Network, String> {
        Network::new(&self.uiw)
    }

    /// The program, without the `UIW_` variables of the environment; keys of this end are below `home`.
    fn uiw(&self, home: &Path) -> Command {
        let mut command = Command::new(&self.uiw);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("UIW_")) {
            command.env_remove(name);
        }
        command.env("XDG_CONFIG_HOME", home);
        command
    }

    /// A folder that is new, or empty.
    fn fresh(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.folder.0.join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }
}

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A figure of ours and one of theirs in each round. They take turns at coming first.
fn in_turns(
    rounds: u32,
    ours: impl Fn(u32) -> Result<f64, String>,
    theirs: impl Fn(u32) -> Result<f64, String>,
) -> Result<Vec<(f64, f64)>, String> {
    let pair = |round: u32| {
        if round.is_multiple_of(2) {
            let ours = ours(round)?;
            Ok((ours, theirs(round)?))
        } else {
            let theirs = theirs(round)?;
            Ok((ours(round)?, theirs))
        }
    };
    (0..rounds).map(pair).collect()
}

/// Runs a program to its end.
fn output(mut command: Command) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {}", output.status, said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_come_first_in_turns() {
        let order = std::cell::RefCell::new(String::new());
        let figure = |what: char, round: u32| {
            order.borrow_mut().push(what);
            Ok(f64::from(round) + if what == 'o' { 0.0 } else { 0.5 })
        };
        let pairs = in_turns(3, |round| figure('o', round), |round| figure('t', round)).unwrap();
        assert_eq!(
            (pairs, order.into_inner().as_str()),
            (vec![(0.0, 0.5), (1.0, 1.5), (2.0, 2.5)], "ottoot")
        );
        assert_eq!(in_turns(1, |_| Ok(1.0), |_| Err("no".to_owned())), Err("no".to_owned()));
    }

    #[test]
    fn the_matrix_has_each_cell_once() {
        let rows = rows();
        let names: std::collections::BTreeSet<_> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), rows.len());
        let streams = |of: &str| {
            rows.iter()
                .filter(|row| row.name.starts_with(of) && matches!(row.what, What::Stream { .. }))
                .count()
        };
        assert_eq!((streams("bbr"), streams("cubic")), (16, 4));
        assert_eq!(
            LONG.options(7),
            ["--delay", "50ms", "--rate", "200Mbit", "--loss", "0.1%", "--seed", "7"]
        );
    }
}
