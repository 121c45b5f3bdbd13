//! Features of an interface's driver for AF_XDP. The kernel reports them by the generic netlink
//! family `netdev` (Linux 6.3 and newer), without any change to the interface.

use rustix::net::netlink::GENERIC;
use std::io;
use uiw_llp::netlink::{self, attribute};

const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_FEATURES: u16 = 3;

/// Features of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    /// Support for mode `native`: the driver runs programs and redirects frames.
    pub native: bool,
    /// Support for mode `zerocopy`.
    pub zero_copy: bool,
    /// Support for frames of several pieces in these two modes, which an MTU above about 3,500
    /// bytes requires.
    pub several_pieces: bool,
}

impl XdpFeatures {
    /// Returns the features of the interface with this index. Mode `generic` is available for every
    /// interface.
    ///
    /// # Errors
    /// `Unsupported` if the kernel is older than Linux 6.3 and does not report the features. All
    /// other errors are OS errors.
    pub fn of(index: u32) -> io::Result<Self> {
        let answer = ask(CONTROLLER, GET_FAMILY, FAMILY_NAME, b"netdev\0").map_err(|error| {
            let unknown = error.raw_os_error() == Some(libc::ENOENT);
            if unknown { io::ErrorKind::Unsupported.into() } else { error }
        })?;
        let family = attribute(&answer, FAMILY_ID).and_then(|value| value.first_chunk::<2>());
        let family = u16::from_ne_bytes(*family.ok_or(io::ErrorKind::InvalidData)?);
        let answer = ask(family, GET_DEVICE, DEVICE_INDEX, &index.to_ne_bytes())?;
        let features =
            attribute(&answer, DEVICE_FEATURES).and_then(|value| value.first_chunk::<8>());
        let features = u64::from_ne_bytes(*features.ok_or(io::ErrorKind::InvalidData)?);
        let all = |bits: u64| features & bits == bits;
        // Bits of NETDEV_XDP_ACT: BASIC 1, REDIRECT 2, XSK_ZEROCOPY 8, RX_SG 32.
        Ok(Self { native: all(1 | 2), zero_copy: all(1 | 2 | 8), several_pieces: all(1 | 2 | 32) })
    }
}

/// Makes one query with one attribute. Returns the attributes of the answer.
fn ask(family: u16, command: u8, name: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    // The header of the family consists of command, version and padding.
    netlink::query(Some(GENERIC), family, &[command, 1, 0, 0], Some((name, value)), 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_interface_has_no_native_mode() {
        let lo = uiw_llp::interface::index_of("lo").unwrap();
        match XdpFeatures::of(lo) {
            Ok(features) => assert!(!features.zero_copy),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
        }
    }
}
