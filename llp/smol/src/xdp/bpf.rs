//! Wrappers of the bpf(2) system call: the map of AF_XDP sockets, the XDP program, and its
//! attachment to an interface.
//!
//! Field offsets and constants are those of `union bpf_attr` and its enumerations in `linux/bpf.h`,
//! and of `linux/if_link.h`.

use super::program::Instruction;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

// Commands (`enum bpf_cmd`).
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

// Types and flags of maps, programs and links.
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const F_XDP_HAS_FRAGS: u32 = 1 << 5;
const FLAGS_SKB_MODE: u32 = 1 << 1;
const FLAGS_DRV_MODE: u32 = 1 << 2;

/// Size of [`BpfAttr`] in bytes, which is enough for the arguments of every command.
const ATTR_LEN: usize = 128;

/// Argument of a bpf(2) call (`union bpf_attr`). Fields are set by their offset; all others are
/// zero.
struct BpfAttr([u64; ATTR_LEN / 8]);

impl BpfAttr {
    fn new() -> Self {
        Self([0; ATTR_LEN / 8])
    }

    /// Sets the 32-bit field at byte `offset`, a multiple of 4.
    fn with_u32(mut self, offset: usize, value: u32) -> Self {
        let word = &mut self.0[offset / 8];
        let mut bytes = word.to_ne_bytes();
        bytes[offset % 8..offset % 8 + 4].copy_from_slice(&value.to_ne_bytes());
        *word = u64::from_ne_bytes(bytes);
        self
    }

    /// Sets the 64-bit field at byte `offset`, a multiple of 8.
    fn with_u64(mut self, offset: usize, value: u64) -> Self {
        self.0[offset / 8] = value;
        self
    }

    /// Makes the system call and returns its result, which for some commands is a new descriptor.
    ///
    /// # Safety
    /// Every address in the argument must point to memory that is valid for `command` during the
    /// call.
    unsafe fn call(&mut self, command: libc::c_int) -> io::Result<RawFd> {
        // SAFETY: `self.0` is readable and writable for `ATTR_LEN` bytes; the caller guarantees the
        // addresses in it.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), ATTR_LEN) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
    }

    /// Like [`BpfAttr::call`], but takes ownership of the descriptor that the command returns.
    ///
    /// # Safety
    /// The requirements of [`BpfAttr::call`] apply, and `command` must be one that returns a new
    /// descriptor.
    unsafe fn open(&mut self, command: libc::c_int) -> io::Result<OwnedFd> {
        // SAFETY: the caller guarantees both requirements.
        unsafe { Ok(OwnedFd::from_raw_fd(self.call(command)?)) }
    }
}

/// Map from the receive queues of an interface to AF_XDP sockets (`BPF_MAP_TYPE_XSKMAP`).
pub(super) struct XskMap(OwnedFd);

impl XskMap {
    /// Creates an empty map for queues 0 to `queues - 1`.
    pub(super) fn create(queues: u32) -> io::Result<Self> {
        // The second and third fields are the sizes of a key and a value in bytes.
        let mut attr = BpfAttr::new()
            .with_u32(0, MAP_TYPE_XSKMAP)
            .with_u32(4, 4)
            .with_u32(8, 4)
            .with_u32(12, queues);
        // SAFETY: the argument has no address; the command returns a descriptor.
        Ok(Self(unsafe { attr.open(MAP_CREATE)? }))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sets the `socket` that receives the redirected frames of `queue`.
    pub(super) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd();
        let mut attr = BpfAttr::new()
            .with_u32(0, self.0.as_raw_fd().cast_unsigned())
            .with_u64(8, std::ptr::from_ref(&queue) as u64)
            .with_u64(16, std::ptr::from_ref(&value) as u64);
        // SAFETY: `queue` and `value` are readable for four bytes each, the map's key and value
        // sizes, during the call.
        unsafe { attr.call(MAP_UPDATE_ELEM)? };
        Ok(())
    }
}

/// XDP program that the kernel has verified and loaded.
pub(super) struct Program(OwnedFd);

impl Program {
    /// Loads `instructions`. `fragments` declares that the program handles frames that consist of
    /// several fragments (`BPF_F_XDP_HAS_FRAGS`).
    pub(super) fn load(instructions: &[Instruction], fragments: bool) -> io::Result<Self> {
        let licence = c"Dual MIT/GPL";
        let flags = if fragments { F_XDP_HAS_FRAGS } else { 0 };
        let mut attr = BpfAttr::new()
            .with_u32(0, PROG_TYPE_XDP)
            .with_u32(4, instructions.len() as u32)
            .with_u64(8, instructions.as_ptr() as u64)
            .with_u64(16, licence.as_ptr() as u64)
            .with_u32(44, flags);
        // SAFETY: the instructions (for the number passed) and the NUL-terminated licence are
        // readable during the call; the command returns a descriptor.
        Ok(Self(unsafe { attr.open(PROG_LOAD)? }))
    }
}

/// Attachment of a program to an interface, which ends when this is dropped or the process exits.
pub(super) struct Attachment {
    link: OwnedFd,
    /// Id of the process that made the attachment. A forked child inherits a copy of the
    /// attachment, and must not detach the program when it drops the copy.
    process: u32,
}

impl Attachment {
    /// Attaches `program` to the interface with index `interface`, either in the driver or, if
    /// `generic` is true, in the kernel's generic (skb) mode.
    ///
    /// # Errors
    /// `ResourceBusy` if the interface already has an XDP program; otherwise the error of the
    /// system call.
    pub(super) fn new(program: &Program, interface: u32, generic: bool) -> io::Result<Self> {
        let flags = if generic { FLAGS_SKB_MODE } else { FLAGS_DRV_MODE };
        let mut attr = BpfAttr::new()
            .with_u32(0, program.0.as_raw_fd().cast_unsigned())
            .with_u32(4, interface)
            .with_u32(8, ATTACH_XDP)
            .with_u32(12, flags);
        // SAFETY: the argument has no address; the command returns a descriptor.
        let link = unsafe { attr.open(LINK_CREATE) };
        let attachment = link.map(|link| Self { link, process: std::process::id() });
        attachment.map_err(|error| match error.raw_os_error() {
            // An interface has at most one XDP program. The other one may belong to another uiw
            // process.
            Some(libc::EEXIST | libc::EBUSY) => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another XDP program is attached")
            }
            _ => error,
        })
    }

    /// Returns whether the program is still attached: false after the interface was removed or the
    /// program was detached.
    pub(super) fn is_attached(&self) -> bool {
        // `struct bpf_link_info`: type, id and program id, then the interface index at byte 16. The
        // kernel sets the index to 0 when it detaches the program.
        let mut info = [0u32; 32];
        let mut attr = BpfAttr::new()
            .with_u32(0, self.link.as_raw_fd().cast_unsigned())
            .with_u32(4, size_of_val(&info) as u32)
            .with_u64(8, info.as_mut_ptr() as u64);
        // SAFETY: `info` is writable for the length passed to the kernel, during the call.
        let result = unsafe { attr.call(OBJ_GET_INFO_BY_FD) };
        result.is_ok() && info[4] != 0
    }
}

impl Drop for Attachment {
    /// Detaches the program explicitly.
    ///
    /// Closing the descriptor is not enough: a child process that another thread has just forked
    /// holds a copy until it calls exec. Until then the program would stay attached, and no other
    /// program could be attached, not even in another mode.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let mut attr = BpfAttr::new().with_u32(0, self.link.as_raw_fd().cast_unsigned());
            // SAFETY: the argument has no address.
            let _ = unsafe { attr.call(LINK_DETACH) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::SmolConfig;
    use super::super::program::redirect;
    use super::*;
    use uiw_interop::stock::Network;

    /// The copy of the descriptor represents the one that a child process has between fork and
    /// exec.
    #[test]
    fn drop_detaches_despite_descriptor_copy() {
        let Some(network) = Network::veth() else { return };
        network.inside_server(|| {
            let map = XskMap::create(1).expect("a map");
            let config = SmolConfig::new(std::net::Ipv4Addr::new(10, 77, 0, 11).into(), 24);
            let program = Program::load(&redirect(map.fd(), &config), false).expect("a program");
            let index = uiw_llp::interface::index_of("veth0").expect("the interface");
            let first = Attachment::new(&program, index, false).expect("attached");
            let _copy = first.link.try_clone().expect("a copy");
            drop(first);
            let second = Attachment::new(&program, index, true).expect("attached in another mode");
            assert!(second.is_attached());
        });
    }
}
