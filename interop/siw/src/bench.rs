//! The guest and the program `uiw`, set up for one row after the other.

use crate::guest::{Guest, Job};
use crate::kernel::Variant;
use crate::net::{Family, Net, Tcp};
use crate::setting::Setting;
use crate::shell::{Output, Process, need};
use crate::test_vm::{PARTNER, Parts, TestVm};
use crate::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use uiw_interop::stock::{Libraries, User, free_port, listens};

/// Time limit for a program to listen.
const LISTENING: Duration = Duration::from_secs(20);

/// Time limit of `siwpeer serve`, which runs for many rows.
const LONG: Duration = Duration::from_secs(7200);

/// Shell command that prints the programs in the guest that sleep uninterruptibly, and where in the
/// kernel.
const STUCK: &str =
    "for p in /proc/[0-9]*; do [ \"$(cut -d' ' -f3 $p/stat)\" = D ] && cat $p/comm $p/stack; done";

/// Parameters of the tunable driver, each with its usual value.
const PARAMETERS: &[(&str, &str)] = &[
    ("try_gso", "0"),
    ("peer_to_peer", "0"),
    ("mpa_version", "2"),
    ("rtr_modes", "49152"),
    ("mpa_crc_required", "0"),
];

/// Environment in which rows run.
pub struct Bench {
    vm: TestVm,
    uiw: PathBuf,
    variant: Option<Variant>,
    parameters: Vec<(String, String)>,
    mtu: u32,
    /// `siwpeer serve` in the guest, with its arguments.
    partner: Option<(String, Job)>,
    /// `uiw siwtest --listen` on the host, with its arguments and port.
    listener: Option<(Vec<String>, Process, u16)>,
    /// File to which uiw writes the packets of the next row.
    pcap: Option<PathBuf>,
    /// TCP implementation that uiw uses in the next row.
    tcp: Tcp,
    /// uiw's libibverbs and librdmacm, once a row has needed them.
    libraries: Option<Libraries>,
    /// Number of guests that were booted.
    pub boots: u32,
    /// Number of times that the current row was repeated because of a fault that QUIRKS.md
    /// explains.
    retries: u32,
}

impl Bench {
    /// Creates a bench with this program `uiw`.
    pub fn new(vm: TestVm, uiw: PathBuf) -> Self {
        Self {
            vm,
            uiw,
            variant: None,
            parameters: Vec::new(),
            mtu: 1500,
            partner: None,
            listener: None,
            pcap: None,
            tcp: Tcp::Kernel,
            libraries: None,
            boots: 1,
            retries: 0,
        }
    }

    /// Returns the guest.
    pub fn guest(&self) -> &Guest {
        &self.vm.guest
    }

    /// Returns the network.
    pub fn net(&self) -> &Net {
        &self.vm.net
    }

    /// Returns the parts of the guest.
    pub fn parts(&self) -> &Parts {
        &self.vm.parts
    }

    /// Powers off the guest; the next [`Bench::apply`] boots another one.
    pub fn power_off(&mut self) {
        self.vm.guest.power_off();
    }

    /// Sets up the driver and the wire.
    ///
    /// # Errors
    /// [`Error::Missing`] if this machine does not support the setting.
    pub fn apply(&mut self, setting: &Setting) -> Result<()> {
        self.revive()?;
        if setting.mtu != self.mtu {
            if !self.vm.net.set_mtu(setting.mtu)? {
                return Err(Error::Missing(
                    "an MTU of one's own (user-mode networking)".to_owned(),
                ));
            }
            self.vm.guest.must(&format!("ip link set eth0 mtu {}", setting.mtu))?;
            self.mtu = setting.mtu;
            // siw uses the MTU at the time when its device is made.
            self.variant = None;
        }
        self.vm.net.host(setting.family)?;
        if setting.gso { self.tunable(&[("try_gso", "1")]) } else { self.driver(Variant::Stock) }
    }

    /// Boots another guest if there is none.
    fn revive(&mut self) -> Result<()> {
        if self.vm.guest.is_running() {
            return Ok(());
        }
        let parts = &self.vm.parts;
        self.partner = None;
        self.vm.guest = Guest::boot(&parts.modules.image, &parts.initramfs, &self.vm.net)?;
        self.boots += 1;
        self.variant = None;
        if self.mtu != 1500 {
            self.vm.guest.must(&format!("ip link set eth0 mtu {}", self.mtu))?;
        }
        Ok(())
    }

    /// Loads a variant of the driver.
    ///
    /// # Errors
    /// [`Error::Missing`] if the variant is not available.
    pub fn driver(&mut self, variant: Variant) -> Result<()> {
        if self.variant == Some(variant) {
            return Ok(());
        }
        if variant == Variant::Tunable && self.vm.parts.modules.tunable.is_none() {
            return Err(Error::Missing(
                "the tunable variant of siw (tunable.patch does not fit this kernel)".to_owned(),
            ));
        }
        self.variant = None;
        if self.stop_partner().is_err() {
            // The driver is stuck, so another guest is needed.
            self.power_off();
            self.revive()?;
        }
        self.vm.guest.load(variant)?;
        self.variant = Some(variant);
        self.parameters.clear();
        Ok(())
    }

    /// Loads the tunable driver with these parameters, and the usual values of the others.
    ///
    /// # Errors
    /// The errors of [`Bench::driver`].
    pub fn tunable(&mut self, changed: &[(&str, &str)]) -> Result<()> {
        self.driver(Variant::Tunable)?;
        let value = |name: &str, usual: &str| {
            let changed = changed.iter().find(|(changed, _)| *changed == name);
            changed.map_or(usual, |(_, value)| value).to_owned()
        };
        let wanted: Vec<(String, String)> = PARAMETERS
            .iter()
            .map(|(name, usual)| ((*name).to_owned(), value(name, usual)))
            .collect();
        if wanted != self.parameters {
            let set = |(name, value): &(String, String)| {
                format!("echo {value} > /sys/module/siw/parameters/{name}")
            };
            let script: Vec<String> = wanted.iter().map(set).collect();
            self.vm.guest.must(&script.join(" && "))?;
            self.parameters = wanted;
        }
        Ok(())
    }

    /// Makes uiw use this TCP until the next call.
    ///
    /// # Errors
    /// [`Error::Missing`] without a tap.
    pub fn use_tcp(&mut self, tcp: Tcp) -> Result<()> {
        if tcp != Tcp::Kernel && self.vm.net.own_tcp(tcp, Family::V4).is_none() {
            return Err(Error::Missing("a tap interface (user-mode networking)".to_owned()));
        }
        if self.tcp != tcp {
            self.listener = None;
            self.tcp = tcp;
        }
        Ok(())
    }

    /// Returns the command of the program `uiw`, in the network of the guest.
    pub fn uiw(&self, args: &[&str]) -> Command {
        let mut command = self.vm.net.command(&self.uiw.display().to_string());
        if let Some((llp, _)) = self.vm.net.own_tcp(self.tcp, Family::V4) {
            command.args(["--llp", &llp]);
        }
        command.args(args);
        if let Some(file) = &self.pcap {
            command.arg("--pcap").arg(file);
        }
        command
    }

    /// Sets the file to which uiw writes captures of the next rows, or disables captures.
    pub fn capture(&mut self, file: Option<PathBuf>) {
        self.listener = None;
        self.pcap = file;
    }

    /// Returns the file to which uiw writes captures.
    pub fn captured(&self) -> Option<PathBuf> {
        self.pcap.clone()
    }

    /// Runs `uiw decode` on a capture; `how` is `--json` or `--quiet`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn decode(&self, how: &str, file: &Path) -> Result<Output> {
        crate::shell::run(Command::new(&self.uiw).args(["decode", how]).arg(file), LISTENING)
    }

    /// Runs uiw to its end.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run_uiw(&self, args: &[&str], timeout: Duration) -> Result<Output> {
        crate::shell::run(&mut self.uiw(args), timeout)
    }

    /// Builds the libraries for stock programs, if necessary. The build takes minutes on a busy
    /// machine, so it must not happen while a program of a row waits.
    pub fn build_libraries(&mut self) {
        self.libraries.get_or_insert_with(Libraries::get);
    }

    /// Returns the path of the library `name` for stock programs, and builds the libraries if
    /// necessary.
    pub fn library(&mut self, name: &str) -> PathBuf {
        self.libraries.get_or_insert_with(Libraries::get).folder().join(name)
    }

    /// Returns the command of a stock program of this machine on uiw's libibverbs and librdmacm, in
    /// the network of the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] with the name of the `package`, if this machine does not have the
    /// program.
    pub fn stock(&mut self, program: &str, package: &str, setting: &Setting) -> Result<Command> {
        need(&[(program, package)])?;
        let libraries = self.libraries.get_or_insert_with(Libraries::get);
        let plain = libraries.command(User::Same, program);
        let mut command = self.vm.net.command(program);
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("UIW_PERSONA", "iwarp").env("UIW_CRC", if setting.crc { "on" } else { "off" });
        command.env("UIW_PEER", if setting.gso { "siw-gso" } else { "rfc" });
        if let Some(file) = &self.pcap {
            command.env("UIW_PCAP", file);
        }
        Ok(command)
    }

    /// Starts a program on the host that listens on a port, and returns the port. `arguments` makes
    /// its arguments from the port.
    ///
    /// # Errors
    /// If the program does not listen in time.
    pub fn serve_stock(
        &self,
        mut command: Command,
        arguments: impl Fn(u16) -> Vec<String>,
    ) -> Result<(Process, u16)> {
        let port = free_port();
        command.args(arguments(port));
        Ok((self.serve_stock_at(command, port)?, port))
    }

    /// Starts a program on the host that listens on `port`, which its arguments contain.
    ///
    /// # Errors
    /// If the program does not listen in time.
    pub fn serve_stock_at(&self, mut command: Command, port: u16) -> Result<Process> {
        let mut process = Process::start(&mut command)?;
        let deadline = Instant::now() + LISTENING;
        while !listens(process.id(), port) {
            if !process.is_running() || Instant::now() >= deadline {
                let output = process.finish(Duration::ZERO);
                return Err(Error::Failed(format!("it does not listen: {}", output.last_line())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(process)
    }

    /// Starts a command of uiw that prints "listening on ADDRESS", and returns the port. It listens
    /// on the host's address for the guest.
    ///
    /// # Errors
    /// If the program does not listen in time.
    pub fn serve_uiw(&self, args: &[&str], family: Family) -> Result<(Process, u16)> {
        let address = match self.vm.net.own_tcp(self.tcp, family) {
            Some((_, own)) => own,
            None => self.vm.net.listen(family)?,
        };
        let listen = SocketAddr::new(address, 0).to_string();
        let mut command = self.uiw(args);
        command.args(["--listen", &listen]);
        let mut process = Process::start(&mut command)?;
        let line = process.wait_for("listening on", LISTENING)?;
        let port = line.rsplit(':').next().and_then(|port| port.trim().parse().ok());
        let port = port.ok_or_else(|| Error::Failed(format!("uiw says \"{line}\"")))?;
        Ok((process, port))
    }

    /// Waits until no program in the guest listens on `port`, then starts a program that does, and
    /// waits until it listens.
    ///
    /// # Errors
    /// If the program does not listen in time.
    pub fn serve_guest(&self, command: &str, port: u16, timeout: Duration) -> Result<Job> {
        let script = format!(
            "while ss -Hltn | grep -q ':{port} '; do usleep 20000; done\n\
             {command} &\n\
             until ss -Hltn | grep -q ':{port} '; do kill -0 $! || exit 1; usleep 20000; done\n\
             echo guest is listening\n\
             wait $!"
        );
        let mut job = self.vm.guest.start(&script, timeout)?;
        job.wait_for("guest is listening", LISTENING)?;
        Ok(job)
    }

    /// Cleans up after a row that has failed. Powers off the guest if its driver is stuck.
    pub fn renew(&mut self) {
        self.listener = None;
        if self.vm.guest.is_running() && self.stop_partner().is_err() {
            eprintln!(
                "siw: the driver in the guest is stuck; booting another guest: {}",
                self.stuck()
            );
            self.power_off();
        }
    }

    /// Returns the programs in the guest that sleep uninterruptibly, each with its kernel stack.
    pub fn stuck(&self) -> String {
        let output = self.vm.guest.run(STUCK, Duration::from_secs(10)).map(|output| output.out);
        output.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns how often the guest's TCP has reset a connection because its end was closed while
    /// bytes had not been read, or because bytes arrived after the close.
    ///
    /// # Errors
    /// If the guest does not answer.
    pub fn resets_by_close(&self) -> Result<u64> {
        let text = self.vm.guest.must("cat /proc/net/netstat")?;
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let pairs = names.split_whitespace().zip(values.split_whitespace());
        let of_close =
            pairs.filter(|(name, _)| ["TCPAbortOnClose", "TCPAbortOnData"].contains(name));
        Ok(of_close.filter_map(|(_, value)| value.parse::<u64>().ok()).sum())
    }

    /// Kills the partner in the guest, and waits until no program uses the driver any more.
    fn stop_partner(&mut self) -> Result<()> {
        if let Some((_, job)) = self.partner.take() {
            job.kill();
        }
        // Connections of killed programs take a moment to end.
        let gone = "for i in $(seq 100); do [ -e /sys/module/siw ] || exit 0; \
                    [ \"$(cat /sys/module/siw/refcnt)\" = 0 ] && exit 0; usleep 50000; done; \
                    echo the driver is still in use; exit 1";
        self.vm.guest.must(gone).map(|_| ())
    }

    /// Starts `siwpeer serve` in the guest, unless it is already running with these arguments, and
    /// discards its output so far. Returns the address on which the host reaches it.
    ///
    /// # Errors
    /// If it does not listen in time.
    pub fn partner(&mut self, family: Family, keys: &str) -> Result<String> {
        let command = format!("siwpeer serve {} {PARTNER} {keys}", self.guest_own(family)?);
        if let Some((running, job)) = &mut self.partner
            && *running == command
            && job.is_running()
        {
            job.news();
            return self.guest_at(family, PARTNER);
        }
        if let Some((_, job)) = self.partner.take() {
            job.kill();
        }
        let job = self.serve_guest(&command, PARTNER, LONG)?;
        self.partner = Some((command, job));
        self.guest_at(family, PARTNER)
    }

    /// Waits until the partner has written a line that contains `what`.
    ///
    /// # Errors
    /// If the line does not appear in time.
    pub fn partner_line(&mut self, what: &str, timeout: Duration) -> Result<String> {
        let (_, job) =
            self.partner.as_mut().ok_or_else(|| Error::Failed("no partner runs".to_owned()))?;
        job.wait_for(what, timeout)
    }

    /// Starts `uiw siwtest --listen` on the host, unless it is already running with these
    /// arguments. Returns its port, and discards its output so far.
    ///
    /// # Errors
    /// If it does not listen in time.
    pub fn listener(&mut self, args: &[&str], family: Family) -> Result<u16> {
        let mut wanted: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        wanted.push(format!("{family:?}"));
        if let Some((running, process, port)) = &mut self.listener
            && *running == wanted
            && process.is_running()
        {
            process.news();
            return Ok(*port);
        }
        self.listener = None;
        let (mut process, port) = self.serve_uiw(&[&["siwtest"], args].concat(), family)?;
        process.news();
        self.listener = Some((wanted, process, port));
        Ok(port)
    }

    /// Waits until the listener on the host has written a line that contains `what`.
    ///
    /// # Errors
    /// If the line does not appear in time.
    pub fn listener_line(&mut self, what: &str, timeout: Duration) -> Result<String> {
        let (_, process, _) =
            self.listener.as_mut().ok_or_else(|| Error::Failed("nothing listens".to_owned()))?;
        process.wait_for(what, timeout)
    }

    /// Returns the last line that the listener on the host has printed since its output was last
    /// read.
    pub fn listener_last(&mut self) -> String {
        let news = self.listener.as_mut().map(|(_, process, _)| process.news()).unwrap_or_default();
        news.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing").to_owned()
    }

    /// Kills the listener on the host (SIGKILL).
    pub fn kill_listener(&mut self) {
        self.listener = None;
    }

    /// Counts a repetition of the current row.
    pub fn retry(&mut self) {
        self.retries += 1;
    }

    /// Returns the number of repetitions counted since the last call, and resets it.
    pub fn take_retries(&mut self) -> u32 {
        std::mem::take(&mut self.retries)
    }

    /// Returns the address of the host for programs in the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] without IPv6.
    pub fn host(&self, family: Family) -> Result<String> {
        match self.vm.net.own_tcp(self.tcp, family) {
            Some((_, own)) => Ok(own.to_string()),
            None => Ok(self.vm.net.host(family)?.to_string()),
        }
    }

    /// Returns the address of the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] without IPv6.
    pub fn guest_own(&self, family: Family) -> Result<String> {
        Ok(self.vm.net.guest_own(family)?.to_string())
    }

    /// Returns the address on which the host reaches a port of the guest.
    ///
    /// # Errors
    /// [`Error::Missing`] without IPv6.
    pub fn guest_at(&self, family: Family, port: u16) -> Result<String> {
        Ok(self.vm.net.guest(family, port)?.to_string())
    }
}
