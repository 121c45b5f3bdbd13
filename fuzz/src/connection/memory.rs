//! The memory of a run: an arena of which parts are registered. The rest is secret, and stays as it is.

use std::cell::RefCell;
use std::collections::BTreeMap;

use verbs::{Access, Device, Memory, Pd, RawMr};

use crate::input::Input;

const LEN: usize = 32 << 10;
/// What nobody may see or change.
const SECRET: u8 = 0xEE;
/// Where the parts begin, and how long each is.
const SHARED: usize = 5000;
const SINK: usize = 13_000;
const SOURCE: usize = 21_000;
const PART: usize = 4096;

/// A part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Peers may reach it, with rights that the input chose.
    Shared,
    /// Receives and Reads place here.
    Sink,
    /// Requests are sent from here.
    Source,
}

impl Part {
    const fn start(self) -> usize {
        match self {
            Self::Shared => SHARED,
            Self::Sink => SINK,
            Self::Source => SOURCE,
        }
    }
}

/// The arena and its regions.
pub(crate) struct Arena {
    /// Never a reference while regions live: the engine reaches it through them.
    octets: *mut [u8],
    pub(crate) pd: Pd,
    pub(crate) access: Access,
    shared: RefCell<Option<RawMr>>,
    sink: RawMr,
    source: RawMr,
    /// The parts of the sink that requests named, end by start.
    named: RefCell<BTreeMap<usize, usize>>,
    /// What the shared part held when its region was taken back.
    taken_back: RefCell<Option<Vec<u8>>>,
    /// Keys of the shared part, known to the peer even after its end.
    pub(crate) rkey: u32,
    pub(crate) lkey: u32,
    pub(crate) sink_key: u32,
}

impl Arena {
    pub(crate) fn new(device: &Device, input: &mut Input<'_>) -> Self {
        let mut octets = vec![SECRET; LEN].into_boxed_slice();
        for part in [Part::Shared, Part::Source] {
            octets[part.start()..part.start() + PART].fill(0x11);
        }
        let octets = Box::into_raw(octets);
        let pd = device.alloc_pd().expect("a PD");
        let mut access = Access::LOCAL_WRITE | Access::MW_BIND;
        let bits = input.u8();
        access.set(Access::REMOTE_WRITE, bits & 1 == 0);
        access.set(Access::REMOTE_READ, bits & 2 == 0);
        access.set(Access::REMOTE_ATOMIC, bits & 4 == 0);
        let register = |part: Part, access| {
            // SAFETY: the part lies within the allocation, which is freed after every region (`check` takes the arena
            // apart in this order); nobody else touches it meanwhile, and the parts do not overlap.
            let memory = unsafe { Memory::borrowed(octets.cast::<u8>().add(part.start()), PART) };
            let base = memory.as_ptr() as u64;
            pd.register_raw(memory.shared(), base, access).expect("a region")
        };
        let shared = register(Part::Shared, access);
        let sink = register(Part::Sink, Access::LOCAL_WRITE);
        let source = register(Part::Source, Access::empty());
        Self {
            octets,
            access,
            rkey: shared.rkey(),
            lkey: shared.lkey(),
            sink_key: sink.lkey(),
            shared: RefCell::new(Some(shared)),
            sink,
            source,
            named: RefCell::default(),
            taken_back: RefCell::default(),
            pd,
        }
    }

    /// The address of a part's first octet.
    pub(crate) fn address(&self, part: Part) -> u64 {
        self.octets.cast::<u8>() as u64 + part.start() as u64
    }

    /// An element of the sink; from now on it may change.
    pub(crate) fn sink(&self, offset: usize, len: usize) -> verbs::Sge {
        let (offset, len) = (offset % PART, len % 600);
        let len = len.min(PART - offset);
        let mut named = self.named.borrow_mut();
        let end = named.entry(SINK + offset).or_default();
        *end = (*end).max(SINK + offset + len);
        verbs::Sge {
            addr: self.address(Part::Sink) + offset as u64,
            length: len as u32,
            lkey: self.sink.lkey(),
        }
    }

    /// An element of the source.
    pub(crate) fn source(&self, offset: usize, len: usize) -> verbs::Sge {
        let offset = offset % PART;
        let len = len.min(PART - offset);
        verbs::Sge {
            addr: self.address(Part::Source) + offset as u64,
            length: len as u32,
            lkey: self.source.lkey(),
        }
    }

    /// Takes the shared region back. No octet of it may change from now on.
    pub(crate) fn take_back(&self) {
        let region = self.shared.borrow_mut().take();
        if let Some(region) = region {
            match region.deregister() {
                Ok(()) => *self.taken_back.borrow_mut() = Some(self.copy(Part::Shared)),
                // A window is bound to it.
                Err((_, region)) => *self.shared.borrow_mut() = Some(region),
            }
        }
    }

    /// The shared region's own STag, while it lives.
    pub(crate) fn shared_stag(&self) -> Option<verbs::STag> {
        self.shared.borrow().as_ref().map(|region| verbs::STag(region.rkey()))
    }

    fn copy(&self, part: Part) -> Vec<u8> {
        let mut out = vec![0; PART];
        // SAFETY: the part lies within the living allocation, and no other thread runs: the device is driven by hand.
        unsafe {
            let from = self.octets.cast::<u8>().add(part.start());
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), PART);
        }
        out
    }

    /// Whether octets on the wire are none of the secret ones. A peer writes none like these.
    pub(crate) fn no_secret(octets: &[u8]) {
        assert!(octets.iter().all(|octet| octet & 0x80 == 0), "memory that nobody was given: {octets:02x?}");
    }

    /// Nothing changed but what somebody was allowed to change.
    pub(crate) fn check(self) {
        let (before, after) = (self.taken_back.take(), self.copy(Part::Shared));
        if let Some(before) = before {
            assert!(before == after, "memory changed after its deregistration");
        }
        let may_change = self.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        assert!(may_change || after.iter().all(|octet| *octet == 0x11), "memory that peers may only read");
        assert!(self.copy(Part::Source).iter().all(|octet| *octet == 0x11), "memory that is only sent");
        let Self { octets, named, shared, sink, source, .. } = self;
        drop((shared, sink, source));
        // SAFETY: made by `Box::into_raw`, freed once, and no region is left that reaches it.
        let octets = unsafe { Box::from_raw(octets) };
        let named = named.into_inner();
        let mut open = named.into_iter().peekable();
        let mut end = 0;
        for (at, octet) in octets.iter().enumerate() {
            while let Some((_, to)) = open.next_if(|(from, _)| *from <= at) {
                end = end.max(to);
            }
            let free =
                at < end || (SHARED..SHARED + PART).contains(&at) || (SOURCE..SOURCE + PART).contains(&at);
            assert!(free || *octet == SECRET, "octet {at} changed");
        }
    }
}
