//! The file system: a folder for each device, with the folders of its port's counters.

use super::totals::{Totals, both};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};
use uiw_cabi::device::netdev;
use uiw_cabi::sysfs::COUNTERS;
use uiw_llp::Spec;
use uiw_verbs::counters::AddressCounts;

/// The kernel looks again whenever a program does.
const TTL: Duration = Duration::ZERO;
/// As files of sysfs have it, whatever is in them.
const SIZE: u64 = 4096;

/// What a file shows of a device's counts.
type Value = fn(&AddressCounts) -> u64;

/// Those of InfiniBand's ports (`port_xmit_data` is in units of four bytes), of payload; a message or datagram counts as a packet.
const PORT: [(&str, Value); 4] = [
    ("port_xmit_data", |counts| both(counts.traffic.total(), counts.datagrams).sent.bytes / 4),
    ("port_rcv_data", |counts| both(counts.traffic.total(), counts.datagrams).received.bytes / 4),
    ("port_xmit_packets", |counts| both(counts.traffic.total(), counts.datagrams).sent.messages),
    ("port_rcv_packets", |counts| both(counts.traffic.total(), counts.datagrams).received.messages),
];

/// Bytes of payload by operation.
const OPERATIONS: [(&str, Value); 10] = [
    ("sends_sent_bytes", |counts| counts.traffic.send.sent.bytes),
    ("sends_received_bytes", |counts| counts.traffic.send.received.bytes),
    ("writes_sent_bytes", |counts| counts.traffic.write.sent.bytes),
    ("writes_received_bytes", |counts| counts.traffic.write.received.bytes),
    ("reads_answered_bytes", |counts| counts.traffic.read.sent.bytes),
    ("reads_received_bytes", |counts| counts.traffic.read.received.bytes),
    ("atomics_answered_bytes", |counts| counts.traffic.atomic.sent.bytes),
    ("atomics_received_bytes", |counts| counts.traffic.atomic.received.bytes),
    ("datagrams_sent_bytes", |counts| counts.datagrams.sent.bytes),
    ("datagrams_received_bytes", |counts| counts.datagrams.received.bytes),
];

/// A file or folder. Its number is its place in the list and one.
struct Node {
    parent: INodeNo,
    name: String,
    /// The device and what is shown of it; nothing of a folder.
    file: Option<(String, Value)>,
}

/// The files of every device.
pub(super) struct Files {
    nodes: Vec<Node>,
    llp: Spec,
    totals: Arc<Mutex<Totals>>,
    /// What was shown: a count does not go back.
    shown: Mutex<BTreeMap<INodeNo, u64>>,
}

impl Files {
    pub(super) fn new(devices: &[String], llp: Spec, totals: Arc<Mutex<Totals>>) -> Self {
        let mut nodes = vec![Node { parent: INodeNo::ROOT, name: String::new(), file: None }];
        let mut add = |parent, name: &str, file| {
            nodes.push(Node { parent, name: name.to_owned(), file });
            INodeNo(nodes.len() as u64)
        };
        for device in devices {
            let folder = add(INodeNo::ROOT, device, None);
            for (name, values) in COUNTERS.iter().zip([&PORT[..], &OPERATIONS]) {
                let counters = add(folder, name, None);
                for (name, value) in values {
                    add(counters, name, Some((device.clone(), *value)));
                }
            }
        }
        Self { nodes, llp, totals, shown: Mutex::default() }
    }

    fn node(&self, number: INodeNo) -> Option<&Node> {
        self.nodes.get(usize::try_from(number.0).ok()?.checked_sub(1)?)
    }

    /// What is in a folder: numbers and nodes.
    fn inside(&self, folder: INodeNo) -> impl Iterator<Item = (INodeNo, &Node)> {
        let all = (1..).map(INodeNo).zip(&self.nodes);
        all.filter(move |(number, node)| node.parent == folder && *number != INodeNo::ROOT)
    }

    fn attributes(number: INodeNo, node: &Node) -> FileAttr {
        let is_folder = node.file.is_none();
        FileAttr {
            ino: number,
            size: if is_folder { 0 } else { SIZE },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: kind(node),
            perm: if is_folder { 0o555 } else { 0o444 },
            nlink: if is_folder { 2 } else { 1 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: SIZE as u32,
            flags: 0,
        }
    }

    /// The number in a file now.
    fn number(&self, file: INodeNo, device: &str, value: Value) -> u64 {
        // Addresses come and go.
        let netdevs = netdev::all_on(&self.llp).unwrap_or_default();
        let netdev = netdevs.iter().find(|netdev| device.strip_prefix("uiw_") == Some(&netdev.name));
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.update();
        let now = netdev.map_or(0, |netdev| value(&totals.of(|address| netdev.has(*address))));
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let last = shown.entry(file).or_default();
        *last = now.max(*last);
        *last
    }
}

fn kind(node: &Node) -> FileType {
    if node.file.is_none() { FileType::Directory } else { FileType::RegularFile }
}

impl Filesystem for Files {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.inside(parent).find(|(_, node)| *node.name == *name) {
            Some((number, node)) => reply.entry(&TTL, &Self::attributes(number, node), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(number) {
            Some(node) => reply.attr(&TTL, &Self::attributes(number, node)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Every read asks for the number, and ends where it does.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(Node { file: Some((device, value)), .. }) = self.node(number) else {
            return reply.error(Errno::EISDIR);
        };
        let text = format!("{}\n", self.number(number, device, *value));
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let rest = &text.as_bytes()[from..];
        reply.data(&rest[..rest.len().min(size as usize)]);
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(node) = self.node(number) else { return reply.error(Errno::ENOENT) };
        let dots = [(number, FileType::Directory, "."), (node.parent, FileType::Directory, "..")];
        let inside = self.inside(number).map(|(number, node)| (number, kind(node), node.name.as_str()));
        let entries = (1..).zip(dots.into_iter().chain(inside));
        for (next, (number, kind, name)) in entries.skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(number, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
