//! Contents of SIDR messages for the application.

use crate::error::Error;
use std::net::SocketAddr;
use uiw_datagram::DatagramError;

/// Queue pair announced in a peer's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrInfo {
    /// Local address.
    pub local: SocketAddr,
    /// Address of the responder.
    pub peer: SocketAddr,
    /// Number of its queue pair.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Private data.
    pub private_data: Vec<u8>,
}

pub(super) fn too_long(error: DatagramError) -> Error {
    match error {
        DatagramError::PrivateData { len, max } => {
            Error::Limit { what: "private data", asked: len as u64, limit: max as u64 }
        }
        _ => Error::Misuse("not a SIDR message"),
    }
}
