//! Arguments of the C library's functions, which this library receives from the program and passes
//! on to the C library or to `libibverbs.so.1`.

use std::marker::PhantomData;
use std::slice;

/// Argument of a call that has the lifetime `'a` in common with the call's other arguments.
///
/// A value carries the guarantees that the manual page of the function requires of the program. A
/// pointer that is not NULL points to as much initialized memory as the other arguments say,
/// aligned as C requires and at most `isize::MAX` bytes, until the call returns. The program does
/// not change the memory that the call reads, and nothing else uses the memory that the call
/// writes. Functions of this library pass the value, unchanged, to another function that makes the
/// same call. The program creates the values; Rust creates them with [`Argument::new`], which is
/// unsafe.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Argument<'a, T>(T, PhantomData<fn(&'a ()) -> &'a ()>);

/// Pointer to memory that the call reads.
pub(crate) type In<'a, T> = Argument<'a, *const T>;
/// Pointer to memory that the call may write.
pub(crate) type Out<'a, T> = Argument<'a, *mut T>;
/// Number of bytes at the pointer of the same lifetime.
pub(crate) type Len<'a> = Argument<'a, usize>;

impl<T: Copy> Argument<'_, T> {
    /// Creates an argument for a call from Rust.
    ///
    /// # Safety
    /// The manual page of the function to which the value is given permits the value, together with
    /// the other arguments of the same lifetime, until the call returns.
    pub(crate) const unsafe fn new(value: T) -> Self {
        Self(value, PhantomData)
    }

    #[inline]
    pub(crate) fn get(self) -> T {
        self.0
    }
}

impl<'a, T> In<'a, T> {
    /// Creates a pointer to a structure of this library, or NULL for `None`.
    pub(crate) fn from_option(value: Option<&'a T>) -> Self {
        Self(value.map_or(std::ptr::null(), std::ptr::from_ref), PhantomData)
    }

    /// Returns the structure, or `None` for NULL.
    pub(crate) fn as_ref(self) -> Option<&'a T> {
        // SAFETY: the pointer is NULL, or points to an aligned and initialized structure that the
        // program does not change until the call returns, the end of `'a`, as [`Argument`] requires
        // of a pointer that the call reads.
        unsafe { self.0.as_ref() }
    }

    /// Returns the elements of a list, or an empty slice for NULL.
    pub(crate) fn elements(self, count: Argument<'a, impl TryInto<usize>>) -> &'a [T] {
        match count.0.try_into() {
            // SAFETY: the pointer is not NULL, as the guard checks, and `count` belongs to it by
            // its invariant lifetime. So there are as many aligned and initialized elements, at
            // most `isize::MAX` bytes, which the program does not change until the call returns,
            // the end of `'a`, as [`Argument`] requires.
            Ok(count @ 1..) if !self.0.is_null() => unsafe { slice::from_raw_parts(self.0, count) },
            _ => &[],
        }
    }
}

impl<'a, T> Out<'a, T> {
    /// Converts the pointer, for the part of the call that only reads the memory.
    #[inline]
    pub(crate) fn as_in(self) -> In<'a, T> {
        Argument(self.0, PhantomData)
    }

    /// Returns the pointer to element `at` of a list of `count` elements.
    pub(crate) fn element(self, at: u32, count: Argument<'a, u32>) -> Self {
        assert!(at < count.0, "an element of the list");
        Self(self.0.wrapping_add(at as usize), PhantomData)
    }

    /// Returns the structure.
    ///
    /// # Safety
    /// The pointer is not NULL, and by the other arguments of the call there is at least one
    /// structure. No other reference to it is used while the result is.
    pub(crate) unsafe fn as_mut(self) -> &'a mut T {
        // SAFETY: the caller ensures that there is a structure. It is aligned and initialized, and
        // nothing else of the program uses it until the call returns, the end of `'a`, as
        // [`Argument`] requires of a pointer that the call writes. The caller also excludes other
        // references in this library.
        unsafe { &mut *self.0 }
    }
}
