//! `uiw cp` with TLS beside rclone and tar.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use uiw_interop::stock::{Running, free_port, noise};

use super::path::Network;
use super::summary::Figures;
use super::{Bench, Cell, LONG, LONG_RATE, in_turns, output};

/// Files of the row of many.
const FILES: u32 = 10_000;
const FILE_LEN: usize = 4096;
/// Their path: 40 ms, 200 Mbit/s.
const FILES_PATH: Cell = Cell { delay: 20, rate: "200Mbit", loss: "0" };
/// Rounds of whole files at most.
const ROUNDS: u32 = 3;
const FIRST_SEED: u32 = 100;

impl Bench<'_> {
    /// A large file beside rclone with eight streams.
    pub(super) fn file(&self, congestion: &str) -> Result<Figures, String> {
        let network = self.network()?;
        network.set_congestion(congestion)?;
        let source = self.source()?;
        let rounds = self.options.rounds.min(ROUNDS);
        self.beside(
            &network,
            LONG,
            rounds,
            || self.copy(&network, &source, "big", congestion),
            || self.rclone(&network, &source),
        )
    }

    /// A large file beside the line.
    pub(super) fn file_of_line(&self, congestion: &str) -> Result<Figures, String> {
        let network = self.network()?;
        let source = self.source()?;
        let mut seconds = Vec::new();
        for round in 0..self.options.rounds.min(ROUNDS) {
            let _path = network.carry(&LONG.options(FIRST_SEED + round))?;
            seconds.push(self.copy(&network, &source, "big", congestion)?);
        }
        let shares = seconds.iter().map(|took| self.bytes() as f64 * 8.0 / took / LONG_RATE).collect();
        let listed: Vec<String> = seconds.iter().map(|took| format!("{took:.1} s")).collect();
        Ok(Figures::new(shares, listed.join(", ")))
    }

    /// How many times as long as `ours` `theirs` takes on this path, in each round.
    fn beside(
        &self,
        network: &Network,
        path: Cell,
        rounds: u32,
        ours: impl Fn() -> Result<f64, String>,
        theirs: impl Fn() -> Result<f64, String>,
    ) -> Result<Figures, String> {
        let carried = |round, what: &dyn Fn() -> Result<f64, String>| {
            let _path = network.carry(&path.options(FIRST_SEED + round))?;
            what()
        };
        let pairs = in_turns(rounds, |round| carried(round, &ours), |round| carried(round, &theirs))?;
        let listed: Vec<String> =
            pairs.iter().map(|(ours, theirs)| format!("{ours:.1} and {theirs:.1} s")).collect();
        let ratios = pairs.iter().map(|(ours, theirs)| theirs / ours).collect();
        Ok(Figures::new(ratios, listed.join(", ")))
    }

    /// Bytes of the large file.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.options.mebibytes) << 20
    }

    /// The folder with the large file, which is made once.
    pub(super) fn source(&self) -> Result<std::path::PathBuf, String> {
        let folder = self.folder.0.join("source");
        let failed = |error: io::Error| format!("{}: {error}", folder.display());
        if !folder.exists() {
            fs::create_dir_all(&folder).map_err(failed)?;
            let mut file = File::create(folder.join("big")).map_err(failed)?;
            let block = noise(1 << 20);
            for number in 0..u64::from(self.options.mebibytes) {
                // No two blocks are equal.
                file.write_all(&number.to_be_bytes()).map_err(failed)?;
                file.write_all(&block[8..]).map_err(failed)?;
            }
            file.sync_all().map_err(failed)?;
        }
        Ok(folder)
    }

    /// A server of `source`.
    pub(super) fn serve(
        &self,
        network: &Network,
        source: &Path,
        at: &str,
        congestion: &str,
    ) -> Result<Running, String> {
        let home = self.folder.0.join("home");
        let tls = self.tls_file(&home)?;
        let mut server = self.uiw(&home);
        server.args(["--tls", &tls, "serve", "--listen", at, "--congestion", congestion]);
        server.args(["--share", &format!("s={}", source.display())]);
        let mut server = Running::start(network.server(server));
        server.wait_saying("listening on");
        Ok(server)
    }

    /// The client's command.
    pub(super) fn client(
        &self,
        at: &str,
        what: &str,
        target: &Path,
        congestion: &str,
    ) -> Result<Command, String> {
        let home = self.folder.0.join("home");
        let mut client = self.uiw(&home);
        client.args(["--tls", &self.tls_file(&home)?, "cp", "--congestion", congestion]);
        client.arg(format!("{at}:s/{what}")).arg(target);
        Ok(client)
    }

    /// Seconds of `uiw cp`, of which the target is compared with the source.
    fn copy(&self, network: &Network, source: &Path, what: &str, congestion: &str) -> Result<f64, String> {
        let target = self.fresh("target")?;
        let at = format!("{}:{}", network.server_address(), free_port());
        let server = self.serve(network, source, &at, congestion)?;
        let client = self.client(&at, what, &target, congestion)?;
        let begun = Instant::now();
        output(network.client(client))?;
        let took = begun.elapsed().as_secs_f64();
        drop(server);
        same(source, &target)?;
        Ok(took)
    }

    /// Seconds of rclone with eight streams, over webdav.
    fn rclone(&self, network: &Network, source: &Path) -> Result<f64, String> {
        let target = self.fresh("target")?;
        let at = format!("{}:{}", network.server_address(), free_port());
        let config = self.folder.0.join("rclone.conf");
        let rclone = |words: &[&str]| {
            let mut command = Command::new("rclone");
            command.args(words).arg("--config").arg(&config);
            command
        };
        fs::write(&config, "").map_err(|error| format!("{}: {error}", config.display()))?;
        let mut server = rclone(&["serve", "webdav", "--addr", &at]);
        server.arg(source);
        let mut server = Running::start(network.server(server));
        server.wait_saying("erver started");
        let url = format!("http://{at}");
        let mut client = rclone(&["copyto", ":webdav:big", "--webdav-url", &url, "--ignore-checksum"]);
        client.args(["--multi-thread-streams", "8", "--multi-thread-cutoff", "1M"]).arg(target.join("big"));
        let begun = Instant::now();
        output(network.client(client))?;
        let took = begun.elapsed().as_secs_f64();
        drop(server);
        same(source, &target)?;
        Ok(took)
    }

    /// Many small files beside tar at both ends of a bare connection.
    pub(super) fn files(&self) -> Result<Figures, String> {
        let network = self.network()?;
        network.set_congestion("cubic")?;
        let source = self.fresh("files")?;
        let failed = |error: io::Error| format!("{}: {error}", source.display());
        let content = noise(FILE_LEN);
        for number in 0..FILES {
            let folder = source.join(format!("{:02}", number % 100));
            fs::create_dir_all(&folder).map_err(failed)?;
            let content = [&number.to_be_bytes()[..], &content[4..]].concat();
            fs::write(folder.join(format!("{number:05}")), content).map_err(failed)?;
        }
        self.beside(
            &network,
            FILES_PATH,
            self.options.rounds,
            || self.copy(&network, &source, "", "cubic"),
            || self.tar(&network, &source),
        )
    }

    /// Seconds of tar.
    fn tar(&self, network: &Network, source: &Path) -> Result<f64, String> {
        let target = self.fresh("target")?;
        let listener = network.listen()?;
        let begun = Instant::now();
        let to = network.connect(&listener)?;
        let failed = |error: io::Error| format!("tar: {error}");
        let (from, _) = listener.accept().map_err(failed)?;
        let tar = |words: &[&str], folder: &Path| {
            let mut command = Command::new("tar");
            command.arg("-C").arg(folder).args(words);
            command
        };
        let mut pack = tar(&["-cf", "-", "."], source);
        pack.stdout(Stdio::from(OwnedFd::from(from)));
        let packing = thread::spawn(move || pack.status());
        let mut unpack = tar(&["-xf", "-"], &target);
        unpack.stdin(Stdio::from(OwnedFd::from(to)));
        let unpacked = unpack.status().map_err(failed)?;
        let took = begun.elapsed().as_secs_f64();
        let packed = packing.join().map_err(|_| "tar: the thread panicked")?.map_err(failed)?;
        if !packed.success() || !unpacked.success() {
            return Err(format!("tar: {packed}, {unpacked}"));
        }
        same(source, &target)?;
        Ok(took)
    }
}

/// Fails unless every file of `source` is in `target` with the same bytes.
pub(super) fn same(source: &Path, target: &Path) -> Result<(), String> {
    let entries = fs::read_dir(source).map_err(|error| format!("{}: {error}", source.display()))?;
    for entry in entries {
        let from = entry.map_err(|error| error.to_string())?.path();
        let to = target.join(from.file_name().ok_or("a name")?);
        if from.is_dir() {
            same(&from, &to)?;
        } else if !equal(&from, &to)? {
            return Err(format!("{} differs from {}", to.display(), from.display()));
        }
    }
    Ok(())
}

fn equal(a: &Path, b: &Path) -> Result<bool, String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    Ok(read(a)? == read(b)?)
}

/// The longest that a copy may take beyond its cut.
pub(super) const TIME_OUT: Duration = Duration::from_secs(900);
