//! Speed of a port. `ibv_query_port`, `ibv_query_port_speed` and sysfs all report the speed from
//! this module.
//!
//! Programs choose a device by its speed. The reported speed is not below that of the network
//! interface. It is 100 Gbit/s if the interface is virtual or its speed is unknown, because memory
//! is the limit in that case.

use super::netdev::NetDev;
use crate::context::OpenContext;
use std::ffi::c_int;
use std::fmt;
use uiw_cabi_core::arguments::{Handle, OutPtr};
use uiw_cabi_core::boundary;

/// Number of lanes and speed of each lane, in the encoding of `ibv_port_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSpeed {
    /// `active_width`.
    pub width: u8,
    /// `active_speed`.
    pub speed: u8,
    /// Speed of all lanes together, in units of 100 Mbit/s.
    pub total: u32,
    lanes: &'static str,
}

const fn of(total: u32, width: u8, speed: u8, lanes: &'static str) -> PortSpeed {
    PortSpeed { width, speed, total, lanes }
}

/// Speeds of the kernel's function `ib_get_eth_speed`, and higher ones.
const SPEEDS: &[PortSpeed] = &[
    of(25, 1, 1, "1X SDR"),
    of(50, 1, 2, "1X DDR"),
    of(100, 1, 8, "1X FDR10"),
    of(200, 2, 2, "4X DDR"),
    of(250, 1, 32, "1X EDR"),
    of(400, 2, 8, "4X FDR10"),
    of(500, 16, 32, "2X EDR"),
    of(1000, 2, 32, "4X EDR"),
    of(2000, 2, 64, "4X HDR"),
    of(4000, 2, 128, "4X NDR"),
    of(8000, 4, 128, "8X NDR"),
    of(12000, 8, 128, "12X NDR"),
];

/// 100 Gbit/s, for an unknown speed.
const UNKNOWN: PortSpeed = SPEEDS[7];

impl PortSpeed {
    /// Returns the lowest speed that is not below `mbps` megabits per second, or the highest one.
    pub fn at_least(mbps: u32) -> Self {
        let hundreds = mbps.div_ceil(100);
        let enough = SPEEDS.iter().find(|speed| speed.total >= hundreds);
        *enough.unwrap_or(&SPEEDS[SPEEDS.len() - 1])
    }

    /// Returns the speed of the port of `netdev`.
    pub fn from_netdev(netdev: &NetDev) -> Self {
        netdev.mbps.map_or(UNKNOWN, Self::at_least)
    }
}

impl fmt::Display for PortSpeed {
    /// Formats the speed as sysfs does: "2.5 Gb/sec (1X SDR)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = if self.total.is_multiple_of(10) { "" } else { ".5" };
        write!(f, "{}{half} Gb/sec ({})", self.total / 10, self.lanes)
    }
}

/// `ibv_query_port_speed`, in units of 100 Mbit/s.
pub extern "C" fn ibv_query_port_speed(
    context: Handle<'_, OpenContext>,
    port: u32,
    speed: OutPtr<'_, u64>,
) -> c_int {
    boundary::code(|| {
        let netdev = super::port::of_context(context.get()?, port)?;
        speed.write(PortSpeed::from_netdev(&netdev).total.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_below_the_interface() {
        let mut before = 0;
        for mbps in (10..1_000_000).step_by(10) {
            let speed = PortSpeed::at_least(mbps);
            assert!(speed.total * 100 >= mbps && speed.total >= before, "{mbps}: {speed:?}");
            before = speed.total;
        }
        assert_eq!(PortSpeed::at_least(u32::MAX).total, 12000);
    }

    /// Width and speed are codes. Their product must match the total, within the rounding of the
    /// names.
    #[test]
    fn codes_and_sum_agree() {
        let lanes = [(1, 1), (2, 4), (4, 8), (8, 12), (16, 2)];
        let rates = [(1, 25), (2, 50), (8, 100), (32, 250), (64, 500), (128, 1000)];
        let find =
            |table: &[(u8, u32)], code| table.iter().find(|(known, _)| *known == code).unwrap().1;
        for speed in SPEEDS {
            assert_eq!(
                find(&lanes, speed.width) * find(&rates, speed.speed),
                speed.total,
                "{speed:?}"
            );
            assert!(
                speed.lanes.starts_with(&format!("{}X ", find(&lanes, speed.width))),
                "{speed:?}"
            );
        }
        assert_eq!(SPEEDS[0].to_string(), "2.5 Gb/sec (1X SDR)");
        assert_eq!(UNKNOWN.to_string(), "100 Gb/sec (4X EDR)");
    }
}
