//! Writes of `uiw perf` beside a bare TCP connection, over every path; and with TLS beside without.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_tcp_congestion;
use serde_json::Value;
use uiw_interop::stock::{Running, free_port};

use super::path::Network;
use super::summary::Figures;
use super::{Bench, Cell, LONG, in_turns, output};

/// Bytes of a bare write.
const BLOCK: usize = 1 << 20;
/// The seeds of a row.
const FIRST_SEED: u32 = 11;

impl Bench<'_> {
    /// Alternating pairs on one path.
    pub(super) fn stream(&self, cell: Cell, congestion: &str) -> Result<Figures, String> {
        let pairs = self.pairs(cell, congestion, self.options.rounds)?;
        let note = note(&pairs);
        Ok(Figures::new(ratios(&pairs), note))
    }

    /// Every cell of cubic with loss, with every seed.
    pub(super) fn lossy(&self) -> Result<Figures, String> {
        let cells: Vec<Cell> = Cell::all().filter(|cell| cell.loss != "0").collect();
        let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let cell = || -> Result<(), String> {
            while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                let ratios = ratios(&self.pairs(*cell, "cubic", self.options.seeds)?);
                let listed: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
                println!("    cubic, {}: {}", cell.name(), listed.join(" "));
                all.lock().unwrap_or_else(PoisonError::into_inner).extend(ratios);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.options.jobs).map(|_| scope.spawn(cell)).collect();
            jobs.into_iter().try_for_each(|job| job.join().map_err(|_| "a cell panicked")?)
        })?;
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        let count = all.len();
        Ok(Figures::of_many(all, format!("{count} pairs")))
    }

    /// Our rate and the bare one of each seed, in bits a second.
    fn pairs(&self, cell: Cell, congestion: &str, count: u32) -> Result<Vec<(f64, f64)>, String> {
        let network = self.network()?;
        let home = self.fresh(&format!("perf-{congestion}-{}", cell.name()))?;
        let ours = |round| -> Result<f64, String> {
            let _path = network.carry(&cell.options(FIRST_SEED + round))?;
            self.perf(&network, &home, congestion, &[])
        };
        let bare = |round| -> Result<f64, String> {
            let _path = network.carry(&cell.options(FIRST_SEED + round))?;
            bare(&network, congestion, Duration::from_secs(self.options.seconds.into()))
        };
        in_turns(count, ours, bare)
    }

    /// Bits a second of Writes of 1 MiB.
    fn perf(&self, network: &Network, home: &Path, congestion: &str, tls: &[&str]) -> Result<f64, String> {
        let address = format!("{}:{}", network.server_address(), free_port());
        let mut server = self.uiw(&home.join("server"));
        server.args(tls).args(["serve", "--listen", &address, "--congestion", congestion]);
        let mut server = Running::start(network.server(server));
        server.wait_saying("listening on");
        let mut client = self.uiw(&home.join("client"));
        client.args(tls).args(["perf", &address, "--json", "--op", "write", "--size", "1M"]);
        client.args(["--congestion", congestion, "--seconds", &self.options.seconds.to_string()]);
        let said = output(network.client(client))?.stdout;
        let value: Value = serde_json::from_slice(&said).map_err(|error| error.to_string())?;
        let rate = value["bytes_per_second"].as_f64();
        rate.map(|rate| rate * 8.0).ok_or_else(|| format!("no rate: {value}"))
    }

    /// Writes with TLS beside Writes without, on the long path.
    pub(super) fn tls(&self) -> Result<Figures, String> {
        let network = self.network()?;
        let home = self.fresh("tls")?;
        let config = self.tls_file(&home)?;
        let rate = |round, tls: &[&str]| -> Result<f64, String> {
            let _path = network.carry(&LONG.options(FIRST_SEED + round))?;
            self.perf(&network, &home, "bbr", tls)
        };
        let encrypted = ["--tls", config.as_str()];
        let pairs = in_turns(self.options.rounds, |round| rate(round, &encrypted), |round| rate(round, &[]))?;
        let note = note(&pairs);
        Ok(Figures::new(ratios(&pairs), note))
    }

    /// A configuration of both ends with one key, which each accepts; made once in a folder.
    pub(super) fn tls_file(&self, home: &Path) -> Result<String, String> {
        let file = home.join("tls.conf");
        let shown = file.display().to_string();
        if file.exists() {
            return Ok(shown);
        }
        fs::create_dir_all(home).map_err(|error| format!("{}: {error}", home.display()))?;
        let key = |words: &[&str]| {
            let mut command = self.uiw(home);
            command.current_dir(home).arg("key").args(words);
            output(command).map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let public = key(&["new", "key.pem"])?;
        key(&["pin", "peers", &public, "bench"])?;
        fs::write(&file, "mode raw\nkey key.pem\npinned peers\n")
            .map_err(|error| format!("{shown}: {error}"))?;
        Ok(shown)
    }
}

fn ratios(pairs: &[(f64, f64)]) -> Vec<f64> {
    pairs.iter().map(|(ours, theirs)| ours / theirs).collect()
}

/// The means of both, for people.
fn note(pairs: &[(f64, f64)]) -> String {
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64 / 1e6;
    format!("{:.1} beside {:.1} Mbit/s", mean(|pair| pair.0), mean(|pair| pair.1))
}

/// Bits a second of a bare connection, from its first byte until the receiver has said that it has the last one.
fn bare(network: &Network, congestion: &str, time: Duration) -> Result<f64, String> {
    let listener = network.listen()?;
    let failed = |error: io::Error| format!("a bare connection: {error}");
    let mut to = network.connect(&listener)?;
    set_tcp_congestion(&to, congestion).map_err(|error| failed(error.into()))?;
    let receiver = thread::spawn(move || receive(&listener));
    let sent = send(&mut to, time);
    let received = receiver.join().map_err(|_| "the receiver panicked")?;
    let (bytes, elapsed) = sent.map_err(failed)?;
    received.map_err(failed)?;
    Ok(bytes as f64 * 8.0 / elapsed.as_secs_f64())
}

/// Takes what comes on one connection, and answers with how much it was.
fn receive(listener: &TcpListener) -> io::Result<()> {
    let (mut from, _) = listener.accept()?;
    let mut block = vec![0; BLOCK];
    let mut all: u64 = 0;
    loop {
        match from.read(&mut block)? {
            0 => return from.write_all(&all.to_be_bytes()),
            count => all += count as u64,
        }
    }
}

/// Writes for `time`. The bytes, and the time until the receiver has answered.
fn send(to: &mut TcpStream, time: Duration) -> io::Result<(u64, Duration)> {
    let block = vec![0x5A; BLOCK];
    let begun = Instant::now();
    let mut all: u64 = 0;
    while begun.elapsed() < time {
        to.write_all(&block)?;
        all += block.len() as u64;
    }
    to.shutdown(Shutdown::Write)?;
    let mut answer = [0; 8];
    to.read_exact(&mut answer)?;
    if u64::from_be_bytes(answer) != all {
        return Err(io::Error::other(format!("{} of {all} bytes came", u64::from_be_bytes(answer))));
    }
    Ok((all, begun.elapsed()))
}
