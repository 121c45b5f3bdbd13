//! Devices, ports and GIDs.

use super::layout;
use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub struct ibv_device {
    pub _ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}
layout!(ibv_device: 664 { _ops: 0, node_type: 16, transport_type: 20, name: 24, dev_name: 88, dev_path: 152, ibdev_path: 408 });

pub const IBV_NODE_CA: c_int = 1;
pub const IBV_NODE_RNIC: c_int = 4;
pub const IBV_TRANSPORT_IB: c_int = 0;
pub const IBV_TRANSPORT_IWARP: c_int = 1;

pub const IBV_DEVICE_MEM_WINDOW: c_uint = 1 << 17;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
pub const IBV_DEVICE_SRQ_RESIZE: c_uint = 1 << 13;
pub const IBV_DEVICE_RC_RNR_NAK_GEN: c_uint = 1 << 12;

pub const IBV_ATOMIC_HCA: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(ibv_device_attr: 232 { node_guid: 64, max_mr_size: 80, vendor_id: 96, max_qp: 108, device_cap_flags: 116, max_cqe: 132, max_qp_rd_atom: 144, atomic_cap: 164, max_mw: 176, max_ah: 200, max_srq: 212, max_pkeys: 224, phys_port_cnt: 227 });

/// Attributes of `ibv_query_device_ex`. Groups of fields are declared as arrays. The fields for
/// TSO, RSS, pacing, raw packets and tag matching stay zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: [u64; 3],
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_rss_pacing_raw_tm: [u32; 20],
    pub cq_mod_caps: [u16; 2],
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(ibv_device_attr_ex: 400 { comp_mask: 232, odp_caps: 240, completion_timestamp_mask: 264, hca_core_clock: 272, device_cap_flags_ex: 280, tso_rss_pacing_raw_tm: 288, cq_mod_caps: 368, max_dm_size: 376, pci_atomic_caps: 384, xrc_odp_caps: 392, phys_port_cnt_ex: 396 });

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_port_attr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Speed in headers newer than version 44 of rdma-core. The caller passes the size of the
    /// structure in its own version.
    pub active_speed_ex: u32,
}
layout!(ibv_port_attr: 56 { max_mtu: 4, gid_tbl_len: 12, port_cap_flags: 16, pkey_tbl_len: 32, lid: 34, lmc: 38, active_width: 43, phys_state: 45, link_layer: 46, flags: 47, port_cap_flags2: 48, active_speed_ex: 52 });

/// Structure that the exported `ibv_query_port` fills in: the first 48 bytes of [`ibv_port_attr`],
/// which are its version of 2006.
pub type _compat_ibv_port_attr = [u8; 48];

pub const IBV_PORT_DOWN: c_int = 1;
pub const IBV_PORT_ACTIVE: c_int = 4;
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub const IBV_PORT_CM_SUP: u32 = 1 << 16;
pub const IBV_PORT_DEVICE_MGMT_SUP: u32 = 1 << 19;
pub const IBV_PORT_IP_BASED_GIDS: u32 = 1 << 26;
/// Flag in [`ibv_port_attr::flags`]: address handles need a global routing header (GRH).
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

#[repr(C, align(8))]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
layout!(ibv_gid_entry: 32 { gid: 0, gid_index: 16, port_num: 20, gid_type: 24, ndev_ifindex: 28 });

pub const IBV_GID_TYPE_IB: u32 = 0;
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;
