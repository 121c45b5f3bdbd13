//! Check whether a connection to a peer can be set up.

use super::checks::{Check, CheckState};
use crate::shared::fail::{Failure, Result};
use crate::shared::open::Opener;
use crate::shared::qp_setup::{Link, PendingQp, QueueDepths};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use uiw::raw::ConnConfig;

/// Name of the check.
pub(super) const NAME: &str = "start-up";
/// Time within which a peer may refuse our first FPDU.
const FIRST_FPDU: Duration = Duration::from_millis(500);

/// Sets up a connection to `peer` and closes it.
pub(super) fn check(opener: &Opener, peer: SocketAddr, options: &ConnConfig) -> Check {
    let check = match connect(opener, peer, options) {
        Ok(link) => judge(link),
        Err(failure) => failed(&failure),
    };
    check.with_subject(&peer.to_string())
}

/// Returns the check of a peer to which no connection was set up.
pub(super) fn failed(failure: &Failure) -> Check {
    Check::ok(NAME, failure.cause()).with_problem(CheckState::No, failure.fix())
}

fn connect(opener: &Opener, peer: SocketAddr, options: &ConnConfig) -> Result<Link> {
    let device = opener.device()?;
    let pd = device.alloc_pd()?;
    PendingQp::new(&device, &pd, &QueueDepths::new(1, 1))?.connect(peer, options, b"")
}

fn judge(link: Link) -> Check {
    if let Some(ending) = link.wait_ending(FIRST_FPDU).filter(|ending| !ending.orderly) {
        let fix = match ending.suspect {
            Some(suspect) => crate::shared::fail::suspicion(suspect),
            None => {
                "see the peer's messages, or `uiw decode` on the file of `--pcap FILE`".to_owned()
            }
        };
        let says = format!("established, then the peer ended it: {ending}");
        return Check::ok(NAME, says).with_problem(CheckState::No, fix);
    }
    let agreed = link.info.negotiated;
    let on = |on: bool| if on { "on" } else { "off" };
    let rtr = agreed.rtr.map_or_else(|| "none".to_owned(), |rtr| format!("{rtr:?}"));
    let says = format!(
        "revision {}, CRC {}, Markers {} out and {} in, IRD {}, ORD {}, RTR {rtr}",
        agreed.revision,
        on(agreed.crc),
        on(agreed.markers_tx),
        on(agreed.markers_rx),
        agreed.ird,
        agreed.ord
    );
    let details = json!({
        "revision": agreed.revision, "crc": agreed.crc, "markers_out": agreed.markers_tx, "markers_in": agreed.markers_rx,
        "ird": agreed.ird, "ord": agreed.ord, "rtr": rtr.to_lowercase(), "peer_to_peer": agreed.peer_to_peer,
    });
    link.close();
    Check::ok(NAME, says).with_details(details)
}
