//! Global options, and opening the log and devices for every command.

use crate::key;
use crate::shared::env;
use crate::shared::fail::{Exit, Failure, Result};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use tracing_subscriber::filter::ParseError;
use uiw::counters::Publish;
use uiw::raw::{Device, DeviceConfig, Limits};
use uiw_cabi_core::counters::{self, CounterDestination};
use uiw_cabi_core::tls::{self, TlsFileConfig};
use uiw_impair::fault::Faults;
use uiw_llp::capture::{PcapConfig, PcapSink};
use uiw_smol::capability;
use uiw_smol::{Spec, SpecError};
use uiw_tls::{PinnedLine, Tls, TlsConfig};

/// Options of every command.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Global {
    /// Write the traffic of this process to a pcapng file, for Wireshark and `uiw decode`; UIW_PCAP
    /// does the same. `FILE[,snap=BYTES][,rotate=BYTES[,files=N]][,append]`: snap limits the bytes
    /// of a packet; with rotate, a full file becomes FILE.1, and N files are kept [files: 2];
    /// append adds to an existing file
    #[arg(long, global = true, value_name = "FILE", value_parser = <PcapConfig as FromStr>::from_str)]
    pub(crate) pcap: Option<PcapConfig>,
    /// The TCP to use: `tcp` (the kernel's), `mptcp` (its Multipath TCP, docs/wan.md), or smoltcp
    /// on an interface with addresses of its own:
    /// `packet:IFACE,ip=ADDR/PREFIX[,gw=ADDR][,mac=MAC][,buffer=BYTES]` or
    /// `xdp:IFACE,..[,mode=auto|zerocopy|native|generic]`
    /// [default: tcp]; UIW_LLP does the same
    #[arg(long, global = true, value_name = "STACK")]
    pub(crate) llp: Option<NamedStack>,
    /// Encrypt every connection by TLS 1.3, as this file says (docs/tls.md); UIW_TLS does the same
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tls: Option<PathBuf>,
    /// Append the secrets of TLS connections to a file, by which `uiw decode` and Wireshark decrypt
    /// a capture; UIW_KEYLOG does the same
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) keylog: Option<PathBuf>,
    /// Increase log verbosity (repeatable, up to three times). UIW_LOG sets it per module
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// A stack, with the text that names it.
#[derive(Clone, Debug)]
pub(crate) struct NamedStack {
    pub(crate) text: String,
    pub(crate) spec: Spec,
}

impl FromStr for NamedStack {
    type Err = SpecError;

    fn from_str(text: &str) -> std::result::Result<Self, SpecError> {
        Ok(Self { text: text.to_owned(), spec: text.parse()? })
    }
}

impl Global {
    /// Refuses an option, such as `llp`, for a command that would do nothing with it.
    pub(crate) fn refuse(&self, option: &str, why: &str) -> Result<()> {
        let path = |file: &Option<PathBuf>| file.as_ref().map(|path| path.display().to_string());
        let value = match option {
            "llp" => self.llp.as_ref().map(|llp| llp.text.clone()),
            "tls" => path(&self.tls),
            "keylog" => path(&self.keylog),
            _ => self.pcap.as_ref().map(ToString::to_string),
        };
        match value {
            Some(value) => Err(Failure::usage(format!("--{option} {value}"), why, "leave it out")),
            None => Ok(()),
        }
    }
}

/// Opener of devices with the global options.
#[derive(Clone)]
pub(crate) struct Opener {
    llp: Spec,
    sink: Option<Arc<PcapSink>>,
    faults: Option<(u64, Faults)>,
    shards: Option<usize>,
    counters: Option<Publish>,
    tls: Option<Arc<TlsFile>>,
    key_log: Option<PathBuf>,
}

/// The file of `--tls`, or of `UIW_TLS`.
struct TlsFile {
    path: PathBuf,
    options: TlsFileConfig,
    /// Created when the first device is opened.
    tls: OnceLock<Tls>,
    /// Additional check of the lines of pinned keys.
    check: Option<Arc<LineCheck>>,
}

/// Check of a line of pinned keys. The error is the reason for which the line is refused.
pub(crate) type LineCheck =
    dyn Fn(&PinnedLine<'_>) -> std::result::Result<(), String> + Send + Sync;

impl TlsFile {
    fn new(global: &Global, key_log: Option<PathBuf>) -> Option<Self> {
        let path = global.tls.clone().or_else(|| env::path(tls::VARIABLE))?;
        let options = TlsFileConfig { key_log, ..TlsFileConfig::default() };
        Some(Self { path, options, tls: OnceLock::new(), check: None })
    }

    fn read(&self) -> Result<TlsConfig> {
        let config = tls::read(&self.path, &self.options).map_err(key::failure)?;
        if let (Some(check), Some(pinned)) = (&self.check, config.pinned()) {
            for line in pinned.lines() {
                check(&line).map_err(|why| {
                    let file = tls::pinned_file(&self.path).unwrap_or_else(|| self.path.clone());
                    let what = format!("{}:{}", file.display(), line.number);
                    Failure::usage(what, why, "correct the line: see docs/cp.md")
                })?;
            }
        }
        Ok(config)
    }

    fn get(&self) -> Result<Tls> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls.clone());
        }
        let tls = Tls::new(self.read()?).map_err(key::failure)?;
        Ok(self.tls.get_or_init(|| tls).clone())
    }
}

impl Opener {
    /// Returns the default address to listen on: the loopback address with the kernel's TCP,
    /// otherwise the first address of the stack, which has no loopback address.
    pub(crate) fn own_address(&self) -> IpAddr {
        let first = self.llp.own().and_then(|(_, config)| config.addresses.first());
        first.map_or(Ipv4Addr::LOCALHOST.into(), |(address, _)| *address)
    }

    /// Starts the log and creates an opener. The log is filtered by `filter`, unless `-v` or
    /// UIW_LOG choose another filter. With the filter `off`, injected faults are logged
    /// nevertheless.
    pub(crate) fn new(global: &Global, filter: &str) -> Result<Self> {
        let set = env::settings();
        log(
            global.verbose,
            if filter == "off" { set.log_filter().unwrap_or(filter) } else { filter },
        )?;
        let sink = global.pcap.as_ref().or(set.pcap.as_ref()).map(|file| {
            PcapSink::create(file.clone()).map_err(|error| {
                Failure::new(
                    Exit::Failed,
                    file.path().display(),
                    error,
                    "choose a file that can be written",
                )
            })
        });
        let llp = global.llp.as_ref().map_or_else(|| set.llp.clone(), |llp| llp.spec.clone());
        let key_log = global.keylog.clone().or_else(|| env::path(tls::KEY_LOG));
        let tls = TlsFile::new(global, key_log.clone()).map(Arc::new);
        let (faults, shards) = (set.faults.clone(), set.shards);
        Ok(Self {
            llp,
            sink: sink.transpose()?,
            faults,
            shards,
            counters: publish()?,
            tls,
            key_log,
        })
    }

    pub(crate) fn device(&self) -> Result<Device> {
        self.device_with(Limits::default())
    }

    /// Opens a device with these limits.
    pub(crate) fn device_with(&self, limits: Limits) -> Result<Device> {
        let stack = self.llp.open().map_err(|error| self.stack_failure(&error))?;
        let tls = self.tls.as_ref().map(|file| file.get()).transpose()?;
        let options = DeviceConfig::default()
            .limits(limits)
            .shards(self.shards)
            .counters(self.counters.clone())
            .faults(env::settings().plan.clone())
            .capture_to(self.sink.clone())
            .transport_faults(self.faults.clone())
            .tls(tls);
        Ok(Device::with_stack(stack, options)?)
    }

    /// Uses the TLS file at `path`, unless another one was named.
    pub(crate) fn with_default_tls(self, path: PathBuf) -> Self {
        let options = TlsFileConfig { key_log: self.key_log.clone(), ..TlsFileConfig::default() };
        let default = || Arc::new(TlsFile { path, options, tls: OnceLock::new(), check: None });
        Self { tls: Some(self.tls.unwrap_or_else(default)), ..self }
    }

    /// Adds a check of every line of pinned keys, which is done whenever the files are read.
    pub(crate) fn with_line_check(self, check: Arc<LineCheck>) -> Self {
        let tls = self.tls.map(|file| {
            let (path, options) = (file.path.clone(), file.options.clone());
            Arc::new(TlsFile { path, options, tls: OnceLock::new(), check: Some(check) })
        });
        Self { tls, ..self }
    }

    /// Removes TLS.
    pub(crate) fn without_tls(self) -> Self {
        Self { tls: None, ..self }
    }

    /// Returns whether connections are encrypted.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the TLS files again. Connections of peers that are not accepted any more are closed.
    pub(crate) fn reload_tls(&self) -> Result<()> {
        let Some(file) = &self.tls else { return Ok(()) };
        let config = file.read()?;
        file.get()?.replace(config).map_err(key::failure)
    }

    /// Creates the error for a stack that cannot be opened.
    fn stack_failure(&self, error: &std::io::Error) -> Failure {
        let (_, help) = capability::refusal(self.llp.capabilities());
        let what = match &self.llp {
            Spec::Tcp => "cannot open the kernel's TCP".to_owned(),
            Spec::Mptcp => "cannot open the kernel's Multipath TCP".to_owned(),
            Spec::Xdp { interface, .. } => format!("cannot open AF_XDP on {interface}"),
            Spec::Packet { interface, .. } => format!("cannot open AF_PACKET on {interface}"),
        };
        let fix = match (&self.llp, error.kind()) {
            (Spec::Mptcp, ErrorKind::Unsupported) => {
                "sysctl -w net.mptcp.enabled=1, in this network namespace; or use a kernel with CONFIG_MPTCP"
            }
            (Spec::Tcp | Spec::Mptcp, _) => "raise the limit of open files",
            (_, ErrorKind::PermissionDenied) => help,
            (_, ErrorKind::NotFound) => "see `ip link` for the interfaces there are",
            (_, ErrorKind::NetworkDown) => "ip link set it up, before uiw starts",
            (_, ErrorKind::Unsupported) if error.raw_os_error().is_none() => {
                "choose an Ethernet interface, as `ip link` shows them"
            }
            (_, ErrorKind::AddrInUse) => {
                "choose one that neither the kernel nor another host on the wire has"
            }
            (Spec::Xdp { .. }, ErrorKind::OutOfMemory) => "raise the limit with `ulimit -l`",
            (Spec::Xdp { .. }, ErrorKind::ResourceBusy) => {
                "an interface carries one, so one process: see `ip link show`, or use packet: instead of xdp:"
            }
            (Spec::Xdp { .. }, _) => "try mode=generic, or packet: instead of xdp:",
            (Spec::Packet { .. }, _) => "see `ip link show` for its state",
        };
        Failure::new(Exit::Failed, what, error, fix)
    }
}

/// Returns how this process publishes its counters.
fn publish() -> Result<Option<Publish>> {
    let counters = match std::env::var(counters::VARIABLE) {
        Ok(text) if !text.is_empty() => CounterDestination::parse(&text).map_err(|rule| {
            Failure::usage(format!("{}={text}", counters::VARIABLE), rule, "change or unset it")
        })?,
        _ => CounterDestination::default(),
    };
    let program = std::env::current_exe().unwrap_or_default();
    Ok(counters.publish_config(program.to_string_lossy().into_owned()))
}

fn log(verbose: u8, default: &str) -> Result<()> {
    let variable = std::env::var("UIW_LOG").ok().filter(|text| !text.is_empty());
    let text = variable.as_deref().unwrap_or(match verbose {
        0 => default,
        1 => "info",
        2 => "debug",
        _ => "trace",
    });
    let filter = text.parse().map_err(|error: ParseError| {
        Failure::usage(
            format!("UIW_LOG={text}"),
            error,
            "use for instance `debug` or `uiw_verbs=trace`",
        )
    })?;
    super::log::start(filter);
    Ok(())
}
