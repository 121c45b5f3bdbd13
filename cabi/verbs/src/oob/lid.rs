//! LIDs, for programs that address their peer only by its LID: the low 16 bits of an IPv4 address
//! in the device's own network.

use crate::device::netdev::NetDev;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::errno::Errno;
use uiw_cabi_core::settings::Settings;

/// Returns the address of a LID: from the map that UIW_LID_MAP names, or otherwise in the network
/// of the device.
///
/// # Errors
/// EINVAL if there is no such address, or the map is invalid.
pub(super) fn resolve(lid: u16, netdev: &NetDev) -> Result<IpAddr> {
    if let Some(path) = &Settings::get()?.lid_map
        && let Some(address) = address_in_map(path, lid)?
    {
        return Ok(address);
    }
    address_in_network(lid, netdev).map(IpAddr::V4).ok_or_else(|| {
        tracing::warn!(
            lid,
            netdev = netdev.name,
            "no address for this LID: UIW_LID_MAP may name one"
        );
        Errno::INVAL.because("no address for the LID")
    })
}

/// Returns the address with these low 16 bits in the network of one of the device's addresses. A
/// network with a prefix shorter than 16 bits is ignored. For the loopback device, this is any
/// address 127.0.x.y.
fn address_in_network(lid: u16, netdev: &NetDev) -> Option<Ipv4Addr> {
    netdev.addresses.iter().find_map(|(own, prefix)| {
        let IpAddr::V4(own) = own else { return None };
        let address = own.to_bits() & 0xFFFF_0000 | u32::from(lid);
        let prefix = if netdev.loopback { 16 } else { *prefix };
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        ((16..=32).contains(&prefix) && address & mask == own.to_bits() & mask)
            .then(|| Ipv4Addr::from_bits(address))
    })
}

fn address_in_map(path: &Path, lid: u16) -> Result<Option<IpAddr>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        uiw_cabi_core::log::note!("uiw: UIW_LID_MAP={}: {error}", path.display());
        Errno::from(error)
    })?;
    find_in_map(&text, lid).map_err(|line| {
        uiw_cabi_core::log::note!(
            "uiw: UIW_LID_MAP={}: line {line}: expected `LID ADDRESS`",
            path.display()
        );
        Errno::INVAL.because("UIW_LID_MAP has an invalid line")
    })
}

/// Returns the address of a LID in text with lines of the form `LID ADDRESS`. Empty lines and lines
/// that begin with `#` are ignored. The error is the number of an invalid line.
fn find_in_map(text: &str, lid: u16) -> std::result::Result<Option<IpAddr>, usize> {
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, address) = line.split_once(char::is_whitespace).ok_or(number + 1)?;
        let key = match key.strip_prefix("0x") {
            Some(hex) => u16::from_str_radix(hex, 16),
            None => key.parse(),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| number + 1)?;
        if key.map_err(|_| number + 1)? == lid {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(address: &str, prefix: u8) -> NetDev {
        NetDev {
            name: "x".to_owned(),
            index: 1,
            running: true,
            loopback: address.starts_with("127."),
            mac: None,
            mtu: 1500,
            mbps: None,
            addresses: vec![(address.parse().unwrap(), prefix)],
        }
    }

    #[test]
    fn lids_are_addresses_in_device_network() {
        let lid = |text: &str| (text.parse::<Ipv4Addr>().unwrap().to_bits() & 0xFFFF) as u16;
        let find =
            |own: &str, prefix, peer: &str| address_in_network(lid(peer), &netdev(own, prefix));
        assert_eq!(find("10.1.2.3", 24, "10.1.2.9"), Some("10.1.2.9".parse().unwrap()));
        assert_eq!(find("10.1.2.3", 16, "10.1.7.9"), Some("10.1.7.9".parse().unwrap()));
        assert_eq!(find("10.1.2.3", 24, "10.1.3.9"), None, "outside of the prefix");
        assert_eq!(find("10.1.2.3", 8, "10.1.2.9"), None, "a prefix that 16 bits do not cover");
        assert_eq!(find("127.0.0.1", 8, "127.0.0.1"), Some("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn lid_map_errors_name_lines() {
        let map = "# comment\n\n 7 10.0.0.1\n0x10\t2001:db8::1\n";
        assert_eq!(find_in_map(map, 7), Ok(Some("10.0.0.1".parse().unwrap())));
        assert_eq!(find_in_map(map, 16), Ok(Some("2001:db8::1".parse().unwrap())));
        assert_eq!(find_in_map(map, 8), Ok(None));
        assert_eq!(find_in_map("7 10.0.0.1\nseven", 8), Err(2));
        assert_eq!(find_in_map("7 house", 8), Err(1));
    }
}
