//! Types of the arguments that C passes to exported functions.
//!
//! Each of them has the representation of C's type, and each value carries the promise that the
//! manual page asks of the caller. A function that takes such arguments is therefore safe code. C
//! makes the values; Rust makes them with [`argument`], which is unsafe.
//!
//! A pointer and the number of elements behind it are two arguments. They have a lifetime in
//! common, which is invariant: a function that has two such pairs cannot exchange their numbers.

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
/// The type has the representation of `C`.
pub unsafe trait Argument {
    /// The type in C's declaration of the function.
    type C;
}

/// The argument for a value of C's type, for calls from Rust.
///
/// # Safety
/// The value is one that the documentation of the argument's type permits, until the function
/// returns.
pub unsafe fn argument<A: Argument>(value: A::C) -> A {
    // SAFETY: the types have the same representation, and the caller ensures that the value is
    // permitted.
    unsafe { mem::transmute_copy(&mem::ManuallyDrop::new(value)) }
}

/// Calls an exported function with values of C's types:
/// `call!(qp::ibv_modify_qp(qp, &raw mut attr, mask))`. Unsafe as [`argument`] is.
#[macro_export]
macro_rules! call {
    ($($function:ident)::+($($value:expr),* $(,)?)) => {
        $($function)::+($($crate::arguments::argument($value)),*)
    };
}

/// Exported function as C's header declares it.
///
/// # Safety
/// `C` is the same function type with the types of C in the place of its arguments.
unsafe trait ExportedFn: Copy {
    type C: Copy;

    fn into_c(self) -> Self::C {
        // SAFETY: the arguments of the two types have the same representation, as `Argument` says,
        // and so have the functions.
        unsafe { mem::transmute_copy(&self) }
    }
}

/// Functions of so many arguments for the function tables of C's structures.
macro_rules! table_functions {
    ($($name:ident($($argument:ident),*);)*) => {
        $(
            // SAFETY: the types differ in the arguments alone.
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
            // SAFETY: it is the same type.
            unsafe impl Argument for $type {
                type C = $type;
            }
        )*
    };
}
plain_arguments!(u8, u16, u32, u64, usize, i32, i64);

// SAFETY: it is the same type.
unsafe impl<T> Argument for *mut T {
    type C = Self;
}

/// Declares argument types that are one pointer.
macro_rules! pointers {
    ($($(#[$doc:meta])* $name:ident<'a $(, $param:ident $(: $bound:path)?)?>(*$kind:tt $target:ty), $marker:ty;)*) => {
        $(
            $(#[$doc])*
            #[repr(transparent)]
            pub struct $name<'a $(, $param $(: $bound)?)?>(*$kind $target, PhantomData<$marker>);

            // SAFETY: the structure is transparent.
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

/// A lifetime that neither grows nor shrinks.
type Brand<'a> = fn(&'a ()) -> &'a ();

pointers! {
    /// Pointer to an object of this library. Any other pointer is answered with an error. C does
    /// not destroy the object during the call.
    Handle<'a, B: Body>(*mut B::C), &'a Object<B>;
    /// [`Handle`] of a function that destroys the object: no thread of the program uses the object
    /// any more.
    OwnedHandle<'a, B: Body>(*mut B::C), &'a Object<B>;
    /// NULL, or a structure that C does not change during the call. Its pointers are as its manual
    /// page says, and C does not destroy the objects that it names.
    InPtr<'a, T>(*const T), &'a T;
    /// NULL, or a structure that nothing else reads or writes during the call. Its pointers are as
    /// its manual page says, and C does not destroy the objects that it names.
    InOutPtr<'a, T>(*mut T), &'a mut T;
    /// NULL, or room for a value, at any alignment.
    OutPtr<'a, T>(*mut T), &'a mut T;
    /// NULL, or memory of C's heap that this library gave out, and that nothing uses any more.
    HeapPtr<'a, T>(*mut T), &'a mut T;
    /// NULL, or a text that ends in NUL.
    TextPtr<'a>(*const c_char), &'a CStr;
    /// NULL, or as many elements as the [`Count`] of the same lifetime says, which C does not
    /// change during the call.
    ArrayPtr<'a, T>(*const T), Brand<'a>;
    /// NULL, or room for as many elements as the [`Count`] or [`RoomPtr`] of the same lifetime
    /// says, which nothing else reads or writes during the call.
    ArrayMutPtr<'a, T>(*mut T), Brand<'a>;
    /// NULL, or as many elements as the [`Count`] of the same lifetime says, which nothing else
    /// reads or writes during the call.
    InOutArrayPtr<'a, T>(*mut T), Brand<'a>;
    /// NULL, or room for as many bytes as the [`Count`] of the same lifetime says, for a structure
    /// that C may know in a longer or shorter form.
    PrefixPtr<'a, T>(*mut T), Brand<'a>;
    /// NULL, or the number of bytes at the [`ArrayMutPtr`] of the same lifetime, which is replaced
    /// by the number of bytes that there are.
    RoomPtr<'a>(*mut libc::socklen_t), Brand<'a>;
}

/// Pointer that may be any: it is looked up by its address, and not read through.
#[repr(transparent)]
pub struct AnyPtr<T>(*mut T);

// SAFETY: the structure is transparent.
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
    /// C's pointer.
    pub fn as_ptr(self) -> *mut T {
        self.0
    }

    /// Returns whether C passed NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// [`Handle`] of a function that C calls through the function table of the object: NULL, or an
/// object of this library that lives, as C has read through the pointer.
#[repr(transparent)]
pub struct TableHandle<'a, B: Body, P = <B as Body>::C>(*mut P, PhantomData<&'a Object<B>>);

// SAFETY: the structure is transparent.
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
    /// The object, if it is alive and was made by this process.
    ///
    /// # Errors
    /// EINVAL for any other pointer; EIO for an object that came through a fork.
    pub fn get(self) -> Result<&'a Object<B>> {
        // SAFETY: C does not destroy the object during the call, as the type says.
        unsafe { Object::get(self.0) }
    }

    /// C's pointer.
    pub fn as_ptr(self) -> *mut B::C {
        self.0
    }
}

impl<'a, B: Body, P> TableHandle<'a, B, P> {
    /// Like [`Handle::get`], but reads the kind from the object itself instead of the table of
    /// living objects.
    ///
    /// # Errors
    /// The errors are those of [`Handle::get`].
    #[inline]
    pub fn get(&self) -> Result<&'a Object<B>> {
        // SAFETY: the pointer is NULL or a living object, and C does not destroy the object during
        // the call, as the type says.
        unsafe { Object::get_called(self.0.cast()) }
    }
}

impl<B: Body> OwnedHandle<'_, B> {
    /// The object, also if it came through a fork.
    ///
    /// # Errors
    /// EINVAL for any other pointer.
    pub fn get_any(&self) -> Result<&Object<B>> {
        // SAFETY: no other thread uses the object, as the type says, so none destroys it.
        unsafe { Object::get_any(self.0) }
    }

    /// Frees the object, after `leave` if it was made by this process.
    ///
    /// # Errors
    /// EINVAL for any other pointer; the errors of `leave`, after which the object lives on.
    pub fn destroy(self, leave: impl FnOnce(&Object<B>) -> Result<()>) -> Result<()> {
        let object = self.get_any()?;
        if !object.is_inherited() {
            leave(object)?;
        }
        // SAFETY: the object is alive, as `get_any` has found, and no thread uses it any more, as
        // the type says.
        unsafe { Object::<B>::free(self.0) };
        Ok(())
    }
}

impl<'a, T> InPtr<'a, T> {
    /// C's pointer.
    pub fn as_ptr(&self) -> *const T {
        self.0
    }

    /// The structure, unless C passed NULL.
    pub fn as_ref(&self) -> Option<&'a T> {
        // SAFETY: the pointer is NULL, or a structure that C does not change during the call, as
        // the type says.
        unsafe { self.0.as_ref() }
    }

    /// The structure.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn get(&self) -> Result<&'a T> {
        self.as_ref().ok_or_else(|| Errno::INVAL.null_argument())
    }

    /// The object that a field of the structure names.
    ///
    /// # Errors
    /// EINVAL for NULL, and as for [`Handle::get`].
    pub fn object<B: Body>(&self, field: impl FnOnce(&T) -> &*mut B::C) -> Result<&'a Object<B>> {
        // SAFETY: the program does not destroy the objects that its structure names during the
        // call, as the type says.
        unsafe { object_in(self.get()?, field) }
    }

    /// A copy of the structure, which may be unaligned, unless C passed NULL.
    pub fn read(&self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: the pointer is not NULL, so it is a structure that C does not change during the
        // call, as the type says.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }
}

/// Object that a field of a structure names.
///
/// # Safety
/// The program does not destroy the object during `'a`.
unsafe fn object_in<'a, T, B: Body>(
    structure: &T,
    field: impl FnOnce(&T) -> &*mut B::C,
) -> Result<&'a Object<B>> {
    let field = field(structure);
    let offset = ptr::from_ref(field).addr().wrapping_sub(ptr::from_ref(structure).addr());
    assert!(offset < size_of::<T>(), "the closure selects a field");
    // SAFETY: the caller ensures that the object stays.
    unsafe { Object::get(*field) }
}

impl<'a, T> InOutPtr<'a, T> {
    /// The structure as C has filled it.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn get_ref(&self) -> Result<&T> {
        // SAFETY: the pointer is NULL or points to a structure that nothing else uses during the
        // call, as the type requires.
        unsafe { self.0.as_ref() }.ok_or_else(|| Errno::INVAL.null_argument())
    }

    /// The object that a field of the structure names.
    ///
    /// # Errors
    /// EINVAL for NULL, and as for [`Handle::get`].
    pub fn object<B: Body>(&self, field: impl FnOnce(&T) -> &*mut B::C) -> Result<&'a Object<B>> {
        // SAFETY: the program does not destroy the objects to which its structure points during the
        // call, as the type requires.
        unsafe { object_in(self.get_ref()?, field) }
    }

    /// The structure, unless C passed NULL.
    pub fn as_mut(self) -> Option<&'a mut T> {
        // SAFETY: the pointer is NULL, or a structure that nothing else uses during the call, as
        // the type says.
        unsafe { self.0.as_mut() }
    }

    /// The structure.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn get(self) -> Result<&'a mut T> {
        self.as_mut().ok_or_else(|| Errno::INVAL.null_argument())
    }
}

impl<'a, T> OutPtr<'a, T> {
    /// C's pointer.
    pub fn as_ptr(&self) -> *mut T {
        self.0
    }

    /// Gives C the beginning of a longer structure.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn write_prefix<L: Copy>(self, value: &L) -> Result<()> {
        PrefixPtr::<'a, L>(self.0.cast(), PhantomData).write(Count(size_of::<T>(), PhantomData), value)
    }

    /// Checks that there is room.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn check(&self) -> Result<()> {
        if self.0.is_null() { Err(Errno::INVAL.null_argument()) } else { Ok(()) }
    }

    /// Gives C the value.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn write(self, value: T) -> Result<()> {
        self.check()?;
        // SAFETY: the pointer is not NULL, so there is room for a value at any alignment, as the
        // type says.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

impl<T> HeapPtr<'_, T> {
    /// Gives it back.
    pub fn free(self) {
        // SAFETY: the pointer is NULL, or memory of the heap that nothing uses any more, as the
        // type says.
        unsafe { libc::free(self.0.cast()) };
    }

    /// C's pointer.
    pub fn as_ptr(&self) -> *mut T {
        self.0
    }
}

impl<'a> TextPtr<'a> {
    /// The text, unless C passed NULL.
    pub fn get(&self) -> Option<&'a CStr> {
        // SAFETY: the pointer is not NULL, so it is a text that ends in NUL, as the type says.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// Number of elements behind the [`ArrayPtr`] or [`ArrayMutPtr`] of the same lifetime. If there are
/// two numbers, for structures of a size that C chooses, their product is the number of bytes at
/// the [`PrefixPtr`].
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Count<'a, N = usize>(N, PhantomData<Brand<'a>>);

// SAFETY: the structure is transparent.
unsafe impl<N> Argument for Count<'_, N> {
    type C = N;
}

impl<'a, N: TryInto<usize>> Count<'a, N> {
    /// The number.
    ///
    /// # Errors
    /// EINVAL for a negative one.
    #[inline]
    pub fn get(self) -> Result<usize> {
        self.0.try_into().map_err(|_| Errno::INVAL.out_of_range())
    }
}

impl<'a, T> ArrayPtr<'a, T> {
    /// The elements; `None` for NULL with a count above 0.
    ///
    /// # Errors
    /// EINVAL for a negative count.
    #[inline]
    pub fn get(&self, count: Count<'a, impl TryInto<usize>>) -> Result<Option<&'a [T]>> {
        Ok(match count.get()? {
            0 => Some(&[]),
            _ if self.0.is_null() => None,
            // SAFETY: the pointer is not NULL, and the count is the one of the same call, so there
            // are so many elements that C does not change during the call.
            count => Some(unsafe { slice::from_raw_parts(self.0, count) }),
        })
    }

    /// C's pointer.
    pub fn as_ptr(&self) -> *const T {
        self.0
    }

    /// Copies of the elements, which may be unaligned.
    ///
    /// # Errors
    /// EINVAL for a negative count, and for NULL with a count above 0.
    pub fn copies(&self, count: Count<'a, impl TryInto<usize>>) -> Result<impl Iterator<Item = T>>
    where
        T: Copy,
    {
        let (list, count) = (self.0, count.get()?);
        if list.is_null() && count > 0 {
            return Err(Errno::INVAL.because(format_args!("a list of {count} elements at NULL")));
        }
        // SAFETY: the pointer is not NULL, and the count is the one of the same call, so there is
        // an element at `at` that C does not change during the call.
        Ok((0..count).map(move |at| unsafe { list.add(at).read_unaligned() }))
    }
}

impl<'a, T> ArrayMutPtr<'a, T> {
    /// C's pointer.
    pub fn into_ptr(self) -> *mut T {
        self.0
    }

    /// The elements, as memory that C need not have initialized; `None` for NULL with a count above
    /// 0.
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
            // SAFETY: the pointer is not NULL, and the count is the one of the same call, so there
            // is room for so many elements that nothing else uses during the call.
            count => Some(unsafe { slice::from_raw_parts_mut(self.0.cast(), count) }),
        })
    }
}

impl<'a, T> InOutArrayPtr<'a, T> {
    /// The elements; `None` for NULL with a count above 0.
    ///
    /// # Errors
    /// EINVAL for a negative count.
    pub fn get(self, count: Count<'a, impl TryInto<usize>>) -> Result<Option<&'a mut [T]>> {
        Ok(match count.get()? {
            0 => Some(&mut []),
            _ if self.0.is_null() => None,
            // SAFETY: the pointer is not NULL, and the count is the one of the same call, so there
            // are so many elements that nothing else uses during the call.
            count => Some(unsafe { slice::from_raw_parts_mut(self.0, count) }),
        })
    }
}

impl<'a, T: Copy> PrefixPtr<'a, T> {
    /// Writes as much of a structure as fits, and zeros behind it: C may have been compiled with a
    /// longer or shorter one.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn write(self, size: Count<'a>, value: &T) -> Result<()> {
        self.write_table(Count(1, PhantomData), size, &[*value])
    }

    /// Like [`PrefixPtr::write`], for as many of `values` as fit an array of `count` structures.
    ///
    /// # Errors
    /// EINVAL for NULL.
    pub fn write_table(self, count: Count<'a>, size: Count<'a>, values: &[T]) -> Result<()> {
        let bytes = count.0.checked_mul(size.0).ok_or_else(|| Errno::INVAL.out_of_range())?;
        let bytes = Count(bytes, PhantomData);
        let room = ArrayMutPtr::<'a, u8>(self.0.cast(), PhantomData).get_uninit(bytes)?;
        let room = room.ok_or_else(|| Errno::INVAL.null_argument())?;
        for (room, value) in room.chunks_mut(size.0.max(1)).zip(values) {
            let known = room.len().min(size_of::<T>());
            room[known..].fill(MaybeUninit::new(0));
            // SAFETY: `known` is within both, which do not overlap, as `room` is borrowed.
            unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), room.as_mut_ptr(), known) };
        }
        Ok(())
    }
}

impl<'a> RoomPtr<'a> {
    /// The number of bytes that there is room for.
    ///
    /// # Errors
    /// EFAULT for NULL.
    pub fn count(&self) -> Result<Count<'a>> {
        if self.0.is_null() {
            return Err(Errno(libc::EFAULT).null_argument());
        }
        // SAFETY: the pointer is not NULL, so it is a number that nothing else changes during the
        // call, as the type says.
        Ok(Count(unsafe { self.0.read_unaligned() } as usize, PhantomData))
    }

    /// Replaces the number by that of the bytes that there are.
    ///
    /// # Errors
    /// EFAULT for NULL.
    pub fn finish(self, bytes: usize) -> Result<()> {
        OutPtr(self.0, PhantomData).write(bytes as libc::socklen_t)
    }

    /// Replaces the number by that of the bytes which there is room for: another call has changed
    /// it.
    ///
    /// # Errors
    /// EFAULT for NULL.
    pub fn restore(self, room: Count<'a, libc::socklen_t>) -> Result<Self> {
        OutPtr(self.0, PhantomData).write(room.0)?;
        Ok(self)
    }
}

/// Gives C as many of the bytes as fit at `to`, and the number of bytes that there are.
///
/// # Errors
/// EFAULT if `room` is NULL.
pub fn write_bytes<'a>(to: ArrayMutPtr<'a, u8>, room: RoomPtr<'a>, bytes: &[u8]) -> Result<()> {
    // Of a NULL pointer only the length is asked for.
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

    /// The bytes at `room` after a structure of eight bytes was written there.
    fn prefix(room: &mut [u8]) -> &[u8] {
        // SAFETY: the room has so many bytes.
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
            // SAFETY: NULL is allowed with any count.
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
        // SAFETY: there is room for two bytes, and for their number.
        let (to, count) = unsafe { (argument(bytes.as_mut_ptr()), argument(&raw mut room)) };
        write_bytes(to, count, &[1, 2, 3]).unwrap();
        assert_eq!((bytes, room), ([1, 2, 0, 0], 3));
    }
}
