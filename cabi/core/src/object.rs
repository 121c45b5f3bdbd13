//! Objects that C refers to: C's structure, followed by the Rust value, in one box. A table
//! contains the address of each live object. For any other pointer, freed or not created by this
//! library, calls return an error without reading through the pointer. Only calls through the
//! function table of an object, and the address handles passed to them, do not use the table (see
//! [`Object::get_called`]).

use crate::abi::PlainAbi;
use crate::abi_cell::AbiCell;
use crate::boundary::Result;
use crate::errno::Errno;
use crate::fork::{self, ForkSafe, ForkState};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

/// Table of the kind of every live object, by address.
///
/// `ibv_ack_cq_events` and `ibv_get_cq_event` use this table, so it is divided into shards, and
/// each lock is held only for a look-up. Threads that use different objects do not share a cache
/// line.
struct ObjectTable(BTreeMap<usize, ObjectKind>);

impl ForkState for ObjectTable {
    const NEW: Self = Self(BTreeMap::new());

    /// Keeps inherited objects: calls on them return EIO, and destroying them only removes them
    /// from the table.
    fn in_child(&mut self) {}
}

static OBJECTS: ForkSafe<ObjectTable, 64> = ForkSafe::new();

/// Adds an object of `kind` at `address`.
pub fn register(address: usize, kind: ObjectKind) {
    OBJECTS.shard(address as u64).write().0.insert(address, kind);
}

/// Removes the object at `address`.
pub fn unregister(address: usize) {
    OBJECTS.shard(address as u64).write().0.remove(&address);
}

/// Returns whether an object of `kind` at `address` is alive.
#[inline]
pub fn is_alive(address: usize, kind: ObjectKind) -> bool {
    OBJECTS.shard(address as u64).read().0.get(&address) == Some(&kind)
}

/// Returns whether any object of this library at `address` is alive.
pub fn is_known(address: usize) -> bool {
    OBJECTS.shard(address as u64).read().0.contains_key(&address)
}

/// Number that distinguishes the kinds of objects, and live objects from freed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ObjectKind {
    /// `ibv_context`.
    Context = 0x7569_6301,
    /// `ibv_pd`.
    Pd = 0x7569_6302,
    /// `ibv_td`.
    Td = 0x7569_6303,
    /// `ibv_mr`.
    Mr = 0x7569_6304,
    /// `ibv_mw`.
    Mw = 0x7569_6305,
    /// `ibv_comp_channel`.
    CompChannel = 0x7569_6306,
    /// `ibv_cq`.
    Cq = 0x7569_6307,
    /// `ibv_qp`.
    Qp = 0x7569_6308,
    /// `ibv_srq`.
    Srq = 0x7569_6309,
    /// `ibv_device`.
    Device = 0x7569_630b,
    /// `ibv_ah`.
    AddressHandle = 0x7569_630c,
    /// `ibv_buf`.
    Buffer = 0x7569_630d,
}

/// Rust value that belongs to a structure of C. Any thread of the program may use it.
pub trait Body: Send + Sync {
    /// The whole structure of C.
    type Abi: PlainAbi;
    /// Structure to which C has pointers: `Abi`, or a part of it.
    type C;
    /// Byte offset of `C` in `Abi`.
    const OFFSET: usize = 0;
    /// Kind of the object, which no other type has.
    const KIND: ObjectKind;
}

/// Object that C refers to by a pointer to its first field, or to a part of that.
#[repr(C)]
pub struct Object<B: Body> {
    /// The structure of C.
    pub abi: AbiCell<B::Abi>,
    kind: AtomicU32,
    generation: u32,
    body: B,
}

impl<B: Body> Object<B> {
    /// Creates an object of this process, and returns the pointer for C.
    pub fn create(abi: B::Abi, body: B) -> *mut B::C {
        let object = Self {
            abi: AbiCell::new(abi),
            kind: AtomicU32::new(B::KIND as u32),
            generation: fork::generation(),
            body,
        };
        let object = Box::into_raw(Box::new(object));
        register(object.addr(), B::KIND);
        object.wrapping_byte_add(B::OFFSET).cast()
    }

    /// Converts C's pointer to the address of the object. The pointer may be invalid.
    fn from_c(pointer: *mut B::C) -> *mut Self {
        pointer.wrapping_byte_sub(B::OFFSET).cast()
    }

    /// Returns the object at C's pointer, if it is a live object of this kind and of this process.
    ///
    /// # Safety
    /// No thread frees the object, if there is one at `pointer`, during `'a`.
    ///
    /// # Errors
    /// EINVAL for NULL and for any other pointer that is not such an object; EIO for an object that
    /// was inherited through a fork.
    pub unsafe fn get<'a>(pointer: *mut B::C) -> Result<&'a Self> {
        // SAFETY: no thread frees the object during `'a`, as the caller ensures, which is all that
        // `get_any` requires.
        let object = unsafe { Self::get_any(pointer) }?;
        object.check_inherited()
    }

    /// Like [`Object::get`], but does not use the table, for functions that are called with every
    /// message. This is only for functions that C calls through the structure itself
    /// (`ibv_post_send` is `qp->context->ops.post_send`), because in that case C has already read
    /// through the pointer, and for the address handles that are passed to them.
    ///
    /// # Safety
    /// `pointer` is NULL or points to a live object of this kind, which no thread frees during
    /// `'a`. The checks only detect some of the calls that break this rule.
    ///
    /// # Errors
    /// The errors are those of [`Object::get`].
    #[inline]
    pub unsafe fn get_called<'a>(pointer: *mut B::C) -> Result<&'a Self> {
        let object = Self::from_c(pointer);
        if pointer.is_null() || !object.is_aligned() {
            return Err(Errno::INVAL.because("the pointer is NULL or unaligned"));
        }
        // SAFETY: `pointer` is not NULL, as checked above, so it points to a live object of this
        // kind, which no thread frees during `'a`, as the caller ensures. `create` made the object
        // aligned and initialized. Everything that changes in it is in cells, and `free` alone has
        // it mutably.
        let object = unsafe { &*object };
        if object.kind.load(Ordering::Acquire) == B::KIND as u32 {
            object.check_inherited()
        } else {
            Err(Errno::INVAL
                .because("the pointer refers to an object of another kind or to a freed object"))
        }
    }

    #[inline]
    fn check_inherited(&self) -> Result<&Self> {
        if self.is_inherited() {
            return Err(
                Errno::INHERITED.because("the object was created by the parent, before a fork")
            );
        }
        Ok(self)
    }

    /// Like [`Object::get`], but also returns an object that was inherited through a fork.
    ///
    /// # Safety
    /// No thread frees the object, if there is one at `pointer`, during `'a`.
    ///
    /// # Errors
    /// EINVAL.
    pub unsafe fn get_any<'a>(pointer: *mut B::C) -> Result<&'a Self> {
        let object = Self::from_c(pointer);
        if !is_alive(object.addr(), B::KIND) {
            return Err(Errno::INVAL.because(
                "the pointer refers to no such object: it is NULL, was freed, or belongs to another library",
            ));
        }
        // SAFETY: the table contains an object of this kind at this address, as checked above. Only
        // `create` of this type registers the kind, so it made the object, aligned and initialized.
        // The caller ensures that no thread frees it during `'a`. All that changes in it is in
        // cells.
        Ok(unsafe { &*object })
    }

    /// Returns whether the object was created by the parent, before a fork.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Returns C's pointer to the object.
    pub fn abi(&self) -> *mut B::C {
        self.abi.as_ptr().wrapping_byte_add(B::OFFSET).cast()
    }

    /// Frees the object. An object that was inherited through a fork is forgotten, not dropped,
    /// because the threads and locks of its engine are those of the parent.
    ///
    /// # Safety
    /// [`Object::create`] returned `pointer`, the object was not freed yet, and no thread uses it
    /// any more.
    pub unsafe fn free(pointer: *mut B::C) {
        let object = Self::from_c(pointer);
        unregister(object.addr());
        // SAFETY: `create` made the object from a box and returned this pointer, and it was not
        // freed yet, as the caller ensures. No thread has a reference to it, also as the caller
        // ensures, and it is not in the table any more, so that no thread finds it.
        let object = unsafe { Box::from_raw(object) };
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
