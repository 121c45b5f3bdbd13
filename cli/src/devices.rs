//! `uiw devices`: the devices that `ibv_get_device_list` returns to programs on this machine, and
//! the address of each GID.

use crate::shared::fail::{Failure, Result};
use crate::shared::open::Global;
use crate::shared::{env, text};
use serde_json::json;
use uiw_cabi_verbs::device::{netdev, netdev::NetDev};
use uiw_smol::Spec;

/// Show the devices that programs see.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// One JSON object a device
    #[arg(long)]
    json: bool,
}

/// Returns the TCP stack that programs use: the one of `--llp`, which `uiw run` passes to them,
/// otherwise the one of `UIW_LLP`.
fn stack(global: &Global) -> Result<Spec> {
    match &global.llp {
        Some(llp) => Ok(llp.spec.clone()),
        None => Ok(env::read()?.llp),
    }
}

pub(crate) fn run(args: &Args, global: &Global) -> Result<()> {
    let netdevs = netdev::all_on(&stack(global)?)
        .map_err(|error| Failure::local("cannot list the network devices", error))?;
    for netdev in netdevs {
        let guid = u64::from_be(netdev.guid());
        if args.json {
            let gids: Vec<_> =
                netdev.addresses.iter().map(|(address, _)| address.to_string()).collect();
            text::json(&json!({
                "device": name(&netdev),
                "netdev": netdev.name,
                "active": netdev.running,
                "mtu": netdev.mtu,
                "guid": format!("{guid:016x}"),
                "gids": gids,
            }));
        } else {
            let state = if netdev.running { "active" } else { "down" };
            text::line(format!(
                "{:<20} {state}, MTU {}, GUID {guid:016x}",
                name(&netdev),
                netdev.mtu
            ));
            for (index, (address, prefix)) in netdev.addresses.iter().enumerate() {
                text::line(format!("    GID {index}: {address}/{prefix}"));
            }
        }
    }
    Ok(())
}

fn name(netdev: &NetDev) -> String {
    format!("uiw_{}", netdev.name)
}
