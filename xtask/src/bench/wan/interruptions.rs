//! `uiw cp` across a path that is cut, and a server that is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use uiw_interop::stock::{Running, free_port};

use super::copies::{TIME_OUT, same};
use super::path::{Emulator, Network};
use super::summary::Figures;
use super::{Bench, LONG};

const SEED: u32 = 100;
/// Bytes of a journal: its head, and a record for each block of 1 MiB.
const JOURNAL_HEAD: u64 = 40;
const JOURNAL_RECORD: u64 = 56;
/// After which a killed server is started again.
const ABSENCE: Duration = Duration::from_secs(10);

impl Bench<'_> {
    /// The path is cut when half of the file has arrived.
    pub(super) fn cut(&self) -> Result<Figures, String> {
        let half = self.half()?;
        let before = half.path.end()?.to_client;
        thread::sleep(Duration::from_secs(self.options.cut_seconds.into()));
        let path = half.network.carry(&LONG.options(SEED + 1))?;
        self.completed(half.client, path, before, &half.source, &half.target)
    }

    /// The server is killed when half of the file has arrived, and is started again.
    pub(super) fn killed(&self) -> Result<Figures, String> {
        let half = self.half()?;
        drop(half.server);
        thread::sleep(ABSENCE);
        let _server = self.serve(&half.network, &half.source, &half.at, "bbr")?;
        self.completed(half.client, half.path, 0, &half.source, &half.target)
    }

    /// A copy of which half has arrived.
    fn half(&self) -> Result<Half, String> {
        let network = self.network()?;
        let (source, target) = (self.source()?, self.fresh("target")?);
        let at = format!("{}:{}", network.server_address(), free_port());
        let server = self.serve(&network, &source, &at, "bbr")?;
        let path = network.carry(&LONG.options(SEED))?;
        let mut client = Client::start(network.client(self.client(&at, "big", &target, "bbr")?))?;
        client.wait_for_half(&target, self.bytes())?;
        Ok(Half { client, server, path, network, source, target, at })
    }

    /// Waits for the client; the MiB that reached it beyond the file's.
    fn completed(
        &self,
        mut client: Client,
        path: Emulator,
        before: u64,
        source: &Path,
        target: &Path,
    ) -> Result<Figures, String> {
        let begun = Instant::now();
        client.end()?;
        let took = begun.elapsed().as_secs_f64();
        same(source, target)?;
        let more = (before + path.end()?.to_client).saturating_sub(self.bytes());
        let note = format!("done {took:.1} s after that, headers of frames included");
        Ok(Figures::new(vec![more as f64 / f64::from(1 << 20)], note))
    }
}

/// A copy of which half has arrived, and all that it needs. The programs are killed before the network is removed.
struct Half {
    client: Client,
    server: Running,
    path: Emulator,
    network: Network,
    source: PathBuf,
    target: PathBuf,
    at: String,
}

/// `uiw cp` that runs. Killed when dropped.
struct Client(Child);

impl Client {
    fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map(Self).map_err(|error| format!("{command:?}: {error}"))
    }

    /// Waits until the journal has half of the blocks.
    fn wait_for_half(&mut self, target: &Path, bytes: u64) -> Result<(), String> {
        let journal = target.join("big.uiw-journal");
        let half = JOURNAL_HEAD + (bytes >> 20) / 2 * JOURNAL_RECORD;
        let until = Instant::now() + TIME_OUT;
        while fs::metadata(&journal).map_or(0, |data| data.len()) < half {
            if let Some(status) = self.0.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("uiw cp ended before half of the file: {status}"));
            }
            if Instant::now() > until {
                return Err("half of the file has not arrived".to_owned());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        let until = Instant::now() + TIME_OUT;
        loop {
            match self.0.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("uiw cp: {status}")),
                None if Instant::now() > until => return Err("uiw cp does not end".to_owned()),
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
