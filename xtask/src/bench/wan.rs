//! Emulated long paths. All programs of a round have the same losses, because the emulator is
//! restarted with the same seed.

use super::paths::BenchNetwork;
use super::programs::{Lab, figure, json_object, output, require_programs, rotate, start};
use super::{RatioBar, RatioLine, RatioSpread, TableRow};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use uiw_interop::stock::noise;
use uiw_siw::shell::Process;
use uiw_siw::{Error, Result};

/// Emulated path: one-way delay in milliseconds, rate, and loss in percent.
#[derive(Clone, Copy)]
struct PathCell(u32, &'static str, &'static str);

const PATHS: [(u32, &str); 4] = [(5, "1Gbit"), (25, "200Mbit"), (50, "200Mbit"), (100, "50Mbit")];
const LOSSES: [&str; 4] = ["0", "0.01", "0.1", "1"];
/// Path on which the large file is copied.
const LONG: PathCell = PathCell(50, "200Mbit", "0.1");
/// Rate of [`LONG`] in bits per second.
const LONG_RATE: f64 = 200e6;
/// Path on which many small files are copied.
const SHORTER: PathCell = PathCell(20, "200Mbit", "0");
/// Number of files that are copied over [`SHORTER`].
const FILES: u32 = 10_000;

/// Length in bytes of the head of a journal of `uiw cp`. A record follows for each block of 1 MiB.
const JOURNAL_HEAD: u64 = 40;
/// Length in bytes of a record of the journal.
const JOURNAL_RECORD: u64 = 56;

/// Maximum time in which half of a copy must be done.
const HALF_TIMEOUT: Duration = Duration::from_secs(900);

impl PathCell {
    fn all() -> impl Iterator<Item = Self> {
        PATHS.into_iter().flat_map(|(delay, rate)| LOSSES.map(|loss| Self(delay, rate, loss)))
    }

    fn name(self, congestion: &str) -> String {
        format!("{congestion}, {} ms, {}, {} % loss", 2 * self.0, self.1, self.2)
    }

    /// Options of the emulator.
    fn options(self, seed: u32) -> String {
        format!("--delay {}ms --rate {} --loss {}% --seed {seed}", self.0, self.1, self.2)
    }
}

pub(super) fn rows() -> Vec<TableRow> {
    let mut rows = vec![
        TableRow::new("file, cubic, beside rclone", RatioBar::AtLeast(1.1), |lab| {
            file(lab, "cubic")
        }),
        TableRow::new("file, bbr, beside rclone", RatioBar::AtLeast(1.1), |lab| file(lab, "bbr")),
        TableRow::new("file, bbr, of the line", RatioBar::AtLeast(0.85), file_of_line),
        TableRow::new("10,000 files of 4 KiB, beside tar", RatioBar::AtLeast(0.5), files),
        TableRow::new("path cut at half", RatioBar::AtMost(64.0), |lab| interrupted(lab, true)),
        TableRow::new("server killed at half", RatioBar::AtMost(64.0), |lab| {
            interrupted(lab, false)
        }),
        TableRow::new("write 1M, bbr, with TLS", RatioBar::AtLeast(0.97), tls),
    ];
    for congestion in ["bbr", "cubic"] {
        for cell in PathCell::all().filter(|cell| congestion == "bbr" || cell.2 == "0") {
            let run = move |lab: &Lab| {
                let [ours, bare] = streams(lab, cell, congestion, lab.rounds)?;
                Ok(vec![RatioLine::ratio("of bare TCP", &ours, &bare, MBIT)])
            };
            rows.push(TableRow::new(cell.name(congestion), RatioBar::AtLeast(0.9), run));
        }
    }
    rows.push(TableRow::new("cubic, all paths with loss", RatioBar::AtLeast(0.85), lossy));
    rows
}

/// Unit of rates, which are in bytes per second.
const MBIT: (f64, &str) = (125e3, "Mbit/s");

/// Network with both ends, and the files to copy.
struct WanBench<'a> {
    lab: &'a Lab,
    place: BenchNetwork,
}

impl<'a> WanBench<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let place = BenchNetwork::new(lab, true)?;
        // Otherwise a connection would start with TCP metrics cached from the previous one.
        let no_metrics = || fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
        let network = &place.network;
        network
            .inside_server(no_metrics)
            .and_then(|()| network.inside_client(no_metrics))
            .map_err(failed)?;
        Ok(Self { lab, place })
    }

    /// Sets the congestion control of programs that do not choose one. It is set for the route,
    /// because the default of a namespace is restricted (tcp(7)).
    fn set_congestion(&self, name: &str) -> Result<()> {
        self.place.ip(|_| format!("route replace 10.77.0.0/24 dev veth0 congctl {name}"))
    }

    /// Calls `what` while the emulator carries frames over a path.
    fn carrying(
        &self,
        cell: PathCell,
        seed: u32,
        what: impl FnOnce() -> Result<f64>,
    ) -> Result<f64> {
        let _path = self.place.carry(&cell.options(seed))?;
        what()
    }

    /// Measures Writes of 1 MiB, in bytes per second.
    fn writes(&self, congestion: &str, tls: &str) -> Result<f64> {
        let (at, seconds) = (self.place.address(), self.seconds());
        let client = format!(
            "{tls} perf {at} --json --op write --size 1M --congestion {congestion} --seconds {seconds}"
        );
        self.place.perf(&format!("{tls} serve --listen {at} --congestion {congestion}"), &client)
    }

    /// Measures a bare TCP connection, in bytes per second.
    fn bare(&self, congestion: &str) -> Result<f64> {
        self.place.tcp(&self.place.address(), congestion, "connect", self.seconds(), 1 << 20)
    }

    fn seconds(&self) -> f64 {
        self.lab.seconds(10.0).ceil()
    }

    fn uiw(&self, words: &str) -> Command {
        self.place.command(&self.place.uiw, words)
    }

    /// Returns the TLS options of both ends, which use the same key and accept it. The key is
    /// created on the first call.
    fn tls(&self) -> Result<&'static str> {
        if !self.place.home.join("tls.conf").exists() {
            let public = output(&self.uiw("key new key.pem"))?;
            output(&self.uiw(&format!("key pin peers {} bench", public.trim())))?;
            let text = "mode raw\nkey key.pem\npinned peers\n";
            fs::write(self.place.home.join("tls.conf"), text).map_err(failed)?;
        }
        Ok("--tls tls.conf")
    }

    /// Starts a server that shares the folder `source`.
    fn share(&self, source: &Path, at: &str, congestion: &str) -> Result<Process> {
        let source = source.display();
        let words = format!(
            "{} serve --listen {at} --congestion {congestion} --share s={source}",
            self.tls()?
        );
        self.place.serve(self.uiw(&words), "listening on")
    }

    /// Returns the command that copies `what` from the shared folder.
    fn copying(&self, at: &str, what: &str, target: &Path, congestion: &str) -> Result<Command> {
        let target = target.display();
        Ok(self
            .uiw(&format!("{} cp --congestion {congestion} {at}:s/{what} {target}", self.tls()?)))
    }

    /// Measures `uiw cp` in seconds, and compares the target with the source.
    fn copy(&self, source: &Path, what: &str, congestion: &str) -> Result<f64> {
        let (target, at) = (self.lab.fresh_folder("target")?, self.place.address());
        let _server = self.share(source, &at, congestion)?;
        let client = self.copying(&at, what, &target, congestion)?;
        timed(source, &target, || self.place.run(client).map(drop))
    }

    /// Measures rclone with eight streams over webdav, in seconds.
    fn rclone(&self, source: &Path) -> Result<f64> {
        let (target, at) = (self.lab.fresh_folder("target")?, self.place.address());
        fs::write(self.place.home.join("none"), "").map_err(failed)?;
        let rclone =
            |words: &str| self.place.command("rclone".as_ref(), &format!("--config none {words}"));
        let server =
            format!("serve webdav --log-file /dev/stdout --addr {at} {}", source.display());
        let _server = self.place.serve(rclone(&server), "erver started")?;
        let client = format!(
            "copyto :webdav:big {}/big --webdav-url http://{at} --ignore-checksum --multi-thread-streams 8 --multi-thread-cutoff 1M",
            target.display()
        );
        timed(source, &target, || self.place.run(rclone(&client)).map(drop))
    }

    /// Measures tar at both ends of a bare connection, in seconds.
    fn tar(&self, source: &Path) -> Result<f64> {
        let (target, network) = (self.lab.fresh_folder("target")?, &self.place.network);
        let at = (network.server_address(), 0);
        let listener = network.inside_server(|| TcpListener::bind(at)).map_err(failed)?;
        let to = listener.local_addr().map_err(failed)?;
        let to = network.inside_client(|| TcpStream::connect(to)).map_err(failed)?;
        let (from, _) = listener.accept().map_err(failed)?;
        let tar = |folder: &Path| {
            let mut command = Command::new("tar");
            command.arg("-C").arg(folder);
            command
        };
        timed(source, &target, || {
            // The temporary `Command` is dropped at the end of the statement and closes its copy of
            // the descriptor, so the connection ends when tar exits.
            let packing = tar(source).args(["-cf", "-", "."]).stdout(OwnedFd::from(from)).spawn();
            let unpacked = tar(&target)
                .args(["-xf", "-"])
                .stdin(OwnedFd::from(to))
                .status()
                .map_err(failed)?;
            let packed = packing.and_then(|mut child| child.wait()).map_err(failed)?;
            let is_done = packed.success() && unpacked.success();
            if is_done { Ok(()) } else { Err(Error::Failed(format!("tar: {packed}, {unpacked}"))) }
        })
    }

    /// Returns the folder with the large file, which is created on the first call.
    fn large_file_folder(&self) -> Result<PathBuf> {
        let folder = self.lab.folder.join("source");
        if !folder.exists() {
            let mut file = fs::create_dir_all(&folder)
                .and_then(|()| File::create(folder.join("big")))
                .map_err(failed)?;
            let block = noise(1 << 20);
            for number in 0..u64::from(self.lab.options.mebibytes) {
                // The number makes all blocks different.
                file.write_all(&number.to_be_bytes())
                    .and_then(|()| file.write_all(&block[8..]))
                    .map_err(failed)?;
            }
        }
        Ok(folder)
    }

    /// Returns the length of the large file in bytes.
    fn bytes(&self) -> u64 {
        u64::from(self.lab.options.mebibytes) << 20
    }
}

fn failed(error: io::Error) -> Error {
    Error::Failed(error.to_string())
}

/// Measures a copy in seconds, and checks that source and target are equal afterwards.
fn timed(source: &Path, target: &Path, copy: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    copy()?;
    let took = begun.elapsed().as_secs_f64();
    output(Command::new("diff").arg("--recursive").args([source, target]))?;
    Ok(took)
}

impl WanBench<'_> {
    /// Compares the time of their copy with the time of ours.
    fn beside(
        &self,
        cell: PathCell,
        rounds: u32,
        what: &str,
        ours: impl Fn() -> Result<f64>,
        theirs: impl Fn() -> Result<f64>,
    ) -> Result<Vec<RatioLine>> {
        let carried =
            |round, copy: &dyn Fn() -> Result<f64>| self.carrying(cell, 100 + round, copy);
        let seconds =
            rotate(rounds, &[&|round| carried(round, &ours), &|round| carried(round, &theirs)])?;
        Ok(vec![RatioLine::ratio(what, &seconds[1], &seconds[0], (1.0, "s"))])
    }
}

/// Returns the number of rounds for the large file.
fn file_rounds(lab: &Lab) -> u32 {
    lab.rounds.min(3)
}

fn file(lab: &Lab, congestion: &str) -> Result<Vec<RatioLine>> {
    require_programs(&[("rclone", "rclone")])?;
    let wan = WanBench::new(lab)?;
    wan.set_congestion(congestion)?;
    let source = wan.large_file_folder()?;
    let (ours, theirs) = (|| wan.copy(&source, "big", congestion), || wan.rclone(&source));
    wan.beside(LONG, file_rounds(lab), "time of rclone over ours", ours, theirs)
}

fn file_of_line(lab: &Lab) -> Result<Vec<RatioLine>> {
    let wan = WanBench::new(lab)?;
    let source = wan.large_file_folder()?;
    let took = |round| wan.carrying(LONG, 100 + round, || wan.copy(&source, "big", "bbr"));
    let seconds = rotate(file_rounds(lab), &[&took])?;
    let shares =
        seconds.iter().flatten().map(|seconds| wan.bytes() as f64 * 8.0 / seconds / LONG_RATE);
    Ok(vec![RatioLine::new("of the line", RatioSpread::new(shares), "")])
}

fn files(lab: &Lab) -> Result<Vec<RatioLine>> {
    let wan = WanBench::new(lab)?;
    wan.set_congestion("cubic")?;
    let source = lab.fresh_folder("files")?;
    let content = noise(4096);
    for number in 0..FILES {
        let folder = source.join(format!("{:02}", number % 100));
        let content = [&number.to_be_bytes()[..], &content[4..]].concat();
        let made = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join(number.to_string()), content));
        made.map_err(failed)?;
    }
    let (ours, theirs) = (|| wan.copy(&source, "", "cubic"), || wan.tar(&source));
    wan.beside(SHORTER, lab.rounds, "time of tar over ours", ours, theirs)
}

/// Interrupts a copy at half of the file, by cutting the path or killing the server. Measures the
/// bytes (including headers) that reach the client in addition to those of the file.
fn interrupted(lab: &Lab, is_cut: bool) -> Result<Vec<RatioLine>> {
    let wan = WanBench::new(lab)?;
    let (source, target, at) =
        (wan.large_file_folder()?, lab.fresh_folder("target")?, wan.place.address());
    let mut server = wan.share(&source, &at, "bbr")?;
    let mut path = wan.place.carry(&LONG.options(100))?;
    let mut client = start(&wan.place.network.client(wan.copying(&at, "big", &target, "bbr")?))?;
    let journal = target.join("big.uiw-journal");
    let half = JOURNAL_HEAD + (wan.bytes() >> 20) / 2 * JOURNAL_RECORD;
    let until = Instant::now() + HALF_TIMEOUT;
    while fs::metadata(&journal).map_or(0, |data| data.len()) < half {
        if !client.is_running() || Instant::now() > until {
            let said = client.finish(Duration::ZERO);
            return Err(Error::Failed(format!(
                "half of the file has not arrived: {}",
                said.last_line()
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let mut arrived = 0.0;
    if is_cut {
        arrived = end_emulator(path)?;
        thread::sleep(Duration::from_secs(lab.options.cut_seconds.into()));
        path = wan.place.carry(&LONG.options(101))?;
    } else {
        drop(server);
        thread::sleep(Duration::from_secs(10));
        server = wan.share(&source, &at, "bbr")?;
    }
    let begun = Instant::now();
    let ended = client.finish(HALF_TIMEOUT);
    if !ended.is_ok() {
        return Err(Error::Failed(format!(
            "uiw cp: exit code {}: {}",
            ended.status,
            ended.last_line()
        )));
    }
    let note = format!("done {:.1} s after that", begun.elapsed().as_secs_f64());
    drop(server);
    output(Command::new("diff").arg("--recursive").args([source, target]))?;
    let more = (arrived + end_emulator(path)? - wan.bytes() as f64) / f64::from(1 << 20);
    Ok(vec![RatioLine::new("MiB more than the file", RatioSpread::new([more]), note)])
}

/// Ends an emulator, and returns the number of bytes that reached the client.
fn end_emulator(emulator: Process) -> Result<f64> {
    let id = i32::try_from(emulator.id()).ok().and_then(Pid::from_raw);
    id.and_then(|id| kill_process(id, Signal::INT).ok())
        .ok_or_else(|| Error::Failed("the emulator is gone".to_owned()))?;
    let value = json_object(&emulator.finish(HALF_TIMEOUT).out)?;
    let ways = value["ways"].as_array().into_iter().flatten();
    let way = ways.into_iter().find(|way| way["to"] == "client").cloned().unwrap_or_default();
    if way["missed"] != 0 {
        eprintln!(
            "warning: {} frames arrived faster than the emulator could read them",
            way["missed"]
        );
    }
    figure(&way, "/delivered_bytes")
}

/// Measures Writes and a bare connection on a path, in bytes per second.
fn streams(lab: &Lab, cell: PathCell, congestion: &str, rounds: u32) -> Result<[Vec<f64>; 2]> {
    let wan = WanBench::new(lab)?;
    let ours = |round| wan.carrying(cell, 11 + round, || wan.writes(congestion, ""));
    let bare = |round| wan.carrying(cell, 11 + round, || wan.bare(congestion));
    let rates = rotate(rounds, &[&ours, &bare])?;
    rates.try_into().map_err(|_| Error::Failed("two slices".to_owned()))
}

fn tls(lab: &Lab) -> Result<Vec<RatioLine>> {
    let wan = WanBench::new(lab)?;
    let options = wan.tls()?;
    let rate = |round, tls| wan.carrying(LONG, 11 + round, || wan.writes("bbr", tls));
    let rates = rotate(lab.rounds, &[&|round| rate(round, options), &|round| rate(round, "")])?;
    Ok(vec![RatioLine::ratio("of clear", &rates[0], &rates[1], MBIT)])
}

/// Computes the geometric mean of the ratios of all paths, and its 95 % interval by the normal
/// approximation of the logarithms. The bar applies to the lower bound of the interval.
fn lossy(lab: &Lab) -> Result<Vec<RatioLine>> {
    let mut logs = Vec::new();
    for cell in PathCell::all().filter(|cell| cell.2 != "0") {
        let [ours, bare] = streams(lab, cell, "cubic", lab.options.seeds)?;
        logs.extend(ours.iter().zip(&bare).map(|(ours, bare)| (ours / bare).ln()));
    }
    let (mean, half) = confidence_interval(&logs);
    let [low, mean, high] = [mean - half, mean, mean + half].map(f64::exp);
    let note = format!("of {} pairs; mean {mean:.3}, up to {high:.3}", logs.len());
    Ok(vec![RatioLine::new(
        "of bare TCP, lower bound",
        RatioSpread { median: low, q1: low, q3: high },
        note,
    )])
}

/// Returns the mean, and half of the width of its 95 % interval.
fn confidence_interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance =
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, 1.96 * (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_shrinks_with_more_values() {
        let values = [0.5, 2.0, 0.8, 1.25].map(f64::ln);
        let (mean, half) = confidence_interval(&values);
        assert!(mean.abs() < 1e-12 && half > 0.0);
        let (_, closer) = confidence_interval(&[values, values].concat());
        assert!(closer < half);
    }

    #[test]
    fn matrix_has_each_path_once() {
        let count = |of: &str| rows().iter().filter(|row| row.name.starts_with(of)).count();
        assert_eq!((count("bbr"), count("cubic")), (16, 5));
    }
}
