//! Support for the crate `bytes`: its types as buffers of operations, and received messages as
//! [`Bytes`].

use crate::buf::{IoBuf, IoBufMut};
use crate::message::Message;
use bytes::{Bytes, BytesMut};

// SAFETY: the bytes do not move with the value, and all handles that share them only read. It is
// not `IoBufMut`, so no operation writes through the pointer.
unsafe impl IoBuf for Bytes {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }
    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: the bytes are on the heap and belong to this value alone: a handle that was split off has
// different bytes.
unsafe impl IoBuf for BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut().as_mut_ptr()
    }
    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: as above; the pointer is derived from a unique slice.
unsafe impl IoBufMut for BytesMut {}

/// Converts a received message without copying it. Its receive is posted again when the last clone
/// of the [`Bytes`] is dropped.
///
/// ```
/// use bytes::Bytes;
/// # use uiw::{ConnectionConfig, Device, blocking::{Connection, Listener}};
/// # let pd = Device::open()?.alloc_pd()?;
/// # let settings = ConnectionConfig::default();
/// # let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &settings)?;
/// # let to = listener.local_addr();
/// # let client = std::thread::spawn(move || {
/// #     let device = Device::open().unwrap();
/// #     let pd = device.alloc_pd().unwrap();
/// #     let connection = Connection::connect(&pd, to, &ConnectionConfig::default()).unwrap();
/// #     let message = pd.register(Bytes::from_static(b"key=value")).unwrap();
/// #     connection.send(message).wait().unwrap();
/// #     connection.ended();
/// # });
/// # let connection = listener.accept()?;
/// let message: Bytes = connection.recv()?.ok_or("closed")?.into();
/// let value = message.slice(4..);
/// assert_eq!(value, "value");
/// # connection.disconnect()?;
/// # client.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl From<Message> for Bytes {
    fn from(message: Message) -> Self {
        Self::from_owner(message)
    }
}
