//! Objects that C holds: C's structure first, the Rust value behind it, in one box. A table has the address of each living one:
//! a pointer to anything else, freed or never given out by this library, is answered with an error and not read through.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::fork::{self, ForkSafe, Forked};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kind of every living object, by address.
///
/// `ibv_ack_cq_events` and `ibv_get_cq_event` look here, so the table is in shards, each with a lock that is held for the look-up
/// alone: threads with different objects do not share a cache line.
struct Living(BTreeMap<usize, u32>);

impl Forked for Living {
    const NEW: Self = Self(BTreeMap::new());

    /// Inherited objects stay known: calls on them return EIO, and destroying them frees their memory.
    fn in_child(&mut self) {}
}

static LIVING: ForkSafe<Living, 64> = ForkSafe::new();

/// Something of `kind` lives at `address` from now on.
pub(crate) fn enter(address: usize, kind: u32) {
    LIVING.shard(address as u64).write().0.insert(address, kind);
}

/// Nothing lives at `address` any more.
pub(crate) fn leave(address: usize) {
    LIVING.shard(address as u64).write().0.remove(&address);
}

/// Whether something of `kind` lives at `address`.
pub(crate) fn lives(address: usize, kind: u32) -> bool {
    LIVING.shard(address as u64).read().0.get(&address) == Some(&kind)
}

/// Whether anything of this library lives at `address`.
pub(crate) fn is_known(address: usize) -> bool {
    LIVING.shard(address as u64).read().0.contains_key(&address)
}

/// The Rust value behind C's structure.
pub trait Body {
    /// C's structure.
    type Abi;
    /// Distinguishes kinds of object, and existing ones from freed ones.
    const KIND: u32;
}

/// One object. The pointer that C has is to its first field.
#[repr(C)]
pub struct Object<B: Body> {
    abi: UnsafeCell<B::Abi>,
    kind: AtomicU32,
    generation: u32,
    body: B,
}

// SAFETY: the bodies are shared between threads by type; C's own fields are read and written through raw pointers, as C does.
unsafe impl<B: Body + Sync> Sync for Object<B> {}
// SAFETY: as above.
unsafe impl<B: Body + Send> Send for Object<B> {}

impl<B: Body> Object<B> {
    /// A new object of this process; C gets the pointer.
    pub fn create(abi: B::Abi, body: B) -> *mut B::Abi {
        let object = Self {
            abi: UnsafeCell::new(abi),
            kind: AtomicU32::new(B::KIND),
            generation: fork::generation(),
            body,
        };
        let abi = Box::into_raw(Box::new(object)).cast::<B::Abi>();
        enter(abi.addr(), B::KIND);
        abi
    }

    /// The object behind C's pointer, if it is one of these, alive, and of this process.
    ///
    /// # Safety
    /// No thread frees the object during `'a`.
    ///
    /// # Errors
    /// EINVAL for NULL and for what is no such object; EIO for one that came through a fork.
    pub unsafe fn get<'a>(abi: *mut B::Abi) -> Result<&'a Self> {
        // SAFETY: the caller's promise.
        let object = unsafe { Self::get_any(abi) }?;
        if object.is_inherited() {
            Err(Errno::INHERITED.because("the object was made in the parent, before a fork"))
        } else {
            Ok(object)
        }
    }

    /// As [`Object::get`], without the table, for what is called with every message: only for functions that are called through the
    /// structure itself (`ibv_post_send` is `qp->context->ops.post_send`), where the program has already read through the pointer.
    ///
    /// # Safety
    /// `abi` is NULL or points to readable memory as large as this object, and no thread frees the object during `'a`.
    ///
    /// # Errors
    /// As [`Object::get`].
    pub unsafe fn get_called<'a>(abi: *mut B::Abi) -> Result<&'a Self> {
        let object = abi.cast::<Self>();
        if object.is_null() || !object.is_aligned() {
            return Err(Errno::INVAL.because("a pointer that is NULL or unaligned"));
        }
        // SAFETY: the caller's promise.
        let object = unsafe { &*object };
        match object.kind.load(Ordering::Acquire) == B::KIND {
            true if object.is_inherited() => {
                Err(Errno::INHERITED.because("the object was made in the parent, before a fork"))
            }
            true => Ok(object),
            false => Err(Errno::INVAL.because("a pointer to an object of another kind, or to a freed one")),
        }
    }

    /// As [`Object::get`], also for an object that came through a fork.
    ///
    /// # Safety
    /// As for [`Object::get`].
    ///
    /// # Errors
    /// EINVAL.
    pub unsafe fn get_any<'a>(abi: *mut B::Abi) -> Result<&'a Self> {
        if !lives(abi.addr(), B::KIND) {
            return Err(
                Errno::INVAL.because("a pointer to no such object: NULL, freed, or of another library")
            );
        }
        // SAFETY: it lives, and no thread frees it by the caller's promise.
        Ok(unsafe { &*abi.cast::<Self>() })
    }

    /// Whether it was made before a fork, in the parent.
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// C's pointer to it.
    pub fn abi(&self) -> *mut B::Abi {
        self.abi.get()
    }

    /// Frees it. What came through a fork is forgotten, not dropped: its engine's threads and locks stayed in the parent.
    ///
    /// # Safety
    /// `abi` is an object that [`Object::create`] made and no thread uses any more.
    pub unsafe fn free(abi: *mut B::Abi) {
        leave(abi.addr());
        // SAFETY: the caller's promise: made by `create`, and no other thread has it.
        let object = unsafe { Box::from_raw(abi.cast::<Self>()) };
        object.kind.store(0, Ordering::Release);
        if object.is_inherited() {
            std::mem::forget(object);
        }
    }
}

impl<B: Body> Deref for Object<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.body
    }
}
