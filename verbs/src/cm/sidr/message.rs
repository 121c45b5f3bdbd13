//! What SIDR messages carry to the application.

use crate::error::Error;
use std::net::SocketAddr;
use uiw_datagram::DatagramError;

/// A queue pair that a peer has named.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pair.rs"));
/// # fn main() -> Result<(), AnyError> {
/// use uiw_verbs::cm::{CmEventKind, SidrHandle, SidrInfo, SidrListener};
/// # let (server, client) = (End::new()?, End::new()?);
/// let listener = SidrListener::bind(&server.device, &["127.0.0.1:0".parse()?], &server.channel)?;
/// let to = listener.local_addr();
/// let _request = SidrHandle::request(&client.device, "127.0.0.1:0".parse()?, to, b"", &client.channel)?;
/// let CmEventKind::SidrRequest(asked) = server.event() else { return Err("no request".into()) };
/// // Port 7174, index 1.
/// let number = 7174 << 8 | 1;
/// asked.accept(number, 0x1111_1111, b"welcome")?;
/// let CmEventKind::SidrResolved(info) = client.event() else { return Err("no reply".into()) };
/// let SidrInfo { qpn, qkey, peer, .. } = info;
/// assert_eq!((qpn, qkey, peer), (number, 0x1111_1111, to));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrInfo {
    /// Our address.
    pub local: SocketAddr,
    /// The responder's address.
    pub peer: SocketAddr,
    /// The number of its queue pair.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Its private data.
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
