//! `rdma_set_option`, and the functions for vendor options of the connection establishment (ECE),
//! which are not offered.

use crate::registry::RegisteredPtr as _;
use std::ffi::c_int;
use uiw_cabi_core::abi::cm::*;
use uiw_cabi_core::abi::{ibv_ece, rdma_cm_id, zeroed};
use uiw_cabi_core::arguments::{AnyPtr, ArrayPtr, Count, InPtr, OutPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::errno::Errno;

/// `rdma_set_option`. An acknowledgement time-out is a concept of InfiniBand: it is stored as an
/// attribute of the queue pair, and TCP uses its own.
pub extern "C" fn rdma_set_option<'a>(
    id: AnyPtr<rdma_cm_id>,
    level: c_int,
    name: c_int,
    value: ArrayPtr<'a, u8>,
    len: Count<'a>,
) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        if level != RDMA_OPTION_ID {
            return Err(Errno::NOSYS.because("the option has another level than the id"));
        }
        let mut state = id.lock_checked()?;
        let options = &mut state.options;
        match name {
            RDMA_OPTION_ID_TOS => options.tos = Some(u8::from_ne_bytes(option_bytes(&value, len)?)),
            RDMA_OPTION_ID_REUSEADDR => {
                options.reuse = c_int::from_ne_bytes(option_bytes(&value, len)?) != 0;
            }
            RDMA_OPTION_ID_AFONLY => {
                options.v6_only = c_int::from_ne_bytes(option_bytes(&value, len)?) != 0;
            }
            RDMA_OPTION_ID_ACK_TIMEOUT => {
                options.ack_timeout = Some(u8::from_ne_bytes(option_bytes(&value, len)?));
            }
            _ => return Err(Errno::NOSYS.because("unknown option")),
        }
        Ok(())
    })
}

/// Returns the value of an option that has `N` bytes.
fn option_bytes<'a, const N: usize>(value: &ArrayPtr<'a, u8>, len: Count<'a>) -> Result<[u8; N]> {
    let bytes = if value.is_null() { None } else { value.get(len)? };
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| {
        Errno::INVAL.because("the value of the option is NULL or has the wrong length")
    })
}

/// `rdma_set_local_ece`: accepts options while the id has no queue pair of its own, but does not
/// send them.
pub extern "C" fn rdma_set_local_ece(id: AnyPtr<rdma_cm_id>, ece: InPtr<'_, ibv_ece>) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        let vendor = ece.get()?.vendor_id;
        if id.own_qp().is_some() || vendor == 0 {
            return Err(Errno::INVAL
                .because("vendor options of an id with a queue pair of its own, or of no vendor"));
        }
        Ok(())
    })
}

/// `rdma_get_remote_ece`: returns empty options while the id has no queue pair of its own.
pub extern "C" fn rdma_get_remote_ece(id: AnyPtr<rdma_cm_id>, ece: OutPtr<'_, ibv_ece>) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        if id.own_qp().is_some() || ece.is_null() {
            return Err(Errno::INVAL.because(
                "vendor options of an id with a queue pair of its own, or no place for them",
            ));
        }
        ece.write(zeroed())
    })
}
