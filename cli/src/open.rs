//! What every command opens: logging, and devices whose octets may be captured.

use crate::fail::{Exit, Failure, Result};
use llp::Spec;
use llp::capability;
use llp::capture::{CaptureStack, PcapSink};
use std::path::PathBuf;
use std::sync::Arc;
use tracing_subscriber::EnvFilter;
use verbs::{Device, DeviceOptions};

/// Options of every command.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Global {
    /// Write the traffic of this process to a pcapng file, for Wireshark and `uiw decode`
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// The TCP to use: `tcp` (the kernel's), or smoltcp on an interface with addresses of its own:
    /// `packet:IFACE,ip=ADDR/PREFIX[,gw=ADDR][,mac=MAC][,buffer=OCTETS]` or
    /// `xdp:IFACE,..[,mode=auto|zerocopy|native|generic]`
    #[arg(long, global = true, value_name = "STACK", default_value = "tcp")]
    pub(crate) llp: Spec,
    /// Say more on standard error; twice and thrice for more. UIW_LOG chooses more finely
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Makes devices.
#[derive(Clone)]
pub(crate) struct Opener {
    llp: Spec,
    sink: Option<Arc<PcapSink>>,
}

impl Opener {
    pub(crate) fn new(global: &Global) -> Result<Self> {
        log(global.verbose)?;
        let sink = global.pcap.as_ref().map(|path| {
            PcapSink::create(path).map_err(|error| {
                Failure::new(Exit::Failed, path.display(), error, "choose a file that can be written")
            })
        });
        Ok(Self { llp: global.llp.clone(), sink: sink.transpose()? })
    }

    pub(crate) fn device(&self) -> Result<Device> {
        let stack = self.llp.open().map_err(|error| self.refused(&error))?;
        let stack: Box<dyn llp::Stack> = match &self.sink {
            Some(sink) => Box::new(CaptureStack::new(stack, Arc::clone(sink), "uiw")),
            None => stack,
        };
        Ok(Device::with_stack(stack, DeviceOptions::default())?)
    }

    /// Why the stack cannot be had, and what would help.
    fn refused(&self, error: &std::io::Error) -> Failure {
        let (_, help) = capability::refusal(self.llp.capabilities());
        let (what, fix) = match &self.llp {
            Spec::Tcp => ("the kernel's TCP".to_owned(), "raise the limit of open files".to_owned()),
            Spec::Xdp { interface, .. } => (
                format!("AF_XDP on {interface}"),
                match error.kind() {
                    std::io::ErrorKind::PermissionDenied => help.to_owned(),
                    std::io::ErrorKind::NotFound => "see `ip link` for the interfaces there are".to_owned(),
                    std::io::ErrorKind::OutOfMemory => "raise the limit with `ulimit -l`".to_owned(),
                    std::io::ErrorKind::ResourceBusy => {
                        "another XDP program or socket has it: see `ip link show`".to_owned()
                    }
                    _ => "try mode=generic, or packet: instead of xdp:".to_owned(),
                },
            ),
            Spec::Packet { interface, .. } => (
                format!("AF_PACKET on {interface}"),
                match error.kind() {
                    std::io::ErrorKind::PermissionDenied => help.to_owned(),
                    std::io::ErrorKind::NotFound => "see `ip link` for the interfaces there are".to_owned(),
                    _ => "see `ip link show` for its state".to_owned(),
                },
            ),
        };
        Failure::new(Exit::Failed, what, error, fix)
    }
}

fn log(verbose: u8) -> Result<()> {
    let filter = match std::env::var("UIW_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| {
            Failure::usage(format!("UIW_LOG={text}"), error, "use for instance `debug` or `verbs=trace`")
        })?,
        Err(_) => EnvFilter::new(match verbose {
            0 => "off",
            1 => "info",
            2 => "debug",
            _ => "trace",
        }),
    };
    // A second call in one process keeps the first subscriber.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    Ok(())
}
