//! Byte stream over RDMA Sends, for programs that need neither message boundaries nor registered
//! memory.

mod message;

use crate::buf::Mr;
use crate::connection::Connection;
use crate::error::{Error, ErrorKind};
use crate::message::Message;
use crate::op::BufferOp;
use crate::waiting::{TaskKey, WaitingTasks};
use message::{FormatError, HEADER_LEN, Header, emit_first, parse_first};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

/// Number of posted receives that are not granted to the peer as credits. They are for messages
/// that need no credit because they only carry credits for this end.
///
/// The peer sends such a message when it has read half of the messages for which this end has
/// credits. So at most two can arrive before this end sends data again.
const RESERVED_RECEIVES: u32 = 2;
/// Length in bytes of the send buffers for short messages. Those for others have the maximum length.
const SHORT_BUFFER: usize = 4 << 10;
/// Maximum payload length of a message in bytes.
const MAX_PAYLOAD: u32 = 256 << 10;

/// Bidirectional byte stream over a connection, with credit-based flow control.
///
/// A sender never has more messages in flight than the peer has receives for them. RDMA Writes,
/// Reads and atomics on the same connection therefore continue even if the peer does not read from
/// the stream.
///
/// With the feature `tokio`, `ByteStream` implements tokio's `AsyncRead` and `AsyncWrite`.
/// [`crate::blocking::ByteStream`] implements [`std::io::Read`] and [`std::io::Write`].
///
/// Both ends must use the stream from the first message of the connection on. A peer that uses the
/// raw layer can implement the format itself.
///
/// # Format
/// Every message is a Send of an 8-byte header and a payload. Integers are big-endian.
///
/// | byte | header field |
/// |---|---|
/// | 0 | version, 1 |
/// | 1 | flags; bit 0: this message is the last one in its direction |
/// | 2, 3 | zero |
/// | 4 to 7 | credits: the number of further messages that the receiver of this header may send |
///
/// The first message of each end has a payload of four bytes: the maximum payload length in bytes
/// that this end can receive.
///
/// Each message takes one credit, except an end's first message and messages with neither payload
/// nor flags. Of the latter, an end sends at most two before it receives the next message with
/// payload.
///
/// ```
/// use std::io::{Read, Write};
/// use uiw::blocking::{ByteStream, Connection, Listener};
/// use uiw::{ConnectionConfig, Device};
///
/// let pd = Device::open()?.alloc_pd()?;
/// let listener = Listener::bind(&pd, "127.0.0.1:0".parse()?, &ConnectionConfig::default())?;
/// let address = listener.local_addr();
/// let server = std::thread::spawn(move || -> std::io::Result<()> {
///     let mut stream = ByteStream::new(listener.accept()?)?;
///     let mut text = String::new();
///     stream.read_to_string(&mut text)?;
///     stream.write_all(text.to_uppercase().as_bytes())?;
///     stream.shutdown()
/// });
/// let pd = Device::open()?.alloc_pd()?;
/// let mut stream = ByteStream::new(Connection::connect(&pd, address, &ConnectionConfig::default())?)?;
/// stream.write_all(b"good day")?;
/// stream.shutdown()?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer)?;
/// assert_eq!(answer, "GOOD DAY");
/// server.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ByteStream {
    reading: ReadState,
    writing: WriteState,
    /// Tasks that wait for progress. An operation stores only one waker, but each direction may be
    /// used by a task of its own, and both need messages of the peer and room in the send queue.
    tasks: Arc<WaitingTasks>,
    /// Waker of all `tasks`.
    waker: Waker,
    /// Task that has read last.
    reader: TaskKey,
    /// Task that has written last.
    writer: TaskKey,
    /// Declared last, so that operations and messages are dropped before the connection.
    connection: Connection,
}

/// State of the direction from the peer to this end.
#[derive(Debug)]
struct ReadState {
    /// Messages that the program has not read completely. The peer's credits limit their number.
    messages: VecDeque<Message>,
    /// Number of bytes of the first message that are consumed, including its header.
    consumed: usize,
    /// Maximum payload length in bytes, which was announced to the peer.
    max_payload: u32,
    /// Number of messages that the peer may still send.
    granted: u32,
    /// Number of receives that are free again and not yet granted to the peer.
    freed: u32,
    /// Value of `freed` from which the receives are granted in a message of their own, without
    /// waiting for data to send.
    threshold: u32,
    /// True if the peer has ended its direction: no data will follow `messages`.
    ended: bool,
}

/// State of the direction from this end to the peer.
#[derive(Debug)]
struct WriteState {
    /// Maximum payload length in bytes that the peer can receive; `None` until its first message
    /// has arrived.
    max_payload: Option<u32>,
    /// Number of messages that this end may still send.
    credits: u32,
    /// Sends that have not completed, oldest first.
    in_flight: VecDeque<BufferOp<Vec<u8>>>,
    /// Buffers of completed Sends, for reuse.
    free: Vec<Mr<Vec<u8>>>,
    /// Maximum number of Sends in flight.
    depth: usize,
    /// True if the last message of this direction has been sent.
    ended: bool,
    /// Kind and text of the first error of a Send: bytes that were written are lost, which every
    /// later write and flush reports.
    failed: Option<(io::ErrorKind, String)>,
}

impl ByteStream {
    /// Creates a stream over `connection`, on which nothing was sent or received before.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Misuse`] if the receive depth of the connection is less than 4 or its
    /// receives have 8 bytes or fewer, and [`ErrorKind::Register`] if the device has no STag left.
    pub fn new(connection: Connection) -> Result<Self, Error> {
        let (depth, size) = connection.recv_depth_and_size();
        if depth < RESERVED_RECEIVES + 2 || size as usize <= HEADER_LEN {
            let rule = "a byte stream needs a receive depth of at least 4, and receives of more than 8 bytes";
            return Err(ErrorKind::Misuse(rule).into());
        }
        let window = depth - RESERVED_RECEIVES;
        let max_payload = (size - HEADER_LEN as u32).min(MAX_PAYLOAD);
        let reading = ReadState {
            messages: VecDeque::new(),
            consumed: HEADER_LEN,
            max_payload,
            granted: window,
            freed: 0,
            threshold: window.div_ceil(2),
            ended: false,
        };
        let tasks = Arc::<WaitingTasks>::default();
        let waker = Waker::from(Arc::clone(&tasks));
        let writing = WriteState {
            max_payload: None,
            credits: 0,
            in_flight: VecDeque::new(),
            free: Vec::new(),
            depth: connection.send_depth() as usize,
            ended: false,
            failed: None,
        };
        let (reader, writer) = (None, None);
        let mut stream = Self { reading, writing, connection, tasks, waker, reader, writer };
        stream.send(Header { credits: window, fin: false }, &emit_first(max_payload))?;
        Ok(stream)
    }

    /// Returns the underlying connection, which may be used for RDMA Writes, Reads and atomics. Its
    /// Sends and receives are reserved for the stream.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Reads available bytes into `buf` and returns their number: 0 after the peer has shut down
    /// its direction, or if `buf` is empty.
    ///
    /// # Cancel safety
    /// Dropping the future loses no bytes.
    ///
    /// # Errors
    /// * [`io::ErrorKind::UnexpectedEof`] if the connection was closed without a shutdown of the
    ///   peer's direction. The operating system closes it that way when the peer's process exits.
    /// * The reason for which the connection ended, if it was not closed in order.
    /// * [`io::ErrorKind::InvalidData`] if the peer violates the format.
    pub async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// Copies bytes from `buf` to a message, starts to send it, and returns the number of bytes.
    ///
    /// The call waits while the peer grants no credit or the send queue is full.
    /// [`ByteStream::flush`] waits until TCP has the bytes.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, no bytes were written.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::BrokenPipe`] after [`ByteStream::shutdown`], or if the connection
    /// was closed after the peer has shut down its direction; otherwise the errors are those of
    /// [`ByteStream::read`].
    pub async fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, buf)).await
    }

    /// Waits until TCP has accepted all written bytes.
    ///
    /// # Errors
    /// The errors are those of [`ByteStream::read`].
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Ends this direction: after the bytes written so far, the peer reads 0 bytes. The other
    /// direction stays open.
    ///
    /// If the connection is closed without a shutdown, the peer's read fails, because the peer
    /// cannot know whether bytes are missing.
    ///
    /// # Errors
    /// The errors are those of [`ByteStream::write`], except that a repeated shutdown is no error.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_shutdown(cx)).await
    }

    /// Poll function of [`ByteStream::read`].
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.tasks.register(&mut self.reader, cx.waker());
        let waker = self.waker.clone();
        let cx = &mut Context::from_waker(&waker);
        loop {
            if let Some(copied) = self.reading.copy(buf) {
                self.grant_credits(cx);
                return Poll::Ready(Ok(copied));
            }
            if self.reading.ended || buf.is_empty() {
                return Poll::Ready(Ok(0));
            }
            // Try again to grant credits for which the send queue had no room earlier: the peer may
            // be waiting for them.
            self.grant_credits(cx);
            if self.poll_message(cx)?.is_pending() {
                // The peer may be waiting for credits that this end cannot send.
                self.writing.check()?;
                return Poll::Pending;
            }
        }
    }

    /// Poll function of [`ByteStream::write`].
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let waker = self.register_writer(cx);
        let max_payload = ready!(self.poll_credit(&mut Context::from_waker(&waker)))?;
        let bytes = &buf[..buf.len().min(max_payload as usize)];
        self.send_with_credit(false, bytes)?;
        Poll::Ready(Ok(bytes.len()))
    }

    /// Poll function of [`ByteStream::flush`].
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let waker = self.register_writer(cx);
        self.writing.poll_all_sent(&mut Context::from_waker(&waker))
    }

    /// Poll function of [`ByteStream::shutdown`].
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let waker = self.register_writer(cx);
        let cx = &mut Context::from_waker(&waker);
        if !self.writing.ended {
            ready!(self.poll_credit(cx))?;
            self.send_with_credit(true, &[])?;
            self.writing.ended = true;
        }
        self.writing.poll_all_sent(cx)
    }

    /// Registers the task that writes, and returns the waker of all tasks.
    fn register_writer(&mut self, cx: &Context<'_>) -> Waker {
        self.tasks.register(&mut self.writer, cx.waker());
        self.waker.clone()
    }

    /// Waits for a credit and for room in the send queue. Returns the maximum payload length of the
    /// message that may be sent.
    fn poll_credit(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<u32>> {
        if self.writing.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.writing.poll_room(cx))?;
        loop {
            if let Some(max_payload) = self.writing.max_payload
                && self.writing.credits > 0
            {
                return Poll::Ready(Ok(max_payload));
            }
            ready!(self.poll_message(cx))?;
        }
    }

    /// Waits for the next message of the peer, and processes it.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(message) = ready!(self.connection.poll_recv(cx))? else {
            if !self.reading.ended {
                return Poll::Ready(Err(FormatError::Truncated.into()));
            }
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let (header, payload) = Header::parse(&message)?;
        let credits = self.writing.credits.checked_add(header.credits);
        self.writing.credits = credits.ok_or(FormatError::Credits { credits: header.credits })?;
        if self.writing.max_payload.is_none() {
            self.writing.max_payload = Some(parse_first(payload)?.min(MAX_PAYLOAD));
            self.reading.ended = header.fin;
        } else if header.fin || !payload.is_empty() {
            self.reading.push(header, message)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Grants free receives to the peer in a message of their own, if their number has reached the
    /// threshold, from which the peer may be waiting for them, and the send queue has room.
    /// Otherwise the next call or the next message with payload grants them. Errors are those of
    /// the other direction, which keeps them.
    fn grant_credits(&mut self, cx: &mut Context<'_>) {
        if self.reading.freed >= self.reading.threshold
            && let Poll::Ready(Ok(())) = self.writing.poll_room(cx)
        {
            let credits = self.reading.take_freed();
            if let Err(error) = self.send(Header { credits, fin: false }, &[]) {
                let _ = self.writing.fail(error);
            }
        }
    }

    /// Sends a message that takes a credit. The caller has waited for [`Self::poll_credit`].
    fn send_with_credit(&mut self, fin: bool, payload: &[u8]) -> io::Result<()> {
        self.writing.credits -= 1;
        let credits = self.reading.take_freed();
        // The credits of a message that was not sent are lost, so the stream cannot continue.
        self.send(Header { credits, fin }, payload).map_err(|error| self.writing.fail(error))
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<(), Error> {
        let len = HEADER_LEN + payload.len();
        let reusable = self.writing.free.pop().map(Mr::full).filter(|buffer| buffer.len() >= len);
        let mut buffer = match reusable {
            Some(buffer) => buffer,
            None => {
                let longest = HEADER_LEN + self.writing.max_payload.map_or(0, |max| max as usize);
                let capacity = if len <= SHORT_BUFFER { SHORT_BUFFER } else { longest };
                self.connection.pd().register(vec![0; capacity])?
            }
        };
        let bytes = buffer.bytes_mut();
        bytes[..HEADER_LEN].copy_from_slice(&header.emit());
        bytes[HEADER_LEN..len].copy_from_slice(payload);
        self.writing.in_flight.push_back(self.connection.send(buffer.range(0..len)?));
        Ok(())
    }
}

impl ReadState {
    /// Copies unread bytes of the first message to `buf` and returns their number, or `None` if
    /// there is no message.
    fn copy(&mut self, buf: &mut [u8]) -> Option<usize> {
        let message = self.messages.front()?;
        let rest = &message[self.consumed..];
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        self.consumed += len;
        if len == rest.len() {
            self.messages.pop_front();
            self.consumed = HEADER_LEN;
            self.freed += 1;
        }
        Some(len)
    }

    /// Queues a received message that took a credit: one that has a payload or ends the direction.
    /// The message has a header.
    fn push(&mut self, header: Header, message: Message) -> Result<(), FormatError> {
        if self.ended {
            return Err(FormatError::AfterFin);
        }
        let (len, max_payload) = (message.len() - HEADER_LEN, self.max_payload);
        if len > max_payload as usize {
            return Err(FormatError::PayloadLength { len, max_payload });
        }
        self.granted = self.granted.checked_sub(1).ok_or(FormatError::NoCredit)?;
        self.ended = header.fin;
        if message.len() == HEADER_LEN {
            self.freed += 1;
        } else {
            self.messages.push_back(message);
        }
        Ok(())
    }

    /// Counts the free receives as granted, and returns their number for the header of the next
    /// message.
    fn take_freed(&mut self) -> u32 {
        self.granted += self.freed;
        std::mem::take(&mut self.freed)
    }
}

impl WriteState {
    /// Waits until the send queue has room for another message.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Also takes the buffers of all Sends that have already completed.
        loop {
            match self.poll_sent(cx)? {
                Poll::Ready(()) if self.in_flight.is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(()) => {}
                Poll::Pending if self.in_flight.len() < self.depth => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Waits for all Sends in flight.
    fn poll_all_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_sent(cx))?;
            if self.in_flight.is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Waits for the oldest Send in flight, if there is one, and keeps its buffer for reuse.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        let Some(op) = self.in_flight.front_mut() else { return Poll::Ready(Ok(())) };
        let outcome = ready!(Pin::new(op).poll(cx));
        self.in_flight.pop_front();
        match outcome {
            Ok(buffer) => self.free.push(buffer),
            Err(error) => return Poll::Ready(Err(self.fail(error.into()))),
        }
        Poll::Ready(Ok(()))
    }

    /// Records the error of a Send, and returns it.
    fn fail(&mut self, error: Error) -> io::Error {
        let error = io::Error::from(error);
        self.failed.get_or_insert_with(|| (error.kind(), error.to_string()));
        error
    }

    /// Returns the recorded error again.
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
            None => Ok(()),
        }
    }
}
