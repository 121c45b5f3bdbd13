//! What the blocking and the asyncio classes share: settings, and addresses.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::net::{SocketAddr, ToSocketAddrs};
use uiw::ConnectionConfig;

/// A host and a port, as Python's sockets take them.
pub(crate) type Address = (String, u16);

/// The first address of a name. The name is looked up without the interpreter's lock.
pub(crate) fn resolve(py: Python<'_>, (host, port): Address) -> PyResult<SocketAddr> {
    let name = host.clone();
    let found = py.detach(|| (name.as_str(), port).to_socket_addrs().map(|mut all| all.next()))?;
    found.ok_or_else(|| PyOSError::new_err(format!("{host} has no address")))
}

/// As Python's sockets give them.
pub(crate) fn address(address: SocketAddr) -> Address {
    (address.ip().to_string(), address.port())
}

/// The defaults but for what is given.
pub(crate) fn settings(
    private_data: Option<&Bound<'_, PyAny>>,
    max_message: Option<u32>,
) -> PyResult<ConnectionConfig> {
    let mut settings = ConnectionConfig::default();
    if let Some(data) = private_data {
        settings = settings.private_data(crate::buffer::copy(data)?);
    }
    if let Some(bytes) = max_message {
        settings = settings.max_message(bytes);
    }
    Ok(settings)
}
