//! Bytes in order over Sends, for programs that want neither messages nor memory.

mod message;

use crate::buf::Mr;
use crate::connection::Connection;
use crate::error::{Error, ErrorKind};
use crate::message::Message;
use crate::op::BufferOp;
use message::{FormatError, HEADER, Header, emit_first, parse_first};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use uiw_verbs::integration::register_waker;

/// Receives that are kept for messages without payload, which need no credit: the peer sends one when half of the credits that it
/// was given are used, so at most two of them come before this end sends again.
const RESERVED: u32 = 2;
/// Bytes of payload of one message at most.
const LONGEST: u32 = 256 << 10;

/// A stream of bytes over a connection, in both directions, with the flow control of credits: a sender never has more messages under
/// way than the peer has receives for. So RDMA Writes, Reads and atomics on the same connection go on while the peer does not read.
///
/// It implements tokio's `AsyncRead` and `AsyncWrite` with the feature `tokio`; [`crate::blocking::ByteStream`] implements
/// [`std::io::Read`] and [`std::io::Write`]. Both ends use it from the first message on; a peer on the raw layer can follow the format.
///
/// # Format
/// Every message is a Send of 8 bytes, the header, and a payload. The header has the version (1), flags (bit 0: nothing follows the
/// payload in this direction), two bytes of zero, and four bytes, big-endian: how many further messages its receiver may send. The first
/// message of each end has a payload of four bytes, big-endian: the longest payload that this end receives. It, and messages
/// without payload and flags, need no credit; at most two of the latter are sent until a message with payload was received.
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
    reading: ReadHalf,
    writing: WriteHalf,
    /// Last: operations and messages are dropped before it.
    connection: Connection,
}

/// The direction towards this end.
#[derive(Debug)]
struct ReadHalf {
    /// Messages with bytes that were not read. The peer has credits for so many only.
    messages: VecDeque<Message>,
    /// Bytes of the first that were read, its header among them.
    read: usize,
    /// Messages that the peer may send.
    granted: u32,
    /// Messages whose receives are free again, and which are not granted to the peer yet.
    freed: u32,
    /// Number of free receives that are granted in a message of their own.
    threshold: u32,
    /// No byte follows those in `messages`.
    ended: bool,
}

/// The direction towards the peer.
#[derive(Debug)]
struct WriteHalf {
    /// The longest payload that the peer receives; `None` until its first message is here.
    longest: Option<u32>,
    /// Messages that may be sent.
    credits: u32,
    under_way: VecDeque<BufferOp<Vec<u8>>>,
    /// Tasks that wait for messages under way: an operation has one waker, but the two directions may be used by one task each.
    waiting: Arc<WaitingTasks>,
    /// Wakes all of them.
    waker: Waker,
    /// Buffers of messages that were sent.
    free: Vec<Mr<Vec<u8>>>,
    /// Messages that may be under way.
    depth: usize,
    /// The last message was sent.
    ended: bool,
}

/// Tasks that are woken together.
#[derive(Debug, Default)]
struct WaitingTasks(Mutex<Vec<Waker>>);

impl Wake for WaitingTasks {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl ByteStream {
    /// A stream over `connection`, on which nothing was sent or received before.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] for a connection with a receive depth below 4 or receives of 8 bytes or fewer.
    pub fn new(connection: Connection) -> Result<Self, Error> {
        let (depth, size) = connection.recv_depth_and_size();
        if depth < RESERVED + 2 || size as usize <= HEADER {
            let what = "receive depth of at least 4 and a receive size above 8: given";
            let limit = (RESERVED + 2).into();
            return Err(ErrorKind::Limit { what, asked: depth.into(), limit }.into());
        }
        let window = depth - RESERVED;
        let reading = ReadHalf {
            messages: VecDeque::new(),
            read: HEADER,
            granted: window,
            freed: 0,
            threshold: window.div_ceil(2),
            ended: false,
        };
        let waiting = Arc::<WaitingTasks>::default();
        let writing = WriteHalf {
            waker: Waker::from(Arc::clone(&waiting)),
            waiting,
            longest: None,
            credits: 0,
            under_way: VecDeque::new(),
            free: Vec::new(),
            depth: connection.send_depth() as usize,
            ended: false,
        };
        let mut stream = Self { reading, writing, connection };
        let longest = (size - HEADER as u32).min(LONGEST);
        stream.send(Header { credits: window, fin: false }, &emit_first(longest))?;
        Ok(stream)
    }

    /// The connection underneath: for RDMA Writes, Reads and atomics. Sends on it and receives of it belong to the stream.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Reads into `buf`; 0 bytes when the peer has shut its direction down.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the connection was closed without that, as the system closes it for a process that has ended;
    /// the connection's end, if it was not orderly; [`io::ErrorKind::InvalidData`] for a peer that breaks the format.
    pub async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// Writes bytes of `buf`; returns how many. They are copied; the peer has them after [`ByteStream::flush`] or a later call.
    ///
    /// # Errors
    /// As [`ByteStream::read`]; [`io::ErrorKind::BrokenPipe`] behind [`ByteStream::shutdown`].
    pub async fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, buf)).await
    }

    /// Waits until TCP has everything that was written.
    ///
    /// # Errors
    /// As [`ByteStream::read`].
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Ends this direction: the peer reads what was written, and then 0 bytes. The other direction goes on. Without it, the end of the
    /// connection is an error at the peer, which cannot know whether bytes are missing.
    ///
    /// # Errors
    /// As [`ByteStream::read`].
    pub async fn shutdown(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_shutdown(cx)).await
    }

    /// [`ByteStream::read`] as a poll function.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            if let Some(copied) = self.reading.copy(buf) {
                self.grant_credits(cx)?;
                return Poll::Ready(Ok(copied));
            }
            if self.reading.ended || buf.is_empty() {
                return Poll::Ready(Ok(0));
            }
            // Credits that found no room in the send queue: the peer may wait for them.
            self.grant_credits(cx)?;
            ready!(self.poll_message(cx))?;
        }
    }

    /// [`ByteStream::write`] as a poll function.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let longest = ready!(self.poll_credit(cx))?;
        let bytes = &buf[..buf.len().min(longest as usize)];
        self.send_with_credit(false, bytes)?;
        Poll::Ready(Ok(bytes.len()))
    }

    /// [`ByteStream::flush`] as a poll function.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.writing.under_way.is_empty() {
            ready!(self.writing.poll_sent(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// [`ByteStream::shutdown`] as a poll function.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.writing.ended {
            ready!(self.poll_credit(cx))?;
            self.send_with_credit(true, &[])?;
            self.writing.ended = true;
        }
        self.poll_flush(cx)
    }

    /// Waits until a message with payload may be sent, and for room. Returns the longest payload.
    fn poll_credit(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<u32>> {
        if self.writing.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.writing.poll_room(cx))?;
        loop {
            if let Some(longest) = self.writing.longest
                && self.writing.credits > 0
            {
                return Poll::Ready(Ok(longest));
            }
            ready!(self.poll_message(cx))?;
        }
    }

    /// Takes the next message of the peer.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(message) = ready!(self.connection.poll_recv(cx))? else {
            if !self.reading.ended {
                return Poll::Ready(Err(FormatError::Truncated.into()));
            }
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let (header, payload) = Header::parse(&message)?;
        let counted = self.writing.credits.checked_add(header.credits);
        self.writing.credits = counted.ok_or(FormatError::Credits { credits: header.credits })?;
        if self.writing.longest.is_none() {
            self.writing.longest = Some(parse_first(payload)?.min(LONGEST));
            self.reading.ended = header.fin;
        } else if header.fin || !payload.is_empty() {
            self.reading.take(header, message)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Grants free receives to the peer, if they are so many that it may wait for them and there is room.
    fn grant_credits(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.reading.freed >= self.reading.threshold && self.writing.poll_room(cx)?.is_ready() {
            let credits = self.reading.grant();
            self.send(Header { credits, fin: false }, &[])?;
        }
        Ok(())
    }

    fn send_with_credit(&mut self, fin: bool, payload: &[u8]) -> Result<(), Error> {
        self.writing.credits -= 1;
        let credits = self.reading.grant();
        self.send(Header { credits, fin }, payload)
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<(), Error> {
        let len = HEADER + payload.len();
        let fits = self.writing.free.pop().map(Mr::full).filter(|buffer| buffer.len() >= len);
        let mut buffer = match fits {
            Some(buffer) => buffer,
            None => {
                let longest = self.writing.longest.map_or(payload.len(), |longest| longest as usize);
                self.connection.pd().register(vec![0; HEADER + longest])?
            }
        };
        let bytes = buffer.bytes_mut();
        bytes[..HEADER].copy_from_slice(&header.emit());
        bytes[HEADER..len].copy_from_slice(payload);
        self.writing.under_way.push_back(self.connection.send(buffer.range(0..len)?));
        Ok(())
    }
}

impl ReadHalf {
    /// Copies bytes of the first message; `None` when there is none.
    fn copy(&mut self, buf: &mut [u8]) -> Option<usize> {
        let message = self.messages.front()?;
        let rest = &message[self.read..];
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        self.read += len;
        if len == rest.len() {
            self.messages.pop_front();
            self.read = HEADER;
            self.freed += 1;
        }
        Some(len)
    }

    /// A message with payload or with the end of the direction.
    fn take(&mut self, header: Header, message: Message) -> Result<(), FormatError> {
        if self.ended {
            return Err(FormatError::BehindFin);
        }
        self.granted = self.granted.checked_sub(1).ok_or(FormatError::NoCredit)?;
        self.ended = header.fin;
        if message.len() == HEADER {
            self.freed += 1;
        } else {
            self.messages.push_back(message);
        }
        Ok(())
    }

    /// Grants the free receives to the peer: how many, for the next header.
    fn grant(&mut self) -> u32 {
        self.granted += self.freed;
        std::mem::take(&mut self.freed)
    }
}

impl WriteHalf {
    /// Waits until another message may be under way.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Those that are over already give their buffers back.
        while !self.under_way.is_empty() {
            match self.poll_sent(cx)? {
                Poll::Ready(()) => {}
                Poll::Pending if self.under_way.len() < self.depth => break,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the oldest message under way.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(op) = self.under_way.front_mut() else { return Poll::Ready(Ok(())) };
        // Before the poll: an operation that is over behind it finds the waker.
        register_waker(&mut self.waiting.0.lock(), cx.waker());
        let outcome = ready!(Pin::new(op).poll(&mut Context::from_waker(&self.waker)));
        self.under_way.pop_front();
        self.free.push(outcome?);
        Poll::Ready(Ok(()))
    }
}
