//! Properties of a network interface of this network namespace, from ioctl(2). /sys may show
//! another namespace.

use socket2::{Domain, Socket, Type};
use std::ffi::c_ulong;
use std::os::fd::AsRawFd;
use std::ptr;
use uiw_cabi_core::abi::{PlainAbi, zeroed};
use uiw_llp::interface::request;

/// `struct ethtool_cmd` of linux/ethtool.h.
#[repr(C)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    /// Duplex mode, port, address, transceiver and autonegotiation, and MDIO support.
    link: [u8; 6],
    max_packets: [u32; 2],
    speed_high: u16,
    /// State of MDI-X, and its control.
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

/// Structure of linux/ethtool.h.
///
/// # Safety
/// `new` returns a structure whose first field is the number of an ethtool query. The kernel writes
/// the answer to that query as a structure with the layout of this type, whose fields are integers.
unsafe trait LinkQuery {
    fn new() -> Self;
}

// SAFETY: the number 1 is `ETHTOOL_GSET`, which the kernel answers with a `struct ethtool_cmd` of
// 44 bytes, the size asserted above.
unsafe impl LinkQuery for EthtoolCmd {
    fn new() -> Self {
        Self { cmd: 1, ..zeroed() }
    }
}

// SAFETY: the number 3 is `ETHTOOL_GDRVINFO`, which the kernel answers with a `struct
// ethtool_drvinfo` of 196 bytes, the size asserted above.
unsafe impl LinkQuery for EthtoolDriver {
    fn new() -> Self {
        Self { cmd: 3, ..zeroed() }
    }
}

// SAFETY: the fields are integers and arrays of integers, as declared above.
unsafe impl PlainAbi for EthtoolCmd {}
// SAFETY: the fields are integers and arrays of integers, as declared above.
unsafe impl PlainAbi for EthtoolDriver {}

const SIOCETHTOOL: c_ulong = 0x8946;

/// Makes an ioctl request. Returns whether it succeeded.
///
/// # Safety
/// `code` is a request of `linux/sockios.h` that reads and writes a `struct ifreq`. If it also uses
/// the memory at `ifru_data`, that pointer points to the structure for this request, and nothing
/// else uses the structure during the call.
unsafe fn ask(code: c_ulong, request: &mut libc::ifreq) -> bool {
    let Ok(socket) = Socket::new(Domain::IPV4, Type::DGRAM, None) else { return false };
    // SAFETY: the socket is open during the call. The request is a `struct ifreq`, borrowed
    // mutably, and the caller ensures that `code` uses one and that `ifru_data` suits it.
    unsafe { libc::ioctl(socket.as_raw_fd(), code as _, ptr::from_mut(request)) == 0 }
}

/// Queries the driver of the interface `name`.
fn ask_driver<T: LinkQuery>(name: &str) -> Option<T> {
    let mut question = T::new();
    let mut request = request(name);
    request.ifr_ifru.ifru_data = ptr::from_mut(&mut question).cast();
    // SAFETY: SIOCETHTOOL uses a `struct ifreq` and the memory at `ifru_data`. This points to
    // `question`, a local variable with the query and the size for its answer, as `LinkQuery`
    // requires, and nothing else uses it during the call.
    unsafe { ask(SIOCETHTOOL, &mut request) }.then_some(question)
}

/// Returns the size of the longest packet, in bytes.
pub(super) fn mtu(name: &str) -> Option<u32> {
    let mut request = request(name);
    // SAFETY: SIOCGIFMTU uses only the `struct ifreq` itself, not the memory at `ifru_data`.
    let answered = unsafe { ask(libc::SIOCGIFMTU as c_ulong, &mut request) };
    // SAFETY: `request` has set all bytes of the union to zeros, and the kernel may have replaced
    // some. An integer may consist of any initialized bytes.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    answered.then(|| u32::try_from(mtu).unwrap_or(1500))
}

/// Returns the speed in megabits per second. Returns `None` for a virtual interface, which is not
/// on a bus, and for an interface whose speed is unknown.
pub(super) fn mbps(name: &str) -> Option<u32> {
    ask_driver::<EthtoolDriver>(name).filter(|driver| has_bus(&driver.bus))?;
    let link: EthtoolCmd = ask_driver(name)?;
    known_speed(u32::from(link.speed_high) << 16 | u32::from(link.speed))
}

/// Returns whether a driver reports a bus address, as drivers of physical interfaces do. Virtual
/// drivers report nothing, "N/A", or a word such as "tap".
fn has_bus(bus: &[u8; 32]) -> bool {
    bus.contains(&b':')
}

/// Returns `speed`, or `None` for 0 and -1 (in 32 or 16 bits), which represent an unknown speed.
fn known_speed(speed: u32) -> Option<u32> {
    (speed != 0 && speed != u32::MAX && speed != u32::from(u16::MAX)).then_some(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_mtu_without_speed() {
        assert!(mtu("lo").is_some_and(|mtu| mtu >= 1280));
        assert_eq!(mbps("lo"), None);
        assert_eq!((mtu("no such one"), mbps("no such one")), (None, None));
    }

    #[test]
    fn unknown_speeds_and_virtual_buses() {
        assert_eq!([0, 0xFFFF, 0xFFFF_FFFF, 1000].map(known_speed), [None, None, None, Some(1000)]);
        let bus = |text: &str| {
            let mut bus = [0; 32];
            bus[..text.len()].copy_from_slice(text.as_bytes());
            has_bus(&bus)
        };
        assert!(bus("0000:3b:00.1") && !bus("") && !bus("N/A") && !bus("tap"));
    }
}
