//! Arguments of the C library's functions, on their way from the program to one of the libraries
//! behind this one.

use std::marker::PhantomData;
use std::slice;

/// Argument of a call that has the lifetime `'a` in common with the call's other arguments.
///
/// The program promises with it what the manual page of the function asks: a pointer is valid for
/// as much as the other arguments say, until the call returns. Functions here give it, unchanged,
/// to another function for the same call. The program makes the values; Rust makes them with
/// [`Argument::new`], which is unsafe.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Argument<'a, T>(T, PhantomData<fn(&'a ()) -> &'a ()>);

/// Pointer of such an argument, to what the call reads or writes.
pub(crate) type In<'a, T> = Argument<'a, *const T>;
pub(crate) type Out<'a, T> = Argument<'a, *mut T>;
/// Number of bytes at such a pointer.
pub(crate) type Len<'a> = Argument<'a, usize>;

impl<T: Copy> Argument<'_, T> {
    /// # Safety
    /// The value is one that the manual page of the function permits to which it is given, with the
    /// other arguments of the same lifetime.
    pub(crate) const unsafe fn new(value: T) -> Self {
        Self(value, PhantomData)
    }

    #[inline]
    pub(crate) fn get(self) -> T {
        self.0
    }
}

impl<'a, T> In<'a, T> {
    /// A structure of this library's own, or NULL.
    pub(crate) fn from_option(value: Option<&'a T>) -> Self {
        Self(value.map_or(std::ptr::null(), std::ptr::from_ref), PhantomData)
    }

    /// The structure; `None` for NULL.
    pub(crate) fn as_ref(self) -> Option<&'a T> {
        // SAFETY: the pointer is NULL, or a structure that the program does not change during the
        // call, as the type says.
        unsafe { self.0.as_ref() }
    }

    /// The elements of a list, none for NULL.
    pub(crate) fn elements(self, count: Argument<'a, impl TryInto<usize>>) -> &'a [T] {
        match count.0.try_into() {
            // SAFETY: the pointer is a list of so many elements, as the other argument of the call
            // says, which the program does not change during the call.
            Ok(count @ 1..) if !self.0.is_null() => unsafe { slice::from_raw_parts(self.0, count) },
            _ => &[],
        }
    }
}

impl<'a, T> Out<'a, T> {
    /// The same, for what the call reads of it.
    #[inline]
    pub(crate) fn as_in(self) -> In<'a, T> {
        Argument(self.0, PhantomData)
    }

    /// The element `at` of a list of `count`.
    pub(crate) fn element(self, at: u32, count: Argument<'a, u32>) -> Self {
        assert!(at < count.0, "an element of the list");
        Self(self.0.wrapping_add(at as usize), PhantomData)
    }

    /// The structure, which is not NULL.
    ///
    /// # Safety
    /// No other reference to it is used meanwhile.
    pub(crate) unsafe fn as_mut(self) -> &'a mut T {
        // SAFETY: the pointer is a structure that nothing else uses during the call, as the type
        // says, apart from references that the caller excludes.
        unsafe { &mut *self.0 }
    }
}
