//! Memory of a run: an arena with parts that are registered, each with its own rights. The other
//! bytes are secret and must not change, nor must bytes that the rights of a part do not cover.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use uiw_verbs::{Access, Device, Memory, Pd, RawMr, STag};

use crate::input::Input;

const LEN: usize = 64 << 10;
/// Value of bytes that no peer may see or change.
const SECRET: u8 = 0xEE;
/// Value of bytes that peers may see, which is also the expected value of CmpSwap.
const PLAIN: u8 = 0x11;
/// Value that CmpSwap writes: bytes from one to eight.
pub(crate) const SWAP: u64 = 0x0102_0304_0506_0708;
const PART: usize = 4096;

/// Part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// Peers may access it, with rights that the input chooses.
    Shared,
    /// Destination of receives and Reads.
    Sink,
    /// Source of requests.
    Source,
    /// Peers may only read it.
    ReadOnly,
    /// Peers may only write it.
    WriteOnly,
    /// Peers may only use atomics on it.
    AtomicOnly,
    /// Peers may access it only through windows, like the memory of a `BoundWindow`.
    Granted,
}

impl Part {
    /// Parts whose keys peers receive.
    const OF_PEERS: [Self; 5] =
        [Self::Shared, Self::ReadOnly, Self::WriteOnly, Self::AtomicOnly, Self::Granted];

    const fn start(self) -> usize {
        5000 + 8000 * self as usize
    }

    const fn range(self) -> Range<usize> {
        self.start()..self.start() + PART
    }
}

/// Registered part: the rights that its own key gives to peers, and its region.
struct MemoryPlace {
    part: Part,
    access: Access,
    region: RefCell<Option<RawMr>>,
    rkey: u32,
}

impl MemoryPlace {
    /// Returns the initial value of its bytes, which is secret if peers have no right to see them.
    fn fill(&self) -> u8 {
        let seen = self.access.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        if seen { PLAIN } else { SECRET }
    }
}

/// Bytes to which a window has given access at some time, and its rights.
struct OpenedWindow {
    bytes: Range<usize>,
    access: Access,
}

/// Arena and its regions.
pub(crate) struct Arena {
    /// Memory of the arena. There must be no reference to it while regions exist, because the
    /// engine accesses it through them.
    bytes: *mut [u8],
    pub(crate) pd: Pd,
    places: Vec<MemoryPlace>,
    sink: RawMr,
    source: RawMr,
    /// Ranges of the sink that requests refer to. The key is the start of a range, the value its
    /// end.
    named: RefCell<BTreeMap<usize, usize>>,
    /// Contents of parts at the time when the last right to change them was revoked.
    frozen: RefCell<BTreeMap<Part, Vec<u8>>>,
    /// Ranges of [`Part::Granted`] to which windows have given access.
    opened: RefCell<Vec<OpenedWindow>>,
    /// Remaining rights of the shared part.
    access: Cell<Access>,
    /// True if a window was bound to the shared part that lets peers change it.
    shared_by_window: Cell<bool>,
    pub(crate) lkey: u32,
    pub(crate) sink_key: u32,
}

impl Arena {
    pub(crate) fn new(device: &Device, input: &mut Input<'_>) -> Self {
        let bytes = Box::into_raw(vec![SECRET; LEN].into_boxed_slice());
        let pd = device.alloc_pd().expect("a PD");
        let register = |part: Part, access, fill| {
            // SAFETY: the part is inside of the allocation, which is freed after all regions
            // (`check` drops the fields of the arena in this order). Nothing else accesses it
            // meanwhile, and the parts do not overlap.
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
            // Without LOCAL_WRITE, no window that allows changes can be bound to it.
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

    /// Returns the address of a part's first byte.
    pub(crate) fn address(&self, part: Part) -> u64 {
        self.bytes.cast::<u8>() as u64 + part.start() as u64
    }

    fn place(&self, part: Part) -> Option<&MemoryPlace> {
        self.places.iter().find(|place| place.part == part)
    }

    /// Returns the key of a part, which the peer knows even after the region was deregistered.
    pub(crate) fn rkey(&self, part: Part) -> u32 {
        self.place(part).map_or(0, |place| place.rkey)
    }

    /// Returns an element in the sink. From now on, its bytes may change.
    pub(crate) fn sink(&self, offset: usize, len: usize) -> uiw_verbs::Sge {
        let (offset, len) = (offset % PART, len % 600);
        let len = len.min(PART - offset);
        let mut named = self.named.borrow_mut();
        let end = named.entry(Part::Sink.start() + offset).or_default();
        *end = (*end).max(Part::Sink.start() + offset + len);
        let addr = self.address(Part::Sink) + offset as u64;
        uiw_verbs::Sge { addr, length: len as u32, lkey: self.sink.lkey() }
    }

    /// Returns an element in the source.
    pub(crate) fn source(&self, offset: usize, len: usize) -> uiw_verbs::Sge {
        let offset = offset % PART;
        let len = len.min(PART - offset);
        let addr = self.address(Part::Source) + offset as u64;
        uiw_verbs::Sge { addr, length: len as u32, lkey: self.source.lkey() }
    }

    /// Deregisters the shared region, unless a window is still bound to it. After success, none of
    /// its bytes may change.
    pub(crate) fn take_back(&self) {
        let Some(place) = self.place(Part::Shared) else { return };
        let region = place.region.borrow_mut().take();
        if let Some(region) = region {
            match region.deregister() {
                Ok(()) => self.freeze(Part::Shared),
                // A window is still bound to it.
                Err((_, region)) => *place.region.borrow_mut() = Some(region),
            }
        }
    }

    /// Revokes all rights of the region to change the shared part. After that, none of its bytes
    /// may change, unless a window with such rights was bound to it.
    pub(crate) fn revoke_changes(&self) {
        let Some(place) = self.place(Part::Shared) else { return };
        let left = self.access.get() & Access::REMOTE_READ;
        let rights = left | Access::LOCAL_WRITE | Access::MW_BIND;
        if let Some(region) = &mut *place.region.borrow_mut()
            && region.rereg(None, None, Some(rights)).is_ok()
        {
            self.access.set(left);
            if !self.shared_by_window.get() {
                self.freeze(Part::Shared);
            }
        }
    }

    /// Records that the queue pair no longer allows its peer to change anything.
    pub(crate) fn revoke_all_changes(&self) {
        for part in Part::OF_PEERS {
            self.freeze(part);
        }
    }

    fn freeze(&self, part: Part) {
        self.frozen.borrow_mut().entry(part).or_insert_with(|| self.copy(part));
    }

    /// Returns the STag of a part's region while it is registered.
    pub(crate) fn stag(&self, part: Part) -> Option<STag> {
        self.place(part)?.region.borrow().as_ref().map(|region| STag(region.rkey().0))
    }

    /// Records that a window will be bound to bytes of a part. Returns the rights that the window
    /// may have: for the shared part, those of its region. A window of the read-only part with any
    /// other right must be refused.
    pub(crate) fn record_bind(&self, part: Part, bytes: Range<usize>, wanted: Access) -> Access {
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        match part {
            Part::Shared => {
                let access = self.access.get();
                self.shared_by_window
                    .set(self.shared_by_window.get() || access.intersects(changes));
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

    /// Fills bytes that peers may see from now on with [`PLAIN`].
    fn publish(&self, bytes: Range<usize>) {
        if let Some(frozen) = self.frozen.borrow_mut().get_mut(&Part::Granted) {
            frozen[bytes.clone()].fill(PLAIN);
        }
        // SAFETY: the part is inside of the allocation, which still exists. No other thread runs,
        // because this thread drives the device.
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

    /// Checks that bytes on the wire are not secret ones. The peer never writes bytes with that
    /// value.
    pub(crate) fn assert_no_secret(bytes: &[u8]) {
        assert!(
            bytes.iter().all(|byte| byte & 0x80 == 0),
            "memory without access rights was read: {bytes:02x?}"
        );
    }

    /// Checks that only bytes have changed for which a right existed. `rights` are all rights that
    /// the queue pair had at any time.
    pub(crate) fn check(self, rights: Access) {
        for (part, before) in &*self.frozen.borrow() {
            assert!(
                *before == self.copy(*part),
                "{part:?} changed after the last way in was closed"
            );
        }
        for place in &self.places {
            self.check_place(place, rights);
        }
        assert!(
            self.copy(Part::Source).iter().all(|byte| *byte == PLAIN),
            "memory that is only sent"
        );
        let Self { bytes, named, places, sink, source, .. } = self;
        drop((places, sink, source));
        // SAFETY: the pointer comes from `Box::into_raw` and is freed once, and no region that
        // refers to it is left.
        let bytes = unsafe { Box::from_raw(bytes) };
        let named = named.into_inner();
        let mut open = named.into_iter().peekable();
        let mut end = 0;
        for (at, byte) in bytes.iter().enumerate() {
            while let Some((_, to)) = open.next_if(|(from, _)| *from <= at) {
                end = end.max(to);
            }
            let judged =
                Part::OF_PEERS.iter().chain(&[Part::Source]).any(|part| part.range().contains(&at));
            assert!(at < end || judged || *byte == SECRET, "byte {at} changed");
        }
    }

    /// Checks that each byte of a part has a value that the rights of the part, of windows and of
    /// the queue pair allow.
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
