//! Parameters and options of connections.

use crate::id::{IdOptions, State};
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use uiw_cabi_core::abi::cm::RDMA_MAX_RESOURCES;
use uiw_cabi_core::abi::rdma_conn_param;
use uiw_cabi_core::arguments::InPtr;
use uiw_cabi_core::boundary::Result;
use uiw_cabi_core::engine::MAX_RD_ATOMIC;
use uiw_cabi_core::persona::Persona;
use uiw_cabi_core::settings::Settings;
use uiw_cabi_verbs::oob::{acknowledgement_time, receive_time};
use uiw_verbs::ConnConfig;

/// Maximum number of retries. It applies to acknowledgements, regardless of the `retry_count` of the
/// program, because TCP determines how often data is sent again. It also applies to receivers that
/// are not ready if the program passes no parameters.
const RETRIES: u8 = 7;

/// Returns the configuration of a connection or listener of an id.
///
/// # Errors
/// EINVAL if an environment variable has an invalid value.
pub(crate) fn conn_config(set: IdOptions, ird: u8, ord: u8) -> Result<Arc<ConnConfig>> {
    let attributes = set.ack_timeout.and_then(|timeout| acknowledgement_time(timeout, RETRIES));
    let mut options = Settings::get()?.conn_config(ird, ord, attributes);
    options.stream.tos = set.tos;
    options.stream.v6_only = set.v6_only;
    Ok(Arc::new(options))
}

/// Returns the configuration of a connection with the parameters that the program has passed.
///
/// # Errors
/// The errors of [`conn_config`].
pub(crate) fn connection_config(
    set: IdOptions,
    params: &ConnParams,
    persona: Persona,
) -> Result<Arc<ConnConfig>> {
    let mut options = conn_config(set, params.responder_resources, params.initiator_depth)?;
    if persona != Persona::Iwarp {
        // On iWARP no attempt is repeated, and a Send waits for a receive for the default time.
        let options = Arc::make_mut(&mut options);
        options.no_receive_timeout = options.no_receive_timeout.max(params.receive_time());
    }
    Ok(options)
}

/// Parameters that a program passes for a connection.
pub(crate) struct ConnParams {
    pub(crate) private_data: Vec<u8>,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// Number of times that the peer may repeat a Send that finds no receive here.
    rnr_retry: u8,
    pub(crate) qp_num: u32,
}

impl ConnParams {
    /// Returns the time for which a Send of the peer may wait for a receive. rdma_cm sets
    /// `min_rnr_timer`, which encodes the time between two attempts, to 0.
    fn receive_time(&self) -> Duration {
        receive_time(0, self.rnr_retry)
    }
}

/// Reads the parameters, which a program may omit. As in rdma-core, the length of private data
/// without an address is ignored.
pub(crate) fn read(param: &InPtr<'_, rdma_conn_param>, state: &State) -> ConnParams {
    let given = param.as_ref();
    let of = |given: Option<u8>, offered: u8| match given {
        // The maximum of the device or, for a request, the maximum of the peer.
        None | Some(RDMA_MAX_RESOURCES) if state.active => MAX_RD_ATOMIC as u8,
        None | Some(RDMA_MAX_RESOURCES) => offered,
        Some(number) => number,
    };
    let mut private_data = state.connect_data.clone();
    if let Some(given) = given
        && !given.private_data.is_null()
    {
        let (data, len) = (given.private_data.cast(), given.private_data_len.into());
        // SAFETY: `data` is not NULL, as checked above, so it points to `len` initialized bytes, at
        // most 255 (rdma_connect(3), rdma_accept(3)), which do not change during the call. `InPtr`
        // requires both of the pointers in its structure.
        private_data.extend_from_slice(unsafe { slice::from_raw_parts(data, len) });
    }
    ConnParams {
        private_data,
        responder_resources: of(given.map(|g| g.responder_resources), state.responder_resources),
        initiator_depth: of(given.map(|g| g.initiator_depth), state.initiator_depth),
        rnr_retry: given.map_or(RETRIES, |g| g.rnr_retry_count.min(RETRIES)),
        qp_num: given.map_or(0, |g| g.qp_num),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Channel;
    use crate::id::Id;
    use std::ptr;
    use uiw_cabi_core::abi::zeroed;
    use uiw_cabi_core::arguments::argument;

    #[test]
    fn private_data_without_address_ignored() {
        let id = Id::new(&Channel::new().unwrap(), false, ptr::null_mut());
        let mut given: rdma_conn_param = zeroed();
        given.private_data_len = 3;
        // SAFETY: `InPtr` permits the pointer to a local variable that nothing changes while `param`
        // lives. The only pointer in the structure is NULL.
        let param = unsafe { argument(&raw const given) };
        assert!(read(&param, &id.lock()).private_data.is_empty());
    }
}
