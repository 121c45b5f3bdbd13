//! What every command opens: logging, and devices whose octets may be captured.

use crate::fail::{Exit, Failure, Result};
use llp::capture::{CaptureStack, PcapSink};
use llp::tcp::TcpStack;
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
    /// Say more on standard error; twice and thrice for more. UIW_LOG chooses more finely
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Makes devices.
#[derive(Clone)]
pub(crate) struct Opener {
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
        Ok(Self { sink: sink.transpose()? })
    }

    pub(crate) fn device(&self) -> Result<Device> {
        let tcp = TcpStack::new().map_err(|error| Failure::local("opening the TCP stack", error))?;
        let stack: Box<dyn llp::Stack> = match &self.sink {
            Some(sink) => Box::new(CaptureStack::new(tcp, Arc::clone(sink), "uiw")),
            None => Box::new(tcp),
        };
        Ok(Device::with_stack(stack, DeviceOptions::default())?)
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
