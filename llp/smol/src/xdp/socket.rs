//! One AF_XDP socket: its memory, four rings, and one queue of the interface.

use super::ring::Ring;
use super::umem::{CHUNKS, Chunk, Layout, Umem};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;
use uiw_llp::interface::check;

/// Number of entries of each ring.
pub(super) const RING: u32 = CHUNKS / 2;
/// Number of chunks of the longest frame: 65,549 bytes in chunks of 4096.
const LONGEST: usize = 17;
/// Number of repeated attempts to bind. A queue stays busy for some milliseconds after its last
/// user has closed it, and for up to a second on a busy machine.
const BUSY_TRIES: u32 = 200;
/// Pause between two of these attempts.
const BUSY_WAIT: Duration = Duration::from_millis(10);

/// Received frame.
pub(super) enum ReceivedFrame {
    /// A frame in one chunk of the memory.
    Chunk(Chunk),
    /// A frame that was copied from several chunks.
    Copied(Vec<u8>),
}

impl ReceivedFrame {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Chunk(chunk) => chunk.bytes(),
            Self::Copied(bytes) => bytes,
        }
    }
}

/// AF_XDP socket. The fields are dropped in this order: the mappings of the rings, the socket, then
/// the memory.
pub(super) struct XdpSocket {
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    fd: OwnedFd,
    umem: Umem,
    chunk: usize,
    /// Free chunks for sending.
    free: Vec<u64>,
    /// First pieces of a frame whose last piece has not arrived yet.
    partial: Vec<u8>,
    /// True if frames were added to the ring since the last flush.
    unflushed: bool,
    spare: Vec<Vec<u8>>,
}

impl XdpSocket {
    pub(super) fn open(
        index: u32,
        queue: u32,
        zero_copy: bool,
        layout: &Layout,
    ) -> io::Result<Self> {
        let fd = socket()?;
        let umem = Umem::new(layout.chunk, CHUNKS)?;
        let registration = libc::xdp_umem_reg {
            addr: umem.address(),
            len: umem.len(),
            chunk_size: layout.chunk as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &registration).map_err(|error| {
            // ENOBUFS means that the frames exceed the limit of locked memory.
            if error.raw_os_error() == Some(libc::ENOBUFS) {
                let bytes = umem.len();
                let why = format!("{bytes} bytes for frames exceed the limit of locked memory");
                return io::Error::new(io::ErrorKind::OutOfMemory, why);
            }
            error
        })?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(&fd, ring, &RING)?;
        }
        let offsets = offsets(&fd)?;
        let at = fd.as_fd();
        let rx = Ring::map(at, libc::XDP_PGOFF_RX_RING, offsets.rx, RING)?;
        let tx = Ring::map(at, libc::XDP_PGOFF_TX_RING, offsets.tx, RING)?;
        let fill = Ring::map(at, libc::XDP_UMEM_PGOFF_FILL_RING as i64, offsets.fr, RING)?;
        let completion =
            Ring::map(at, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, offsets.cr, RING)?;
        let chunk = layout.chunk;
        let place = |n: u32| u64::from(n) * chunk as u64;
        let mut socket = Self {
            rx,
            tx,
            fill,
            completion,
            fd,
            umem,
            chunk,
            free: (RING..CHUNKS).map(place).collect(),
            partial: Vec::new(),
            unflushed: false,
            spare: Vec::new(),
        };
        for n in 0..RING {
            socket.fill.push(place(n));
        }
        socket.fill.publish();
        let copy = if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let several = if layout.several { libc::XDP_USE_SG } else { 0 };
        socket.bind(index, queue, copy | several | libc::XDP_USE_NEED_WAKEUP)?;
        Ok(socket)
    }

    fn bind(&self, index: u32, queue: u32, flags: u16) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: index,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        let mut tries = 0;
        loop {
            // SAFETY: the address is readable for `len` bytes.
            let bound = unsafe {
                libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), len)
            };
            match check(bound) {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && tries < BUSY_TRIES => {
                    tries += 1;
                    std::thread::sleep(BUSY_WAIT);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the next complete frame.
    pub(super) fn receive(&mut self) -> Option<ReceivedFrame> {
        loop {
            let piece = self.rx.pop()?;
            let more = piece.options & libc::XDP_PKT_CONTD != 0;
            let len = piece.len as usize;
            if !more && self.partial.is_empty() {
                return Some(ReceivedFrame::Chunk(self.umem.take(piece.addr, len)));
            }
            self.partial.extend_from_slice(self.umem.bytes(piece.addr, len));
            self.fill(self.umem.chunk_of(piece.addr));
            if !more {
                let empty = self.spare.pop().unwrap_or_default();
                return Some(ReceivedFrame::Copied(std::mem::replace(&mut self.partial, empty)));
            }
        }
    }

    /// Takes back the memory of a frame. That of another socket's frame is dropped.
    pub(super) fn recycle(&mut self, received: ReceivedFrame) {
        match received {
            ReceivedFrame::Chunk(chunk) => {
                if let Some(start) = self.umem.give_back(chunk) {
                    self.fill(start);
                }
            }
            ReceivedFrame::Copied(mut bytes) => {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
    }

    /// Gives a chunk to the kernel, which may fill it.
    fn fill(&mut self, chunk: u64) {
        // The ring has as many entries as there are receive chunks, so it cannot be full.
        self.fill.push(chunk);
        self.fill.publish();
    }

    /// Takes back the chunks that the kernel has sent. Returns the number of free chunks.
    pub(super) fn reap(&mut self) -> usize {
        while let Some(at) = self.completion.pop() {
            self.free.push(self.umem.chunk_of(at));
        }
        self.free.len()
    }

    pub(super) fn has_room(&mut self) -> bool {
        let free = if self.free.len() < LONGEST { self.reap() } else { self.free.len() };
        free >= LONGEST && self.tx.has_room(LONGEST as u32)
    }

    /// Adds a frame of `len` bytes to the ring. If there is no room, the frame is lost, as on a
    /// wire.
    pub(super) fn transmit(
        &mut self,
        len: usize,
        scratch: &mut Vec<u8>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) {
        if !self.has_room() {
            return;
        }
        self.unflushed = true;
        if len <= self.chunk {
            let Some(at) = self.free.pop() else { return };
            fill(self.umem.bytes(at, len));
            self.tx.push(libc::xdp_desc { addr: at, len: len as u32, options: 0 });
            return;
        }
        scratch.resize(len, 0);
        fill(scratch);
        let mut rest = &scratch[..];
        while !rest.is_empty() {
            let Some(at) = self.free.pop() else { return };
            let (piece, behind) = rest.split_at(rest.len().min(self.chunk));
            self.umem.bytes(at, piece.len()).copy_from_slice(piece);
            rest = behind;
            let options = if rest.is_empty() { 0 } else { libc::XDP_PKT_CONTD };
            self.tx.push(libc::xdp_desc { addr: at, len: piece.len() as u32, options });
        }
    }

    /// Notifies the kernel of frames to send and of chunks to fill. Returns false if the kernel has
    /// left frames in the ring, which it takes at the next notification.
    ///
    /// # Errors
    /// The interface is gone or down.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.unflushed) {
            self.tx.publish();
        }
        self.push_out()?;
        if self.fill.needs_wakeup() {
            // SAFETY: only null pointers are passed, with no bytes. The result contains nothing
            // that is not detected elsewhere.
            unsafe {
                let flags = libc::MSG_DONTWAIT;
                let null = std::ptr::null_mut();
                libc::recvfrom(
                    self.fd.as_raw_fd(),
                    null,
                    0,
                    flags,
                    std::ptr::null_mut(),
                    null.cast(),
                );
            }
        }
        // If the driver empties the ring by itself, it needs no second notification.
        Ok(self.tx.pending() == 0 || !self.tx.needs_wakeup())
    }

    fn push_out(&mut self) -> io::Result<()> {
        let mut pending = self.tx.pending();
        while pending > 0 && self.tx.needs_wakeup() {
            let (flags, null) = (libc::MSG_DONTWAIT, std::ptr::null());
            // SAFETY: only null pointers are passed, with no bytes.
            if unsafe { libc::sendto(self.fd.as_raw_fd(), null, 0, flags, null.cast(), 0) } >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => return Err(error),
                // The interface has discarded a frame (no cable, a full queue) and returned its
                // chunk. The frames behind it are still in the ring.
                Some(libc::EBUSY) => {}
                // The kernel sends a limited number of frames in a call, or has no memory for more
                // at the moment.
                _ => return Ok(()),
            }
            let left = self.tx.pending();
            if left >= pending {
                return Ok(());
            }
            pending = left;
        }
        Ok(())
    }
}

/// Creates a socket without an interface.
pub(super) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T>(fd: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is readable for its size.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, name, std::ptr::from_ref(value).cast(), len)
    })?;
    Ok(())
}

fn offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: the structure consists of numbers, which may be zero.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    // SAFETY: `offsets` is writable for `len` bytes.
    check(unsafe {
        let at = std::ptr::from_mut(&mut offsets).cast();
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, at, &raw mut len)
    })?;
    if len as usize != size_of::<libc::xdp_mmap_offsets>() {
        let why = "this kernel's AF_XDP is too old: Linux 5.4 or newer is needed";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(offsets)
}
