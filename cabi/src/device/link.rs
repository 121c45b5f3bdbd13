//! What the kernel says of a network interface of this network namespace, by ioctl(2): /sys may be another namespace's.

use std::ffi::c_ulong;

/// `struct ethtool_cmd` of linux/ethtool.h.
#[repr(C)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    /// Duplex, port, address, transceiver, autonegotiation, MDIO.
    link: [u8; 6],
    max_packets: [u32; 2],
    speed_high: u16,
    /// MDI-X, its control.
    mdix: [u8; 2],
    peer_advertising: u32,
    reserved: [u32; 2],
}
const _: () = assert!(size_of::<EthtoolCmd>() == 44);

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct EthtoolDriver {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    expansion_rom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}
const _: () = assert!(size_of::<EthtoolDriver>() == 196);

const ETHTOOL_GSET: u32 = 1;
const ETHTOOL_GDRVINFO: u32 = 3;
const SIOCETHTOOL: c_ulong = 0x8946;

/// A request of linux/if.h about the interface `name`.
fn request(name: &str) -> libc::ifreq {
    // SAFETY: integers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        // A `c_char` is signed on some processors only.
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request
}

/// # Safety
/// The request is as `code` needs it.
unsafe fn ask(code: c_ulong, request: &mut libc::ifreq) -> bool {
    // SAFETY: a new socket, closed below; the caller's promise.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return false;
        }
        let answered = libc::ioctl(fd, code as _, std::ptr::from_mut(request)) == 0;
        libc::close(fd);
        answered
    }
}

/// Asks the driver of `name`; `T` begins with the number of the question.
///
/// # Safety
/// `question` is the structure of its number.
unsafe fn ask_driver<T>(name: &str, question: &mut T) -> bool {
    let mut request = request(name);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(question).cast();
    // SAFETY: the caller's promise.
    unsafe { ask(SIOCETHTOOL, &mut request) }
}

/// Bytes of the longest packet.
pub(super) fn mtu(name: &str) -> Option<u32> {
    let mut request = request(name);
    // SAFETY: the kernel writes one number.
    unsafe {
        let answered = ask(libc::SIOCGIFMTU as c_ulong, &mut request);
        answered.then(|| u32::try_from(request.ifr_ifru.ifru_mtu).unwrap_or(1500))
    }
}

/// Megabit a second; `None` for a virtual interface, which has no bus, and for one whose speed is unknown.
pub(super) fn mbps(name: &str) -> Option<u32> {
    // SAFETY: integers; structures of the numbers' own.
    unsafe {
        let mut driver: EthtoolDriver = std::mem::zeroed();
        driver.cmd = ETHTOOL_GDRVINFO;
        let is_physical = ask_driver(name, &mut driver) && has_bus(&driver.bus);
        let mut link: EthtoolCmd = std::mem::zeroed();
        link.cmd = ETHTOOL_GSET;
        if !is_physical || !ask_driver(name, &mut link) {
            return None;
        }
        known(u32::from(link.speed_high) << 16 | u32::from(link.speed))
    }
}

/// Virtual drivers give no bus, "N/A", or a word such as "tap"; physical ones an address on it.
fn has_bus(bus: &[u8; 32]) -> bool {
    bus.contains(&b':')
}

/// 0 and -1 (also in 16 bits) stand for a speed that is not known.
fn known(speed: u32) -> Option<u32> {
    (speed != 0 && speed != u32::MAX && speed != u32::from(u16::MAX)).then_some(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_mtu_and_no_speed() {
        assert!(mtu("lo").is_some_and(|mtu| mtu >= 1280));
        assert_eq!(mbps("lo"), None);
        assert_eq!((mtu("no such one"), mbps("no such one")), (None, None));
    }

    #[test]
    fn unknown_speeds_and_virtual_buses() {
        assert_eq!([0, 0xFFFF, 0xFFFF_FFFF, 1000].map(known), [None, None, None, Some(1000)]);
        let bus = |text: &str| {
            let mut bus = [0; 32];
            bus[..text.len()].copy_from_slice(text.as_bytes());
            has_bus(&bus)
        };
        assert!(bus("0000:3b:00.1") && !bus("") && !bus("N/A") && !bus("tap"));
    }
}
