//! The bpf system call: a map of sockets, a program, its attachment.

use super::program::Instruction;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const F_XDP_HAS_FRAGS: u32 = 1 << 5;
const FLAGS_SKB_MODE: u32 = 1 << 1;
const FLAGS_DRV_MODE: u32 = 1 << 2;

/// Arguments of every command are at most this long; what is not named is zero.
const ATTR: usize = 128;

/// The argument of a call, field by field at its offset.
struct BpfAttr([u64; ATTR / 8]);

impl BpfAttr {
    fn new() -> Self {
        Self([0; ATTR / 8])
    }

    fn set32(mut self, at: usize, value: u32) -> Self {
        let word = &mut self.0[at / 8];
        let mut bytes = word.to_ne_bytes();
        bytes[at % 8..at % 8 + 4].copy_from_slice(&value.to_ne_bytes());
        *word = u64::from_ne_bytes(bytes);
        self
    }

    fn set64(mut self, at: usize, value: u64) -> Self {
        self.0[at / 8] = value;
        self
    }

    /// # Safety
    /// Every address in it is that of memory as the command requires it, during the call.
    unsafe fn call(&mut self, command: libc::c_int) -> io::Result<RawFd> {
        // SAFETY: the argument is readable and writable for its length; the rest is the caller's promise.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), ATTR) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
    }

    /// # Safety
    /// As for [`BpfAttr::call`]; the command gives a new descriptor.
    unsafe fn open(&mut self, command: libc::c_int) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promises.
        unsafe { Ok(OwnedFd::from_raw_fd(self.call(command)?)) }
    }
}

/// A map from queues to sockets.
pub(super) struct XskMap(OwnedFd);

impl XskMap {
    pub(super) fn create(queues: u32) -> io::Result<Self> {
        let mut attr = BpfAttr::new().set32(0, MAP_TYPE_XSKMAP).set32(4, 4).set32(8, 4).set32(12, queues);
        // SAFETY: no address is in it.
        Ok(Self(unsafe { attr.open(MAP_CREATE)? }))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd();
        let mut attr = BpfAttr::new()
            .set32(0, self.0.as_raw_fd().cast_unsigned())
            .set64(8, std::ptr::from_ref(&queue) as u64)
            .set64(16, std::ptr::from_ref(&value) as u64);
        // SAFETY: key and value are readable for the four bytes that the map has for each, during the call.
        unsafe { attr.call(MAP_UPDATE_ELEM)? };
        Ok(())
    }
}

/// A program that the kernel has accepted.
pub(super) struct Program(OwnedFd);

impl Program {
    /// `fragments`: it may see frames of several pieces.
    pub(super) fn load(instructions: &[Instruction], fragments: bool) -> io::Result<Self> {
        let licence = c"Dual MIT/GPL";
        let flags = if fragments { F_XDP_HAS_FRAGS } else { 0 };
        let mut attr = BpfAttr::new()
            .set32(0, PROG_TYPE_XDP)
            .set32(4, instructions.len() as u32)
            .set64(8, instructions.as_ptr() as u64)
            .set64(16, licence.as_ptr() as u64)
            .set32(44, flags);
        // SAFETY: the instructions and the licence are readable as passed to the kernel, during the call.
        Ok(Self(unsafe { attr.open(PROG_LOAD)? }))
    }
}

/// A program on an interface, for as long as this lives, or the process.
pub(super) struct Attachment {
    link: OwnedFd,
    /// Process that owns the descriptor: a child of a fork has a copy.
    process: u32,
}

impl Attachment {
    pub(super) fn new(program: &Program, interface: u32, generic: bool) -> io::Result<Self> {
        let flags = if generic { FLAGS_SKB_MODE } else { FLAGS_DRV_MODE };
        let mut attr = BpfAttr::new()
            .set32(0, program.0.as_raw_fd().cast_unsigned())
            .set32(4, interface)
            .set32(8, ATTACH_XDP)
            .set32(12, flags);
        // SAFETY: no address is in it.
        let made: io::Result<OwnedFd> = unsafe { attr.open(LINK_CREATE) };
        let made = made.map(|link| Self { link, process: std::process::id() });
        made.map_err(|error| match error.raw_os_error() {
            // The interface has one program; it may be that of another process of ours.
            Some(libc::EEXIST | libc::EBUSY) => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another XDP program is attached")
            }
            _ => error,
        })
    }

    /// False once the interface is gone or the program was detached.
    pub(super) fn is_attached(&self) -> bool {
        // `struct bpf_link_info`: type, id, program, then the interface's number at 16.
        let mut info = [0u32; 32];
        let mut attr = BpfAttr::new()
            .set32(0, self.link.as_raw_fd().cast_unsigned())
            .set32(4, size_of_val(&info) as u32)
            .set64(8, info.as_mut_ptr() as u64);
        // SAFETY: `info` is writable for the length passed to the kernel, during the call.
        let asked = unsafe { attr.call(OBJ_GET_INFO_BY_FD) };
        asked.is_ok() && info[4] != 0
    }
}

impl Drop for Attachment {
    /// Detaches the program. Closing the descriptor is not enough: a child that another thread has just made holds a copy until it becomes its program, and
    /// no other one could be attached meanwhile, not even in another mode.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let mut attr = BpfAttr::new().set32(0, self.link.as_raw_fd().cast_unsigned());
            // SAFETY: no address is in it.
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

    /// Copies of the descriptor are like those of a child between fork and exec.
    #[test]
    fn descriptor_copies_keep_no_program() {
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
