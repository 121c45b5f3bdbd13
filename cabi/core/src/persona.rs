//! The kind of device that programs see. Some programs refuse an iWARP device although they would
//! work with one. The protocol on the wire is the same for all kinds.

use crate::abi::device as dev;
use std::ffi::c_int;
use uiw_verbs::QpState;

/// The kind of device that programs see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Persona {
    /// An iWARP NIC, which is what this device really is.
    #[default]
    Iwarp,
    /// RDMA over converged Ethernet.
    Roce,
    /// An InfiniBand adapter.
    Ib,
}

impl Persona {
    /// Returns the persona with the name `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "iwarp" => Self::Iwarp,
            "roce" => Self::Roce,
            "ib" => Self::Ib,
            _ => return None,
        })
    }

    /// Returns the `node_type` of the device.
    pub fn node_type(self) -> c_int {
        if self == Self::Iwarp { dev::IBV_NODE_RNIC } else { dev::IBV_NODE_CA }
    }

    /// Returns the `transport_type` of the device.
    pub fn transport_type(self) -> c_int {
        if self == Self::Iwarp { dev::IBV_TRANSPORT_IWARP } else { dev::IBV_TRANSPORT_IB }
    }

    /// Returns the `link_layer` of the port.
    pub fn link_layer(self) -> u8 {
        if self == Self::Ib { dev::IBV_LINK_LAYER_INFINIBAND } else { dev::IBV_LINK_LAYER_ETHERNET }
    }

    /// Returns the type of every GID.
    pub fn gid_type(self) -> u32 {
        if self == Self::Roce { dev::IBV_GID_TYPE_ROCE_V2 } else { dev::IBV_GID_TYPE_IB }
    }

    /// Returns the state of a new queue pair.
    pub fn first_state(self) -> QpState {
        if self == Self::Iwarp { QpState::Init } else { QpState::Reset }
    }

    /// Returns the number of partition keys of the port. InfiniBand programs look for the key
    /// 0xFFFF, so other devices than iWARP have this one.
    pub fn pkeys(self) -> u16 {
        u16::from(self != Self::Iwarp)
    }
}
