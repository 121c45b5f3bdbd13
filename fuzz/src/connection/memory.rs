//! The memory of a run: an arena of which parts are registered, each with rights of its own. The
//! rest is secret, and stays as it is; so does what a part's rights do not open.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use uiw_verbs::{Access, Device, Memory, Pd, RawMr, STag};

use crate::input::Input;

const LEN: usize = 64 << 10;
/// What no peer may see or change.
const SECRET: u8 = 0xEE;
/// What peers may see: half of what CmpSwap compares with.
const PLAIN: u8 = 0x11;
/// What CmpSwap leaves: bytes of one to eight.
pub(crate) const SWAP: u64 = 0x0102_0304_0506_0708;
const PART: usize = 4096;

/// A part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Peers may reach it, with rights that the input chose.
    Shared,
    /// Receives and Reads place here.
    Sink,
    /// Requests are sent from here.
    Source,
    /// Peers may read it.
    ReadOnly,
    /// Peers may write it, and not read.
    WriteOnly,
    /// Atomics, and nothing else.
    AtomicOnly,
    /// Without any right of peers but those of windows, as the memory behind a `BoundWindow`.
    Granted,
}

impl Part {
    /// Those whose keys peers receive.
    const OF_PEERS: [Self; 5] =
        [Self::Shared, Self::ReadOnly, Self::WriteOnly, Self::AtomicOnly, Self::Granted];

    const fn start(self) -> usize {
        5000 + 8000 * self as usize
    }

    const fn range(self) -> Range<usize> {
        self.start()..self.start() + PART
    }
}

/// Part, rights of the peers by its own key, and its region.
struct MemoryPlace {
    part: Part,
    access: Access,
    region: RefCell<Option<RawMr>>,
    rkey: u32,
}

impl MemoryPlace {
    /// What it is filled with: no byte that a peer cannot get by a right of its own.
    fn fill(&self) -> u8 {
        let seen = self.access.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        if seen { PLAIN } else { SECRET }
    }
}

/// Bytes that a window opened at some time, and how.
struct OpenedWindow {
    bytes: Range<usize>,
    access: Access,
}

/// The arena and its regions.
pub(crate) struct Arena {
    /// Never a reference while regions live: the engine reaches it through them.
    bytes: *mut [u8],
    pub(crate) pd: Pd,
    places: Vec<MemoryPlace>,
    sink: RawMr,
    source: RawMr,
    /// The parts of the sink that requests named, end by start.
    named: RefCell<BTreeMap<usize, usize>>,
    /// What parts held when the last way in was closed.
    frozen: RefCell<BTreeMap<Part, Vec<u8>>>,
    /// What windows opened of [`Part::Granted`].
    opened: RefCell<Vec<OpenedWindow>>,
    /// The rights that are left of the shared part's.
    access: Cell<Access>,
    /// A window was bound to it that lets peers change it.
    shared_by_window: Cell<bool>,
    pub(crate) lkey: u32,
    pub(crate) sink_key: u32,
}

impl Arena {
    pub(crate) fn new(device: &Device, input: &mut Input<'_>) -> Self {
        let bytes = Box::into_raw(vec![SECRET; LEN].into_boxed_slice());
        let pd = device.alloc_pd().expect("a PD");
        let register = |part: Part, access, fill| {
            // SAFETY: the part lies within the allocation, which is freed after every region
            // (`check` takes the arena apart in this order); nothing else touches it meanwhile, and
            // the parts do not overlap.
            let memory = unsafe {
                let at = bytes.cast::<u8>().add(part.start());
                at.write_bytes(fill, PART);
                Memory::borrowed(at, PART)
            };
            let base = memory.as_ptr() as u64;
            pd.register_raw(memory.shared(), base, access).expect("a region")
        };
        let bits = input.u8();
        let mut access = Access::empty();
        access.set(Access::REMOTE_WRITE, bits & 1 == 0);
        access.set(Access::REMOTE_READ, bits & 2 == 0);
        access.set(Access::REMOTE_ATOMIC, bits & 4 == 0);
        let place = |part, access: Access| {
            // Without LOCAL_WRITE nothing may be bound to it that writes.
            let own = if part == Part::ReadOnly { Access::empty() } else { Access::LOCAL_WRITE };
            let mut place = MemoryPlace { part, access, region: RefCell::default(), rkey: 0 };
            let region = register(part, access | own | Access::MW_BIND, place.fill());
            place.rkey = region.rkey().0;
            place.region = RefCell::new(Some(region));
            place
        };
        let places = vec![
            place(Part::Shared, access),
            place(Part::ReadOnly, Access::REMOTE_READ),
            place(Part::WriteOnly, Access::REMOTE_WRITE),
            place(Part::AtomicOnly, Access::REMOTE_ATOMIC),
            place(Part::Granted, Access::empty()),
        ];
        let sink = register(Part::Sink, Access::LOCAL_WRITE, SECRET);
        let source = register(Part::Source, Access::empty(), PLAIN);
        let lkey = places[0].region.borrow().as_ref().map_or(0, |region| region.lkey().0);
        Self {
            bytes,
            places,
            lkey,
            sink_key: sink.lkey().0,
            sink,
            source,
            named: RefCell::default(),
            frozen: RefCell::default(),
            opened: RefCell::default(),
            access: Cell::new(access),
            shared_by_window: Cell::new(false),
            pd,
        }
    }

    /// The address of a part's first byte.
    pub(crate) fn address(&self, part: Part) -> u64 {
        self.bytes.cast::<u8>() as u64 + part.start() as u64
    }

    fn place(&self, part: Part) -> Option<&MemoryPlace> {
        self.places.iter().find(|place| place.part == part)
    }

    /// The key of a part, known to the peer even after its end.
    pub(crate) fn rkey(&self, part: Part) -> u32 {
        self.place(part).map_or(0, |place| place.rkey)
    }

    /// An element of the sink; from now on it may change.
    pub(crate) fn sink(&self, offset: usize, len: usize) -> uiw_verbs::Sge {
        let (offset, len) = (offset % PART, len % 600);
        let len = len.min(PART - offset);
        let mut named = self.named.borrow_mut();
        let end = named.entry(Part::Sink.start() + offset).or_default();
        *end = (*end).max(Part::Sink.start() + offset + len);
        uiw_verbs::Sge {
            addr: self.address(Part::Sink) + offset as u64,
            length: len as u32,
            lkey: self.sink.lkey(),
        }
    }

    /// An element of the source.
    pub(crate) fn source(&self, offset: usize, len: usize) -> uiw_verbs::Sge {
        let offset = offset % PART;
        let len = len.min(PART - offset);
        uiw_verbs::Sge {
            addr: self.address(Part::Source) + offset as u64,
            length: len as u32,
            lkey: self.source.lkey(),
        }
    }

    /// Takes the shared region back. No byte of it may change from now on.
    pub(crate) fn take_back(&self) {
        let Some(place) = self.place(Part::Shared) else { return };
        let region = place.region.borrow_mut().take();
        if let Some(region) = region {
            match region.deregister() {
                Ok(()) => self.freeze(Part::Shared),
                // A window is bound to it.
                Err((_, region)) => *place.region.borrow_mut() = Some(region),
            }
        }
    }

    /// Leaves peers no right by which they change the shared part: it stays as it is from now on.
    pub(crate) fn revoke_changes(&self) {
        let Some(place) = self.place(Part::Shared) else { return };
        let left = self.access.get() & Access::REMOTE_READ;
        let rights = left | Access::LOCAL_WRITE | Access::MW_BIND;
        if let Some(region) = &*place.region.borrow()
            && region.rereg(None, None, Some(rights)).is_ok()
        {
            self.access.set(left);
            if !self.shared_by_window.get() {
                self.freeze(Part::Shared);
            }
        }
    }

    /// The queue pair lets its peer change nothing any more.
    pub(crate) fn revoke_all_changes(&self) {
        for part in Part::OF_PEERS {
            self.freeze(part);
        }
    }

    fn freeze(&self, part: Part) {
        self.frozen.borrow_mut().entry(part).or_insert_with(|| self.copy(part));
    }

    /// The STag of a part's region, while it lives.
    pub(crate) fn stag(&self, part: Part) -> Option<STag> {
        self.place(part)?.region.borrow().as_ref().map(|region| STag(region.rkey().0))
    }

    /// A window is about to be bound to bytes of a part. Gives the rights it may have: the shared
    /// part's are those of its region, and what peers may only read is to be refused with any
    /// other.
    pub(crate) fn record_bind(&self, part: Part, bytes: Range<usize>, wanted: Access) -> Access {
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        match part {
            Part::Shared => {
                let access = self.access.get();
                self.shared_by_window.set(self.shared_by_window.get() || access.intersects(changes));
                return access;
            }
            Part::Granted => {
                let bytes = bytes.start.min(PART)..bytes.end.min(PART);
                if wanted.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC) {
                    self.publish(bytes.clone());
                }
                self.opened.borrow_mut().push(OpenedWindow { bytes, access: wanted });
            }
            _ => {}
        }
        wanted
    }

    /// The application writes what peers may see into bytes that they may see from now on.
    fn publish(&self, bytes: Range<usize>) {
        if let Some(frozen) = self.frozen.borrow_mut().get_mut(&Part::Granted) {
            frozen[bytes.clone()].fill(PLAIN);
        }
        // SAFETY: the part lies within the living allocation, and no other thread runs: this thread
        // drives the device.
        unsafe {
            let at = self.bytes.cast::<u8>().add(Part::Granted.start() + bytes.start);
            at.write_bytes(PLAIN, bytes.len());
        }
    }

    fn copy(&self, part: Part) -> Vec<u8> {
        let mut out = vec![0; PART];
        // SAFETY: as in `publish`.
        unsafe {
            let from = self.bytes.cast::<u8>().add(part.start());
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), PART);
        }
        out
    }

    /// Returns whether bytes on the wire are none of the secret ones. A peer writes none like
    /// these.
    pub(crate) fn assert_no_secret(bytes: &[u8]) {
        assert!(
            bytes.iter().all(|byte| byte & 0x80 == 0),
            "memory without access rights was read: {bytes:02x?}"
        );
    }

    /// Only bytes changed for which a right existed. `rights` are the most that the queue pair ever
    /// had.
    pub(crate) fn check(self, rights: Access) {
        for (part, before) in &*self.frozen.borrow() {
            assert!(*before == self.copy(*part), "{part:?} changed after the last way in was closed");
        }
        for place in &self.places {
            self.check_place(place, rights);
        }
        assert!(self.copy(Part::Source).iter().all(|byte| *byte == PLAIN), "memory that is only sent");
        let Self { bytes, named, places, sink, source, .. } = self;
        drop((places, sink, source));
        // SAFETY: made by `Box::into_raw`, freed once, and no region is left that reaches it.
        let bytes = unsafe { Box::from_raw(bytes) };
        let named = named.into_inner();
        let mut open = named.into_iter().peekable();
        let mut end = 0;
        for (at, byte) in bytes.iter().enumerate() {
            while let Some((_, to)) = open.next_if(|(from, _)| *from <= at) {
                end = end.max(to);
            }
            let judged = Part::OF_PEERS.iter().chain(&[Part::Source]).any(|part| part.range().contains(&at));
            assert!(at < end || judged || *byte == SECRET, "byte {at} changed");
        }
    }

    /// Each byte of a part is what its own rights, those of windows, and the queue pair's let it
    /// become.
    fn check_place(&self, place: &MemoryPlace, rights: Access) {
        let opened = self.opened.borrow();
        let windows = || opened.iter().filter(|_| place.part == Part::Granted);
        for (at, byte) in self.copy(place.part).into_iter().enumerate() {
            let by_windows = windows().filter(|opened| opened.bytes.contains(&at));
            let given = by_windows.fold(place.access, |all, opened| all | opened.access);
            let may = given & rights;
            let seen = given.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC);
            let as_before = byte == place.fill() || seen && byte == PLAIN;
            let swapped = may.contains(Access::REMOTE_ATOMIC) && (1..=8).contains(&byte);
            assert!(
                may.contains(Access::REMOTE_WRITE) || as_before || swapped,
                "byte {at} of {:?} became {byte:#x}, peers have {may:?}",
                place.part
            );
        }
    }
}
