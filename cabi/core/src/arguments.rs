//! Types of the arguments that C passes to exported functions.
//!
//! Each type has the representation of the corresponding type in C, and each value carries the
//! guarantees that the manual page requires of the caller. A function that takes such arguments is
//! therefore safe code. C creates the values; Rust creates them with [`argument`], which is unsafe.
//!
//! A pointer and the number of elements that it points to are two arguments. They share a lifetime,
//! which is invariant, so that a function with two such pairs cannot confuse their counts.
//!
//! The following is true for all types, unless the type says otherwise. A pointer that is not NULL
//! stays valid until the function returns, which is also the end of its lifetime. It is aligned for
//! the type to which it points, as the C standard requires. Memory of the program counts as
//! initialized, because no Rust code has allocated it: the compiler has to assume that C has
//! written every byte. No array is larger than `isize::MAX` bytes, as no object of C is.

use crate::boundary::Result;
use crate::errno::Errno;
use crate::object::{Body, Object};
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::{mem, ptr, slice};

/// Argument of an exported function.
///
/// # Safety
/// The type is `C`, or a `repr(transparent)` structure around a `C`, so it has the same
/// representation and is passed to functions in the same way.
pub unsafe trait Argument {
    /// The type in C's declaration of the function.
    type C;
}

/// Converts a value of C's type to the argument type, for calls from Rust.
///
/// # Safety
/// The documentation of the argument's type and of this module permits the value, together with the
/// values of the same lifetime, until the lifetime of the result ends.
pub unsafe fn argument<A: Argument>(value: A::C) -> A {
    // SAFETY: `A` has the representation of `A::C`, as `Argument` requires, and `ManuallyDrop` has
    // it as well, so all bytes are copied, once. The caller ensures that the documentation of `A`
    // permits the value.
    unsafe { mem::transmute_copy(&mem::ManuallyDrop::new(value)) }
}

/// Calls an exported function with values of C's types:
/// `call!(qp::ibv_modify_qp(qp, &raw mut attr, mask))`. The call is unsafe for the same reason as
/// [`argument`].
#[macro_export]
macro_rules! call {
    ($($function:ident)::+($($value:expr),* $(,)?)) => {
        $($function)::+($($crate::arguments::argument($value)),*)
    };
}

/// Exported function that can be converted to the type which C's header declares.
///
/// # Safety
/// `Self` is the type of a function pointer, and `C` is the same type with each argument replaced
/// by its type in C, and possibly unsafe.
unsafe trait ExportedFn: Copy {
    type C: Copy;

    fn into_c(self) -> Self::C {
        // SAFETY: both types are function pointers of the same size. They differ only in arguments
        // that are passed in the same way, as `Argument` and this trait require, so the function
        // may be called through either type. `C` is unsafe to call, because its caller ensures what
        // the argument types say.
        unsafe { mem::transmute_copy(&self) }
    }
}

/// Defines conversions of functions with a given number of arguments to entries of C's function
/// tables.
macro_rules! table_functions {
    ($($name:ident($($argument:ident),*);)*) => {
        $(
            // SAFETY: the two types differ only in the types of their arguments, each of which is
            // replaced by `Argument::C`, and in `unsafe`.
            unsafe impl<$($argument: Argument,)* R> ExportedFn for extern "C" fn($($argument),*) -> R {
                type C = unsafe extern "C" fn($($argument::C),*) -> R;
            }

            /// Entry of a function table for an exported function.
            pub fn $name<$($argument: Argument,)* R>(
                function: extern "C" fn($($argument),*) -> R,
            ) -> Option<unsafe extern "C" fn($($argument::C),*) -> R> {
                Some(function.into_c())
            }
        )*
    };
}
table_functions! {
    c1(A);
    c2(A, B);
    c3(A, B, C);
    c4(A, B, C, D);
    c5(A, B, C, D, E);
}

macro_rules! plain_arguments {
    ($($type:ty),*) => {
        $(
            // SAFETY: the type and `C` are the same.
            unsafe impl Argument for $type {
                type C = $type;
            }
        )*
    };
}
plain_arguments!(u8, u16, u32, u64, usize, i32, i64);

// SAFETY: the type and `C` are the same.
unsafe impl<T> Argument for *mut T {
    type C = Self;
}

/// Declares argument types that consist of one pointer.
macro_rules! pointers {
    ($($(#[$doc:meta])* $name:ident<'a $(, $param:ident $(: $bound:path)?)?>(*$kind:tt $target:ty), $marker:ty;)*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            pub struct $name<'a $(, $param $(: $bound)?)?>(*$kind $target, PhantomData<$marker>);

            // SAFETY: the structure is declared as `repr(transparent)` above, and its only field
            // that has a size is a `C`.
            unsafe impl<'a $(, $param $(: $bound)?)?> Argument for $name<'a $(, $param)?> {
                type C = *$kind $target;
            }

            impl<$($param $(: $bound)?)?> $name<'_ $(, $param)?> {
                /// Returns whether C passed NULL.
                #[inline]
                pub fn is_null(&self) -> bool {
                    self.0.is_null()
                }
            }
        )*
    };
}

/// Invariant lifetime.
type Brand<'a> = fn(&'a ()) -> &'a ();

pointers! {
    /// Pointer to an object of this library, which the program does not destroy during the call. It
    /// may begin to destroy the object if that waits until this call acknowledges an event, the
    /// last use of the object here. Any other pointer is detected, and the call fails.
    Handle<'a, B: Body>(*mut B::C), &'a Object<B>;
    /// Like [`Handle`], for functions that destroy the object: no other thread of the program uses
    /// the object any more, except to acknowledge an event for which the function waits.
    OwnedHandle<'a, B: Body>(*mut B::C), &'a Object<B>;
    /// Pointer that is NULL or points to a structure. During the call the program changes neither
    /// the structure nor the addresses and buffers to which its pointers point, and does not
    /// destroy their objects. The pointers satisfy the manual page of the structure. A structure
    /// that is only read with [`InPtr::read`] may be unaligned.
    InPtr<'a, T>(*const T), &'a T;
    /// Pointer that is NULL or points to a structure that nothing else reads or writes during the
    /// call. The pointers in the structure satisfy its manual page, and the program does not
    /// destroy the objects to which they point.
    InOutPtr<'a, T>(*mut T), &'a mut T;
    /// Pointer that is NULL or points to memory for a value, at any alignment. Nothing else reads
    /// or writes the memory during the call.
    OutPtr<'a, T>(*mut T), &'a mut T;
    /// Pointer that is NULL or points to memory on C's heap that this library allocated and that is
    /// no longer in use.
    HeapPtr<'a, T>(*mut T), &'a mut T;
    /// Pointer that is NULL or points to a string that ends in NUL. The program does not change the
    /// string during the call.
    TextPtr<'a>(*const c_char), &'a CStr;
    /// Pointer that is NULL or points to an array with the number of elements in the [`Count`] of
    /// the same lifetime. The program does not change the array during the call. The pointers in
    /// the elements satisfy the manual page of the function. An array that is only read with
    /// [`ArrayPtr::copies`] may be unaligned.
    ArrayPtr<'a, T>(*const T), Brand<'a>;
    /// Pointer that is NULL or points to memory for the number of elements in the [`Count`] or
    /// [`RoomPtr`] of the same lifetime. Nothing else reads or writes the memory during the call.
    ArrayMutPtr<'a, T>(*mut T), Brand<'a>;
    /// Pointer that is NULL or points to an array with the number of elements in the [`Count`] of
    /// the same lifetime. Nothing else reads or writes the array during the call.
    InOutArrayPtr<'a, T>(*mut T), Brand<'a>;
    /// Pointer that is NULL or points to memory with the number of bytes in the [`Count`] of the
    /// same lifetime, for some version of a structure, which nothing else uses during the call.
    PrefixPtr<'a, T>(*mut T), Brand<'a>;
    /// Pointer that is NULL or points to the size of the memory at the [`ArrayMutPtr`] of the same
    /// lifetime. The pointer may be unaligned. The call replaces the size by the full length of the
    /// result, and nothing else reads or writes it during the call.
    RoomPtr<'a>(*mut libc::socklen_t), Brand<'a>;
}

/// Pointer without any guarantee. It is only looked up by its address and never dereferenced.
#[repr(transparent)]
pub struct AnyPtr<T>(*mut T);

// SAFETY: the structure is declared as `repr(transparent)` above, and its only field is a `C`.
unsafe impl<T> Argument for AnyPtr<T> {
    type C = *mut T;
}

impl<T> Clone for AnyPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for AnyPtr<T> {}

impl<T> From<*mut T> for AnyPtr<T> {
    fn from(pointer: *mut T) -> Self {
        Self(pointer)
    }
}

impl<T> AnyPtr<T> {
    /// Returns C's pointer.
    pub fn as_ptr(self) -> *mut T {
        self.0
    }

    /// Returns whether C passed NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// Like [`Handle`], for functions that C calls through a function table of this library. The
/// pointer is NULL or points to a live object of the kind of `B`: the one through which C has read
/// the table, or an address handle in its protection domain (ibv_post_send(3)).
#[repr(transparent)]
pub struct TableHandle<'a, B: Body, P = <B as Body>::C>(*mut P, PhantomData<&'a Object<B>>);

// SAFETY: the structure is declared as `repr(transparent)` above, and its only field that has a
// size is a `C`.
unsafe impl<B: Body, P> Argument for TableHandle<'_, B, P> {
    type C = *mut P;
}

impl<B: Body> Clone for Handle<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B: Body> Copy for Handle<'_, B> {}

impl<'a, B: Body> Handle<'a, B> {
    /// Returns the object if it is alive and was created by this process.
    ///
    /// # Errors
    /// EINVAL for any other pointer; EIO for an object that was inherited through a fork.
    pub fn get(self) -> Result<&'a Object<B>> {
        // SAFETY: `Object::get` looks up the pointer. Only a call of the program frees the object,
        // and `Handle` excludes that this happens before this call's last use of the object, where
        // `'a` ends.
        unsafe { Object::get(self.0) }
    }

    /// Returns C's pointer.
    pub fn as_ptr(self) -> *mut B::C {
        self.0
    }
}

impl<'a, B: Body, P> TableHandle<'a, B, P> {
    /// Like [`Handle::get`], but reads the kind from the object itself instead of the object table.
    ///
    /// # Errors
    /// The errors are those of [`Handle::get`].
    #[inline]
    pub fn get(&self) -> Result<&'a Object<B>> {
        // SAFETY: the pointer is NULL or points to a live object of the kind of `B`, which the
        // program does not destroy during this call, the end of `'a`. `TableHandle` requires both.
        unsafe { Object::get_called(self.0.cast()) }
    }
}

impl<B: Body> OwnedHandle<'_, B> {
    /// Returns the object, even if it was inherited through a fork.
    ///
    /// # Errors
    /// EINVAL for any other pointer.
    pub fn get_any(&self) -> Result<&Object<B>> {
        // SAFETY: `get_any` looks up the pointer. No other thread destroys the object, as
        // `OwnedHandle` requires, and this thread frees it only in `destroy`, which consumes
        // `self`, so not while the result borrows `self`.
        unsafe { Object::get_any(self.0) }
    }

    /// Frees the object. If it was created by this process, calls `leave` first.
    ///
    /// # Errors
    /// EINVAL for any other pointer, and the errors of `leave`. If `leave` fails, the object
    /// remains alive.
    pub fn destroy(self, leave: impl FnOnce(&Object<B>) -> Result<()>) -> Result<()> {
        let object = self.get_any()?;
        if !object.is_inherited() {
            leave(object)?;
        }
        // SAFETY: `get_any` has found the object alive, so `create` returned this pointer.
        // `OwnedHandle` excludes uses by other threads, except acknowledgements, for which `leave`
        // has waited. This thread does not use it after this.
        unsafe { Object::<B>::free(self.0) };
        Ok(())
    }
}

impl<'a, T> InPtr<'a, T> {
    /// Returns C's pointer.
    pub fn as_ptr(&self) -> *const T {
        self.0
    }

    /// Returns the structure, or `None` for NULL.
    pub fn as_ref(&self) -> Option<&'a T> {
        // SAFETY: the pointer is NULL or points to an aligned and initialized structure that the
        // program does not change until the call returns, the end of `'a`, as `InPtr` and the
        // module require.
        unsafe { self.0.as_ref() }
    }

    /// Returns the structure.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn get(&self) -> Result<&'a T> {
        self.as_ref().ok_or_else(|| Errno::INVAL.null_argument())
    }

    /// Returns the object to which a field of the structure points.
    ///
    /// # Errors
    /// EINVAL for NULL, and the errors of [`Handle::get`].
    pub fn object<B: Body>(&self, field: impl FnOnce(&T) -> &*mut B::C) -> Result<&'a Object<B>> {
        // SAFETY: the program does not destroy the objects to which its structure points until the
        // call returns, the end of `'a`, as `InPtr` requires.
        unsafe { object_in(self.get()?, field) }
    }

    /// Returns a copy of the structure, which may be unaligned, or `None` for NULL.
    pub fn read(&self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: the pointer is not NULL, as checked here, so it points to an initialized
        // structure that the program does not change during the call, as `InPtr` requires.
        // `read_unaligned` reads it at any alignment.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// Returns the object to which a field of a structure points.
///
/// # Safety
/// No thread frees the object to which the field points, if there is one, during `'a`.
unsafe fn object_in<'a, T, B: Body>(
    structure: &T,
    field: impl FnOnce(&T) -> &*mut B::C,
) -> Result<&'a Object<B>> {
    let field = field(structure);
    let offset = ptr::from_ref(field).addr().wrapping_sub(ptr::from_ref(structure).addr());
    assert!(offset < size_of::<T>(), "the closure selects a field");
    // SAFETY: `field` is in the structure, as asserted, so the caller ensures that no thread frees
    // the object to which it points during `'a`. `Object::get` looks up the pointer.
    unsafe { Object::get(*field) }
}

impl<'a, T> InOutPtr<'a, T> {
    /// Returns a shared reference to the structure.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn get_ref(&self) -> Result<&T> {
        // SAFETY: the pointer is NULL or points to an aligned and initialized structure that
        // nothing else reads or writes during the call, as `InOutPtr` and the module require. A
        // mutable reference to it exists only after `as_mut` has consumed `self`.
        unsafe { self.0.as_ref() }.ok_or_else(|| Errno::INVAL.null_argument())
    }

    /// Returns the object to which a field of the structure points.
    ///
    /// # Errors
    /// EINVAL for NULL, and the errors of [`Handle::get`].
    pub fn object<B: Body>(&self, field: impl FnOnce(&T) -> &*mut B::C) -> Result<&'a Object<B>> {
        // SAFETY: the program does not destroy the objects to which its structure points until the
        // call returns, the end of `'a`, as `InOutPtr` requires.
        unsafe { object_in(self.get_ref()?, field) }
    }

    /// Returns the structure, or `None` for NULL.
    pub fn as_mut(self) -> Option<&'a mut T> {
        // SAFETY: the pointer is NULL or points to an aligned and initialized structure that
        // nothing else reads or writes until the call returns, the end of `'a`, as `InOutPtr` and
        // the module require. `self` is consumed, and the references that `get_ref` has returned
        // borrow it, so this reference is the only one.
        unsafe { self.0.as_mut() }
    }

    /// Returns the structure.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn get(self) -> Result<&'a mut T> {
        self.as_mut().ok_or_else(|| Errno::INVAL.null_argument())
    }
}

impl<'a, T> OutPtr<'a, T> {
    /// Returns C's pointer.
    pub fn as_ptr(&self) -> *mut T {
        self.0
    }

    /// Writes the first bytes of a longer structure.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn write_prefix<L: Copy>(self, value: &L) -> Result<()> {
        PrefixPtr::<'a, L>(self.0.cast(), PhantomData)
            .write(Count(size_of::<T>(), PhantomData), value)
    }

    /// Checks that the pointer is not NULL.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn check(&self) -> Result<()> {
        if self.0.is_null() { Err(Errno::INVAL.null_argument()) } else { Ok(()) }
    }

    /// Writes the value.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn write(self, value: T) -> Result<()> {
        self.check()?;
        // SAFETY: the pointer is not NULL, as checked above, so there is memory for a value, which
        // nothing else uses during the call, as `OutPtr` requires. `write_unaligned` writes at any
        // alignment, and does not drop the previous content.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

impl<T> HeapPtr<'_, T> {
    /// Frees the memory.
    pub fn free(self) {
        // SAFETY: the pointer is NULL or points to memory that this library has allocated on C's
        // heap and that is no longer in use, as `HeapPtr` requires. `self` is consumed, so the
        // memory is freed once.
        unsafe { libc::free(self.0.cast()) };
    }

    /// Returns C's pointer.
    pub fn as_ptr(&self) -> *mut T {
        self.0
    }
}

impl<'a> TextPtr<'a> {
    /// Returns the string, or `None` for NULL.
    pub fn get(&self) -> Option<&'a CStr> {
        // SAFETY: the pointer is not NULL, as checked here, so it points to a string that ends in
        // NUL and that the program does not change until the call returns, the end of `'a`, as
        // `TextPtr` requires.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// Number of elements at the [`ArrayPtr`], [`ArrayMutPtr`] or [`InOutArrayPtr`], or of bytes at the
/// [`PrefixPtr`], of the same lifetime. A function that takes an array of structures whose size the
/// program chooses has two counts, whose product is the number of bytes at the [`PrefixPtr`].
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Count<'a, N = usize>(N, PhantomData<Brand<'a>>);

// SAFETY: the structure is declared as `repr(transparent)` above, and its only field that has a
// size is a `C`.
unsafe impl<N> Argument for Count<'_, N> {
    type C = N;
}

impl<'a, N: TryInto<usize>> Count<'a, N> {
    /// Returns the number.
    ///
    /// # Errors
    /// EINVAL for a negative number.
    #[inline]
    pub fn get(self) -> Result<usize> {
        self.0.try_into().map_err(|_| Errno::INVAL.out_of_range())
    }
}

impl<'a, T> ArrayPtr<'a, T> {
    /// Returns the elements, or `None` for NULL with a count above 0.
    ///
    /// # Errors
    /// EINVAL for a negative count.
    #[inline]
    pub fn get(&self, count: Count<'a, impl TryInto<usize>>) -> Result<Option<&'a [T]>> {
        Ok(match count.get()? {
            0 => Some(&[]),
            _ if self.0.is_null() => None,
            // SAFETY: the pointer is not NULL, as checked above, and the count belongs to it by its
            // invariant lifetime. So there are `count` aligned and initialized elements, at most
            // `isize::MAX` bytes, which the program does not change until the call returns, the end
            // of `'a`, as `ArrayPtr` and the module require.
            count => Some(unsafe { slice::from_raw_parts(self.0, count) }),
        })
    }

    /// Returns C's pointer.
    pub fn as_ptr(&self) -> *const T {
        self.0
    }

    /// Returns copies of the elements, which may be unaligned.
    ///
    /// # Errors
    /// EINVAL for a negative count, and for NULL with a count above 0.
    pub fn copies(&self, count: Count<'a, impl TryInto<usize>>) -> Result<impl Iterator<Item = T>>
    where
        T: Copy,
    {
        let (list, count) = (self.0, count.get()?);
        if list.is_null() && count > 0 {
            return Err(Errno::INVAL.because(format_args!("the list of {count} elements is NULL")));
        }
        // SAFETY: the pointer is not NULL unless `count` is 0, as checked above, and the count
        // belongs to it, because it has the same invariant lifetime. `at` is less than it, so there
        // is an initialized element, which the program does not change until the call returns, the
        // end of `'a`, as `ArrayPtr` requires. `read_unaligned` reads it at any alignment.
        Ok((0..count).map(move |at| unsafe { list.add(at).read_unaligned() }))
    }
}

impl<'a, T> ArrayMutPtr<'a, T> {
    /// Returns C's pointer.
    pub fn into_ptr(self) -> *mut T {
        self.0
    }

    /// Returns the elements as memory that may be uninitialized, or `None` for NULL with a count
    /// above 0.
    ///
    /// # Errors
    /// EINVAL for a negative count.
    #[inline]
    pub fn get_uninit(
        self,
        count: Count<'a, impl TryInto<usize>>,
    ) -> Result<Option<&'a mut [MaybeUninit<T>]>> {
        Ok(match count.get()? {
            0 => Some(&mut []),
            _ if self.0.is_null() => None,
            // SAFETY: the pointer is not NULL, as checked above, and the count belongs to it by its
            // lifetime. So there is aligned memory for `count` elements, at most `isize::MAX`
            // bytes, which nothing else uses during `'a`, as `ArrayMutPtr` and the module require;
            // `self` is consumed.
            count => Some(unsafe { slice::from_raw_parts_mut(self.0.cast(), count) }),
        })
    }
}

impl<'a, T> InOutArrayPtr<'a, T> {
    /// Returns the elements, or `None` for NULL with a count above 0.
    ///
    /// # Errors
    /// EINVAL for a negative count.
    pub fn get(self, count: Count<'a, impl TryInto<usize>>) -> Result<Option<&'a mut [T]>> {
        Ok(match count.get()? {
            0 => Some(&mut []),
            _ if self.0.is_null() => None,
            // SAFETY: the pointer is not NULL, as checked above, and the count belongs to it by its
            // lifetime. So there are `count` aligned and initialized elements, at most `isize::MAX`
            // bytes, which nothing else uses during `'a`, as `InOutArrayPtr` and the module
            // require; `self` is consumed.
            count => Some(unsafe { slice::from_raw_parts_mut(self.0, count) }),
        })
    }
}

impl<'a, T: Copy> PrefixPtr<'a, T> {
    /// Writes as much of a structure as fits, and fills the rest of the memory with zeros. The
    /// program may have been compiled with a longer or shorter version of the structure.
    ///
    /// # Errors
    /// EINVAL for NULL, unless `size` is 0.
    pub fn write(self, size: Count<'a>, value: &T) -> Result<()> {
        self.write_table(Count(1, PhantomData), size, &[*value])
    }

    /// Like [`PrefixPtr::write`], for an array of `count` structures. Values that do not fit are
    /// left out.
    ///
    /// # Errors
    /// EINVAL for NULL, unless `count` or `size` is 0, and if their product overflows.
    pub fn write_table(self, count: Count<'a>, size: Count<'a>, values: &[T]) -> Result<()> {
        let bytes = count.0.checked_mul(size.0).ok_or_else(|| Errno::INVAL.out_of_range())?;
        let bytes = Count(bytes, PhantomData);
        let room = ArrayMutPtr::<'a, u8>(self.0.cast(), PhantomData).get_uninit(bytes)?;
        let room = room.ok_or_else(|| Errno::INVAL.null_argument())?;
        for (room, value) in room.chunks_mut(size.0.max(1)).zip(values) {
            let known = room.len().min(size_of::<T>());
            room[known..].fill(MaybeUninit::new(0));
            // SAFETY: `known` is at most the size of `value` and of `room`, as computed above. The
            // two do not overlap, because `value` is borrowed and `room` is borrowed mutably.
            // Padding may be copied, because both sides are `MaybeUninit` bytes.
            unsafe {
                ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), room.as_mut_ptr(), known);
            };
        }
        Ok(())
    }
}

impl<'a> RoomPtr<'a> {
    /// Returns the size of the memory in bytes.
    ///
    /// # Errors
    /// EFAULT for NULL.
    pub fn count(&self) -> Result<Count<'a>> {
        if self.0.is_null() {
            return Err(Errno(libc::EFAULT).null_argument());
        }
        // SAFETY: the pointer is not NULL, as checked above, so it points to a number, which
        // nothing else changes during the call, as `RoomPtr` requires. `read_unaligned` reads it at
        // any alignment.
        Ok(Count(unsafe { self.0.read_unaligned() } as usize, PhantomData))
    }

    /// Writes the full length of the result, in bytes.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn finish(self, bytes: usize) -> Result<()> {
        OutPtr(self.0, PhantomData).write(bytes as libc::socklen_t)
    }

    /// Writes the size of the memory again, after another call has replaced it by the length of its
    /// result.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn restore(self, room: Count<'a, libc::socklen_t>) -> Result<Self> {
        OutPtr(self.0, PhantomData).write(room.0)?;
        Ok(self)
    }
}

/// Writes as many of the bytes as fit to `to`, and their total number to `room`.
///
/// # Errors
/// EFAULT if `room` is NULL.
pub fn write_bytes<'a>(to: ArrayMutPtr<'a, u8>, room: RoomPtr<'a>, bytes: &[u8]) -> Result<()> {
    // With a NULL pointer, the caller asks only for the length.
    if let Some(to) = to.get_uninit(room.count()?)? {
        for (to, from) in to.iter_mut().zip(bytes) {
            to.write(*from);
        }
    }
    room.finish(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a structure of eight bytes to `room`, and returns the written bytes.
    fn prefix(room: &mut [u8]) -> &[u8] {
        // SAFETY: the two are the address and the length of `room`, which is borrowed mutably, so
        // nothing else uses it until `write` has returned, as `PrefixPtr` requires.
        let (to, size) = unsafe { (argument(room.as_mut_ptr().cast()), argument(room.len())) };
        PrefixPtr::<'_, [u8; 8]>::write(to, size, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        room
    }

    #[test]
    fn structure_cut_or_filled_up() {
        assert_eq!(prefix(&mut [9; 3]), [1, 2, 3]);
        assert_eq!(prefix(&mut [9; 10]), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    }

    #[test]
    fn null_array_has_no_elements() {
        let get = |count: i32| {
            // SAFETY: `ArrayPtr` permits NULL, which `get` does not read, with any count.
            let (list, count): (ArrayPtr<'_, u32>, Count<'_, i32>) =
                unsafe { (argument(ptr::null()), argument(count)) };
            list.get(count)
        };
        assert_eq!((get(0), get(1)), (Ok(Some(&[][..])), Ok(None)));
        assert_eq!(get(-1), Err(Errno::INVAL));
    }

    #[test]
    fn bytes_cut_to_room_and_counted() {
        let (mut bytes, mut room) = ([0; 4], 2);
        // SAFETY: the array has more than the two bytes in `room`. Both are local variables that
        // nothing else uses during `write_bytes`, as `ArrayMutPtr` and `RoomPtr` require.
        let (to, count) = unsafe { (argument(bytes.as_mut_ptr()), argument(&raw mut room)) };
        write_bytes(to, count, &[1, 2, 3]).unwrap();
        assert_eq!((bytes, room), ([1, 2, 0, 0], 3));
    }
}
