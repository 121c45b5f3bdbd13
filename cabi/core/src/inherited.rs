//! Sockets that a child of a fork inherits. The child closes its copies of the parent's sockets.
//! Otherwise, as long as the child lives, a port would stay in LISTEN, and a connection that the
//! parent has reset would stay established.

use crate::abi::zeroed;
use std::ffi::c_int;
use std::fs;

/// Socket that a fork may copy, in an epoll set or alone: its descriptor, and its inode, which
/// distinguishes it from a later file with the same descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InheritableSocket {
    fd: c_int,
    inode: u64,
}

impl InheritableSocket {
    /// Returns the socket to which the descriptor refers now, or `None` if it is not open.
    pub fn from_fd(fd: c_int) -> Option<Self> {
        inode(fd).map(|inode| Self { fd, inode })
    }

    /// Returns whether the descriptor still refers to the file. The program may have closed it and
    /// opened another file.
    pub fn is_open(self) -> bool {
        inode(self.fd) == Some(self.inode)
    }

    /// Closes the copy of this process.
    pub fn close(self) {
        // Another thread of the parent may have closed the socket just before the fork, and the
        // program may have reused the descriptor.
        if self.is_open() {
            close_copy(self.fd);
        }
    }
}

/// Returns the sockets in an epoll set. They are read before the fork, because the parent shares
/// the set with the child and may change it immediately afterwards.
pub(crate) fn members(set: c_int) -> Vec<InheritableSocket> {
    // If /proc is not mounted, the child's copies stay open; there are no other consequences.
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{set}")).unwrap_or_default();
    text.lines().filter_map(parse_member).collect()
}

/// Closes the copies that this process has of the members and of the set.
pub(crate) fn close(members: &[InheritableSocket], set: c_int) {
    members.iter().for_each(|member| member.close());
    close_copy(set);
}

/// Closes a child's copy of a descriptor of this library. The caller forgets the owner of the
/// descriptor in the child, so that nothing else there uses or closes it.
pub fn close_copy(fd: c_int) {
    // SAFETY: close(2) takes an integer and accesses no memory. Nothing else in this process uses
    // or closes the descriptor: all callers run in the child of a fork and forget its owner there,
    // except for a test, which has created the descriptor itself.
    unsafe { libc::close(fd) };
}

fn inode(fd: c_int) -> Option<u64> {
    let mut status: libc::stat = zeroed();
    // SAFETY: the call writes one structure to `status`, a local variable of this type. An invalid
    // descriptor gives an error.
    (unsafe { libc::fstat(fd, &raw mut status) } == 0).then_some(status.st_ino)
}

/// Parses a line of the information about an epoll set in /proc, which has a line `tfd: NUMBER
/// events: .. ino:HEX sdev:HEX` for each member.
fn parse_member(line: &str) -> Option<InheritableSocket> {
    let fd = line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok()?;
    let inode = line.split("ino:").nth(1)?.split_whitespace().next()?;
    Some(InheritableSocket { fd, inode: u64::from_str_radix(inode, 16).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn members_are_read_with_their_inodes() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t18\n\
                    tfd:        5 events:       19 data: 100000000  pos:0 ino:1a sdev:9\n";
        let found: Vec<_> = text.lines().filter_map(parse_member).collect();
        assert_eq!(found, [InheritableSocket { fd: 5, inode: 0x1A }]);
    }

    #[test]
    fn format_matches_kernel() {
        // SAFETY: epoll_create1(2) takes only a flag and creates a descriptor, which only this test
        // uses.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = socket.as_raw_fd();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        // SAFETY: epoll_ctl(2) reads `event`, a local variable, and changes only `set`, which this
        // test has created. `socket` stays open until the end of the test. Invalid descriptors
        // would give an error.
        assert_eq!(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
        let found = members(set);
        if found.is_empty() && !std::path::Path::new("/proc/self/fdinfo").exists() {
            return;
        }
        assert_eq!(found, [InheritableSocket { fd, inode: inode(fd).unwrap() }]);

        // A descriptor that refers to another file by now is not closed.
        close(&[InheritableSocket { fd, inode: inode(fd).unwrap() + 1 }], set);
        assert!(inode(fd).is_some());
    }
}
