//! The crate `bytes`: its buffers as memory of operations, and received messages as [`Bytes`].

use crate::buf::{IoBuf, IoBufMut};
use crate::message::Message;
use bytes::{Bytes, BytesMut};

// SAFETY: the block behind it does not move with the value, and all that share it only read. It is not `IoBufMut`: no operation
// writes through the pointer.
unsafe impl IoBuf for Bytes {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }
    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: its bytes are on the heap, and belong to the value alone: a handle that was split off has others.
unsafe impl IoBuf for BytesMut {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut().as_mut_ptr()
    }
    fn len(&self) -> usize {
        Self::len(self)
    }
}

// SAFETY: as above; the pointer comes from a unique slice.
unsafe impl IoBufMut for BytesMut {}

/// Returns the message without a copy: the receive is posted again when the last clone is dropped.
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
