//! `uiw decode`: prints the iWARP traffic in a packet capture.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use uiw_decode::pcap::Error;
use uiw_decode::{ConnectionFilter, DecodeConfig, DecodeError, decode_to};

/// Options of `uiw decode`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Exit code: 0 when every byte of iWARP could be followed (departures from the RFCs included), 1 when some could not or \
there was none, 2 when a file is no capture or the command line is wrong.")]
pub(crate) struct Args {
    /// pcap or pcapng files; several are one capture that was rotated, in the order of their times;
    /// `-` reads standard input and prints while it reads: `tcpdump -U -w - | uiw decode -`
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Only departures, missing bytes and the summary
    #[arg(long)]
    quiet: bool,
    /// Only connections with this number, ADDR, ADDR:PORT or :PORT at one end; several times for
    /// several
    #[arg(long, value_name = "WHICH")]
    connection: Vec<ConnectionFilter>,
}

/// Runs the command. `keylog` has the secrets of TLS connections, as `--keylog` of other commands
/// writes them.
pub(crate) fn run(args: Args, keylog: Option<PathBuf>) -> ExitCode {
    let Args { files, json, quiet, connection: connections } = args;
    let config = DecodeConfig { files, json, quiet, connections, keylog };
    match decode_to(&config, &mut io::BufWriter::new(io::stdout().lock())) {
        Ok(summary) if summary.followed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err((_, DecodeError::Output(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err((file, error)) => {
            note!("error: {}: {error}\nhint: {}", file.display(), hint(&error));
            ExitCode::from(2)
        }
    }
}

/// Hint for the user about an error.
fn hint(error: &DecodeError) -> &'static str {
    match error {
        DecodeError::Capture(Error::Compressed(_)) => "decompress it first",
        DecodeError::Open(_) | DecodeError::Capture(_) => {
            "name a readable pcap or pcapng file, such as tcpdump -w or Wireshark write"
        }
        DecodeError::KeyLog(_) => {
            "name a file that --keylog or UIW_KEYLOG of another command has written"
        }
        DecodeError::Output(_) => "free some space or choose another place",
    }
}
