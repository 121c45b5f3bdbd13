//! SIDR (service ID resolution): obtains the number and Q_Key of a listener's UD queue pair with
//! one request and one reply (`docs/datagrams.md`).

mod binding;
mod handle;
mod listener;
mod message;
mod request;
mod requester;
mod responder;
mod slot;

pub use handle::SidrHandle;
pub use listener::SidrListener;
pub use message::SidrInfo;
pub use request::SidrRequest;
pub(crate) use slot::SidrSlot;
