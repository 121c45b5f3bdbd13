//! Objects that C holds: C's structure in front, ours behind it, in one box.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::process;
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

/// What stands behind C's structure.
pub trait Body {
    /// C's structure.
    type Abi;
    /// Tells kinds of object apart, and living ones from freed ones.
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
            generation: process::generation(),
            body,
        };
        Box::into_raw(Box::new(object)).cast()
    }

    /// The object behind C's pointer, if it is one of these, alive, and of this process.
    ///
    /// # Safety
    /// `abi` is NULL or points to readable memory as large as this object, and nobody frees the object during `'a`.
    ///
    /// # Errors
    /// EINVAL for NULL and for what is no such object; EIO for one that came through a fork.
    pub unsafe fn get<'a>(abi: *mut B::Abi) -> Result<&'a Self> {
        // SAFETY: the caller's promise.
        let object = unsafe { Self::get_any(abi) }?;
        if object.is_inherited() { Err(Errno::INHERITED) } else { Ok(object) }
    }

    /// As [`Object::get`], also for an object that came through a fork.
    ///
    /// # Safety
    /// As for [`Object::get`].
    ///
    /// # Errors
    /// EINVAL.
    pub unsafe fn get_any<'a>(abi: *mut B::Abi) -> Result<&'a Self> {
        let object = abi.cast::<Self>();
        if object.is_null() || !object.is_aligned() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise.
        let object = unsafe { &*object };
        if object.kind.load(Ordering::Acquire) != B::KIND { Err(Errno::INVAL) } else { Ok(object) }
    }

    /// Whether it was made before a fork, in the parent.
    pub fn is_inherited(&self) -> bool {
        self.generation != process::generation()
    }

    /// C's pointer to it.
    pub fn abi(&self) -> *mut B::Abi {
        self.abi.get()
    }

    /// Frees it. What came through a fork is forgotten: its engine's threads and locks stayed in the parent.
    ///
    /// # Safety
    /// `abi` is an object that [`Object::create`] made and nobody uses any more.
    pub unsafe fn free(abi: *mut B::Abi) {
        // SAFETY: the caller's promise: made by `create`, and ours alone now.
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
