//! A running guest, and commands in it through a virtio-serial channel (`guest/agent.c`).

use crate::kernel::Variant;
use crate::net::Net;
use crate::shell::{Output, Process, need};
use crate::{Error, Result};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use uiw_interop::stock::is_left_over;

/// Time limit of a boot, which takes about ten seconds on an idle machine.
const BOOT: Duration = Duration::from_secs(180);
/// Delay of the channel that is allowed in addition to a command's own time limit.
const GRACE: Duration = Duration::from_secs(20);
/// Prefix of the names of temporary folders. The process id follows.
const FOLDER: &str = "uiw-siw-";
/// Memory of the guest in MiB, which the host allocates only when it is used. The largest messages
/// have 256 MiB and need two buffers. Up to half of the memory may be files, the largest of which
/// has 1 GiB.
const MEGABYTES: &str = "3072";

/// Guest, which is powered off when dropped.
pub struct Guest {
    qemu: Process,
    port: UnixStream,
    jobs: Arc<Mutex<HashMap<u32, Sender<GuestEvent>>>>,
    next: AtomicU32,
    folder: PathBuf,
    /// Time from the start to the first message of the agent.
    pub boot_time: Duration,
}

enum GuestEvent {
    Out(Vec<u8>),
    End(i32),
}

/// Command in the guest, which is killed when dropped.
pub struct Job {
    id: u32,
    port: UnixStream,
    events: Receiver<GuestEvent>,
    text: Vec<u8>,
    status: Option<i32>,
    deadline: Instant,
}

impl Guest {
    /// Boots a guest with this kernel and initramfs on `net`, and waits for its agent.
    ///
    /// # Errors
    /// [`Error::Missing`] without QEMU.
    pub fn boot(image: &Path, initramfs: &Path, net: &Net) -> Result<Self> {
        need(&[("qemu-system-x86_64", "qemu-system-x86"), ("setpriv", "util-linux")])?;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("{FOLDER}{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).map_err(Error::io(folder.display()))?;
        let begun = Instant::now();
        let qemu = start(image, initramfs, net, &folder)?;
        let mut guest = Self::attach(qemu, folder, begun)?;
        guest.boot_time = begun.elapsed();
        let setup = guest.run(&net.guest_setup(), Duration::from_secs(20))?;
        if !setup.is_ok() {
            return Err(Error::Failed(format!("the guest's network: {}", setup.last_line())));
        }
        Ok(guest)
    }

    fn attach(mut qemu: Process, folder: PathBuf, begun: Instant) -> Result<Self> {
        let socket = folder.join("agent");
        let port = loop {
            match UnixStream::connect(&socket) {
                Ok(port) => break port,
                Err(_) if qemu.is_running() && begun.elapsed() < BOOT => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    let output = qemu.finish(Duration::ZERO);
                    return Err(Error::Failed(format!(
                        "QEMU did not start: {error}: {}",
                        output.last_line()
                    )));
                }
            }
        };
        let jobs = Arc::<Mutex<HashMap<u32, Sender<GuestEvent>>>>::default();
        let (sender, ready) = mpsc::channel();
        jobs.lock().unwrap_or_else(PoisonError::into_inner).insert(0, sender);
        let reader = port.try_clone().map_err(Error::io("the guest's channel"))?;
        let theirs = Arc::clone(&jobs);
        thread::spawn(move || dispatch(reader, &theirs));
        let guest =
            Self { qemu, port, jobs, next: AtomicU32::new(1), folder, boot_time: Duration::ZERO };
        match ready.recv_timeout(BOOT.saturating_sub(begun.elapsed())) {
            Ok(_) => Ok(guest),
            Err(_) => Err(Error::Failed(format!("the guest did not boot: {}", guest.console()))),
        }
    }

    /// Returns the last five lines of the guest's console.
    pub fn console(&self) -> String {
        let text = fs::read(self.folder.join("console")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }

    /// Starts a shell script in the guest with the time limit `timeout`.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn start(&self, script: &str, timeout: Duration) -> Result<Job> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = mpsc::channel();
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let seconds = timeout.as_secs().max(1);
        let request = format!("RUN {id} {seconds} {}\n{script}", script.len());
        let mut port = self.port.try_clone().map_err(Error::io("the guest's channel"))?;
        port.write_all(request.as_bytes()).map_err(Error::io("the guest's channel"))?;
        let deadline = Instant::now() + timeout + GRACE;
        Ok(Job { id, port, events, text: Vec::new(), status: None, deadline })
    }

    /// Runs a shell script in the guest to its end.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn run(&self, script: &str, timeout: Duration) -> Result<Output> {
        Ok(self.start(script, timeout)?.finish())
    }

    /// Runs a shell script that must succeed within 60 seconds, and returns its output.
    ///
    /// # Errors
    /// If it fails.
    pub fn must(&self, script: &str) -> Result<String> {
        self.must_within(script, Duration::from_secs(60))
    }

    /// Like [`Guest::must`], but with the time limit `timeout`.
    ///
    /// # Errors
    /// If it fails.
    pub fn must_within(&self, script: &str, timeout: Duration) -> Result<String> {
        let output = self.run(script, timeout)?;
        if output.is_ok() {
            return Ok(output.out);
        }
        Err(Error::Failed(format!("in the guest: {script}: {}", output.last_line())))
    }

    /// Loads a variant of the driver.
    ///
    /// # Errors
    /// If it does not load.
    pub fn load(&self, variant: Variant) -> Result<()> {
        self.must(&format!("siw {}", variant.name())).map(|_| ())
    }

    /// Powers off the guest.
    pub fn power_off(&mut self) {
        self.qemu.kill();
    }

    /// Returns whether the guest is running.
    pub fn is_running(&mut self) -> bool {
        self.qemu.is_running()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.qemu.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Temporary folder of this process. It is removed when dropped, or later by [`sweep`].
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn create(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("{FOLDER}{}-{name}", std::process::id()));
        fs::create_dir_all(&path).map_err(Error::io(path.display()))?;
        Ok(Self(path))
    }

    /// Returns the path of a file in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, the folder is removed by the next sweep.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders of this process and of processes that have ended.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = crate::shell::name(&path);
        if name.strip_prefix(FOLDER).is_some_and(is_left_over) {
            // This fails for folders of other users, which are left alone.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn start(image: &Path, initramfs: &Path, net: &Net, folder: &Path) -> Result<Process> {
    let file = |name: &str| folder.join(name).display().to_string();
    // QEMU runs at the usual priority: the guest represents another host, and with a lower priority
    // it would starve if other processes keep this machine busy.
    let mut qemu = net.command("qemu-system-x86_64");
    // This is a small processor model with crc32c. Its emulation is faster than that of "max".
    qemu.args("-accel tcg,thread=multi,tb-size=256 -cpu Nehalem -smp 2".split(' '));
    qemu.args("-nodefaults -no-user-config -display none -no-reboot".split(' '));
    qemu.args(["-m", MEGABYTES]);
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(initramfs);
    qemu.args([
        "-append",
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable",
    ]);
    qemu.args(["-serial", &format!("file:{}", file("console"))]);
    qemu.args(["-chardev", &format!("socket,id=agent,path={},server=on,wait=off", file("agent"))]);
    qemu.args(["-device", "virtio-serial-pci"]);
    qemu.args(["-device", "virtserialport,chardev=agent,name=agent"]);
    qemu.args(["-object", "rng-random,filename=/dev/urandom,id=rng0"]);
    qemu.args(["-device", "virtio-rng-pci,rng=rng0"]);
    qemu.args(net.qemu());
    Process::start(&mut qemu)
}

/// Distributes the messages of the agent to the jobs.
fn dispatch(port: UnixStream, jobs: &Mutex<HashMap<u32, Sender<GuestEvent>>>) {
    let mut port = BufReader::new(port);
    let mut line = String::new();
    while let Ok(1..) = port.read_line(&mut line) {
        let mut words = line.split_whitespace();
        let (what, id, number) = (words.next(), words.next(), words.next());
        let numbers = id
            .and_then(|id| id.parse().ok())
            .zip(number.and_then(|number| number.parse::<i32>().ok()));
        let Some((id, number)) = numbers else { return };
        let event = match what {
            Some("OUT") => {
                let mut bytes = vec![0; usize::try_from(number).unwrap_or(0)];
                if port.read_exact(&mut bytes).is_err() {
                    return;
                }
                GuestEvent::Out(bytes)
            }
            _ => GuestEvent::End(number),
        };
        let mut jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = jobs.get(&id) {
            // The receiver may have been dropped.
            let ended = matches!(event, GuestEvent::End(_));
            let _ = job.send(event);
            if ended {
                jobs.remove(&id);
            }
        }
        line.clear();
    }
    jobs.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl Job {
    /// Waits for one message of the agent and processes it. Returns false if none arrives within
    /// `timeout`. If none can arrive any more, sets the status to 125 unless it is already known.
    fn step(&mut self, timeout: Duration) -> bool {
        match self.events.recv_timeout(timeout) {
            Ok(GuestEvent::Out(bytes)) => self.text.extend_from_slice(&bytes),
            Ok(GuestEvent::End(status)) => self.status = Some(status),
            Err(RecvTimeoutError::Timeout) => return false,
            // The guest has ended.
            Err(RecvTimeoutError::Disconnected) => self.status = self.status.or(Some(125)),
        }
        true
    }

    /// Returns whether the command is still running.
    pub fn is_running(&mut self) -> bool {
        while self.status.is_none() && self.step(Duration::ZERO) {}
        self.status.is_none()
    }

    /// Returns what was written since the last call.
    pub fn news(&mut self) -> String {
        while self.status.is_none() && self.step(Duration::ZERO) {}
        String::from_utf8_lossy(&std::mem::take(&mut self.text)).into_owned()
    }

    /// Waits until the command has written a line that contains `what`, and returns the line.
    ///
    /// # Errors
    /// If it ends or the time limit passes before.
    pub fn wait_for(&mut self, what: &str, timeout: Duration) -> Result<String> {
        let deadline = Instant::now() + timeout;
        loop {
            let text = String::from_utf8_lossy(&self.text);
            if let Some(line) = text.lines().find(|line| line.contains(what)) {
                return Ok(line.to_owned());
            }
            if self.status.is_some() || Instant::now() >= deadline {
                let last =
                    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
                return Err(Error::Failed(format!("in the guest: waiting for \"{what}\": {last}")));
            }
            self.step(Duration::from_millis(50));
        }
    }

    /// Waits for the end of the command, at most for its own time limit plus the delay of the
    /// channel. The status is 125 if the guest has ended.
    pub fn finish(mut self) -> Output {
        self.end()
    }

    fn end(&mut self) -> Output {
        while self.status.is_none() && Instant::now() < self.deadline {
            self.step(Duration::from_millis(100));
        }
        let bytes = std::mem::take(&mut self.text);
        Output {
            status: self.status.unwrap_or(124),
            out: String::from_utf8_lossy(&bytes).into_owned(),
            err: String::new(),
        }
    }

    /// Kills the command, and returns its output.
    pub fn kill(mut self) -> Output {
        self.ask_to_end();
        self.end()
    }

    fn ask_to_end(&mut self) {
        // This fails if the channel is closed. In that case there is nothing to kill.
        let _ = self.port.write_all(format!("KILL {}\n", self.id).as_bytes());
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.ask_to_end();
        }
    }
}
