//! `rdma_getaddrinfo`: the result of the C library's `getaddrinfo` as rdma_cm's, and the newer call that gives it as an event.

use crate::abi::cm::*;
use crate::abi::qp::IBV_QPT_RC;
use crate::abi::{rdma_addrinfo, rdma_cm_id};
use crate::boundary::{self, Result};
use crate::cm::id::Note;
use crate::cm::resolved::Resolved;
use crate::cm::{registry, sync};
use crate::errno::Errno;
use std::ffi::{CStr, CString, c_char, c_int};
use std::{ptr, slice};

/// `IBV_QPT_UD`
const UD: c_int = 4;

/// The parameters of a look-up, owned: it may be made on another thread.
struct Query {
    node: Option<CString>,
    service: Option<CString>,
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    src: Vec<u8>,
    dst: Vec<u8>,
    hinted: bool,
}

impl Query {
    /// # Safety
    /// The texts are NULL or end in NUL, `hints` is NULL or readable with addresses of the lengths it names.
    unsafe fn read(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo) -> Result<Self> {
        let text = |text: *const c_char| match text.is_null() {
            true => None,
            // SAFETY: the caller's promise, here and below.
            false => Some(unsafe { CStr::from_ptr(text) }.to_owned()),
        };
        let bytes = |at: *const libc::sockaddr, len: libc::socklen_t| match (at.is_null(), len as usize) {
            (_, 0) => Ok(Vec::new()),
            // SAFETY: as above.
            (false, len @ 1..=128) => Ok(unsafe { slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec()),
            _ => Err(Errno::INVAL.because("an address is NULL, or longer than any")),
        };
        // SAFETY: as above.
        let given = unsafe { hints.as_ref() };
        let (node, service) = (text(node), text(service));
        if node.is_none() && service.is_none() && given.is_none() {
            return Err(Errno::INVAL.because("neither node nor service nor address"));
        }
        Ok(Self {
            node,
            service,
            flags: given.map_or(0, |g| g.ai_flags),
            family: given.map_or(0, |g| g.ai_family),
            qp_type: given.map_or(0, |g| g.ai_qp_type),
            port_space: given.map_or(0, |g| g.ai_port_space),
            src: given.map_or(Ok(Vec::new()), |g| bytes(g.ai_src_addr, g.ai_src_len))?,
            dst: given.map_or(Ok(Vec::new()), |g| bytes(g.ai_dst_addr, g.ai_dst_len))?,
            hinted: given.is_some(),
        })
    }

    /// Looks it up.
    fn answer(&self) -> Resolved {
        if self.node.is_none() && self.service.is_none() {
            // SAFETY: a list of `convert`, or none.
            return unsafe { Resolved::new(self.convert(self.family, &self.dst, None)) };
        }
        // SAFETY: integers and pointers.
        let mut hints: libc::addrinfo = unsafe { crate::abi::zeroed() };
        if self.flags & RAI_PASSIVE != 0 {
            hints.ai_flags |= libc::AI_PASSIVE;
        }
        if self.flags & RAI_NUMERICHOST != 0 {
            hints.ai_flags |= libc::AI_NUMERICHOST;
        }
        hints.ai_family = self.family;
        let datagrams = self.qp_type == UD || self.port_space == RDMA_PS_UDP;
        hints.ai_socktype = if datagrams { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        let text = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut list = ptr::null_mut();
        // SAFETY: the texts end in NUL, the hints are whole; the answer is freed below.
        let error = unsafe {
            libc::getaddrinfo(text(&self.node), text(&self.service), &raw const hints, &raw mut list)
        };
        if error != 0 {
            // SAFETY: no list.
            return unsafe { Resolved::new(Err(error)) };
        }
        // SAFETY: a list with at least one address, as the C library promises; freed once.
        unsafe {
            let first = &*list;
            let bytes = slice::from_raw_parts(first.ai_addr.cast::<u8>(), first.ai_addrlen as usize);
            let converted = self.convert(first.ai_family, bytes, Some(first.ai_socktype));
            libc::freeaddrinfo(list);
            Resolved::new(converted)
        }
    }

    /// One result on C's heap. Programs may free parts of it themselves.
    fn convert(
        &self,
        family: c_int,
        address: &[u8],
        socktype: Option<c_int>,
    ) -> std::result::Result<*mut rdma_addrinfo, c_int> {
        let reliable = socktype != Some(libc::SOCK_DGRAM);
        let passive = self.flags & RAI_PASSIVE != 0;
        // SAFETY: zeroed memory of C's heap is an empty answer.
        unsafe {
            let rai = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
            if rai.is_null() {
                return Err(libc::EAI_MEMORY);
            }
            let to = &mut *rai;
            to.ai_flags = self.flags;
            to.ai_family = family;
            to.ai_qp_type = match self.qp_type {
                0 if reliable => IBV_QPT_RC,
                0 => UD,
                given => given,
            };
            to.ai_port_space = match self.port_space {
                0 if to.ai_qp_type == UD => RDMA_PS_UDP,
                0 => RDMA_PS_TCP,
                given => given,
            };
            if passive && socktype.is_some() {
                (to.ai_src_addr, to.ai_src_len) = copy(address);
            } else {
                (to.ai_dst_addr, to.ai_dst_len) = copy(address);
            }
            if to.ai_src_len == 0 && self.hinted {
                (to.ai_src_addr, to.ai_src_len) = copy(&self.src);
            }
            Ok(rai)
        }
    }
}

/// Bytes on C's heap; NULL for none.
fn copy(bytes: &[u8]) -> (*mut libc::sockaddr, libc::socklen_t) {
    if bytes.is_empty() {
        return (ptr::null_mut(), 0);
    }
    // SAFETY: memory of C's heap, as long as what is copied there.
    unsafe {
        let to = libc::malloc(bytes.len()).cast::<u8>();
        if to.is_null() {
            return (ptr::null_mut(), 0);
        }
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        (to.cast(), bytes.len() as libc::socklen_t)
    }
}

/// `rdma_getaddrinfo`: 0, or an error of the C library's `getaddrinfo`, or -1 and `errno`.
///
/// # Safety
/// The texts are NULL or end in NUL, `hints` is NULL or readable with addresses of the lengths it names, `res` is NULL or writable.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    boundary::number(|| {
        // SAFETY: the caller's promise, here and below.
        let query = unsafe { Query::read(node, service, hints) }?;
        if res.is_null() {
            return Err(Errno::INVAL.null());
        }
        match query.answer().take() {
            Ok(list) => {
                // SAFETY: as above.
                unsafe { *res = list };
                Ok(0)
            }
            Err(error) => Ok(error),
        }
    })
}

/// `rdma_resolve_addrinfo`: as [`rdma_getaddrinfo`], on another thread; the result is announced by an event.
///
/// # Safety
/// As for [`rdma_getaddrinfo`].
pub unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    let result = boundary::minus_one(|| {
        let id = registry::id(id)?;
        // SAFETY: the caller's promise.
        let query = unsafe { Query::read(node, service, hints) }?;
        if query.flags & RAI_SA != 0 {
            // InfiniBand's subnet administration.
            return Err(Errno::UNSUPPORTED.because("there is no subnet administration (RAI_SA)"));
        }
        let answer = move || {
            let resolved = query.answer();
            let note = match resolved.error() {
                0 => Note { event: RDMA_CM_EVENT_ADDRINFO_RESOLVED, status: 0, arg: 0, group: None },
                error => Note { event: RDMA_CM_EVENT_ADDRINFO_ERROR, status: error, arg: 0, group: None },
            };
            if let Some(mut state) = id.lock_alive() {
                state.resolved = Some(resolved);
            }
            // No event for an id that was destroyed meanwhile.
            let _ = id.post(note);
        };
        std::thread::Builder::new().name("uiw-resolver".into()).spawn(answer)?;
        Ok(())
    });
    // SAFETY: nothing on this stack frame has a destructor.
    unsafe { sync::complete(id, result) }
}

/// `rdma_query_addrinfo`: the result that an event announced, once.
///
/// # Safety
/// `info` is NULL or writable.
pub unsafe extern "C" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int {
    boundary::minus_one(|| {
        let id = registry::id(id)?;
        if info.is_null() {
            return Err(Errno::INVAL.null());
        }
        let resolved = id.lock_alive().ok_or_else(|| Errno::INVAL.destroyed())?.resolved.take();
        let resolved =
            resolved.ok_or_else(|| Errno::INVAL.because("the id has no result of rdma_resolve_addrinfo"))?;
        let list = resolved.take().map_err(|_| Errno::INVAL.because("the look-up has failed"))?;
        // SAFETY: the caller's promise.
        unsafe { *info = list };
        Ok(())
    })
}
