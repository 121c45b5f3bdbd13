//! `rdma_getaddrinfo`, which converts the result of the C library's `getaddrinfo`, and
//! `rdma_resolve_addrinfo`, a newer call that reports the result as an event.

use crate::addrinfo_result::AddrinfoResult;
use crate::id::LocalEvent;
use crate::registry::RegisteredPtr as _;
use crate::sync;
use std::ffi::{CStr, CString, c_int};
use std::{ptr, slice};
use uiw_cabi_core::abi::cm::*;
use uiw_cabi_core::abi::qp::{IBV_QPT_RC, IBV_QPT_UD};
use uiw_cabi_core::abi::{rdma_addrinfo, rdma_cm_id, zeroed};
use uiw_cabi_core::arguments::{AnyPtr, InPtr, OutPtr, TextPtr};
use uiw_cabi_core::boundary::{self, Result};
use uiw_cabi_core::c_library::copy_to_heap;
use uiw_cabi_core::errno::Errno;
use uiw_verbs::integration::spawn_thread;

/// Owned parameters of a look-up, which may be made on another thread.
struct AddressQuery {
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

impl AddressQuery {
    fn read(
        node: &TextPtr<'_>,
        service: &TextPtr<'_>,
        hints: &InPtr<'_, rdma_addrinfo>,
    ) -> Result<Self> {
        let bytes = |at: *const libc::sockaddr, len: libc::socklen_t| {
            match (at.is_null(), len as usize) {
                (_, 0) => Ok(Vec::new()),
                (false, len @ 1..=128) => {
                    // SAFETY: `at` is not NULL, and `len` is its address's length, `ai_src_len` or
                    // `ai_dst_len` (rdma_getaddrinfo(3)). As `InPtr` requires, the bytes are
                    // initialized and do not change during the call, which copies them here.
                    Ok(unsafe { slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec())
                }
                _ => Err(Errno::INVAL.because("the address is NULL or too long")),
            }
        };
        let given = hints.as_ref();
        let (node, service) = (node.get().map(CStr::to_owned), service.get().map(CStr::to_owned));
        if node.is_none() && service.is_none() && given.is_none() {
            return Err(
                Errno::INVAL.because("neither a node nor a service nor an address was passed")
            );
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

    /// Makes the look-up.
    fn answer(&self) -> AddrinfoResult {
        // SAFETY: `look_up` returns an error, or the one element that `convert` has allocated on
        // C's heap with `copy_to_heap`, like its parts that are not NULL. `convert` keeps no
        // pointer to them, so no other one exists.
        unsafe { AddrinfoResult::new(self.look_up()) }
    }

    fn look_up(&self) -> std::result::Result<*mut rdma_addrinfo, c_int> {
        if self.node.is_none() && self.service.is_none() {
            return self.convert(self.family, &self.dst, None);
        }
        let mut hints: libc::addrinfo = zeroed();
        if self.flags & RAI_PASSIVE != 0 {
            hints.ai_flags |= libc::AI_PASSIVE;
        }
        if self.flags & RAI_NUMERICHOST != 0 {
            hints.ai_flags |= libc::AI_NUMERICHOST;
        }
        hints.ai_family = self.family;
        // The C library refuses a type and a port space that do not belong together.
        hints.ai_socktype = match self.qp_type {
            0 => 0,
            IBV_QPT_UD => libc::SOCK_DGRAM,
            _ => libc::SOCK_STREAM,
        };
        hints.ai_protocol = match self.port_space {
            RDMA_PS_TCP => libc::IPPROTO_TCP,
            RDMA_PS_UDP | RDMA_PS_IPOIB => libc::IPPROTO_UDP,
            _ => 0,
        };
        let text = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut list = ptr::null_mut();
        // SAFETY: each text is NULL or that of a `CString` of `self`, which ends in NUL. At most one
        // is NULL, as checked above. The hints, a local variable, are zeros except for the fields
        // that getaddrinfo(3) permits, and `list` is a local variable that receives a pointer.
        let error = unsafe {
            libc::getaddrinfo(
                text(&self.node),
                text(&self.service),
                &raw const hints,
                &raw mut list,
            )
        };
        if error != 0 {
            return Err(error);
        }
        // SAFETY: the call has succeeded, so `list` points to at least one element, whose address
        // is not NULL and has `ai_addrlen` initialized bytes (getaddrinfo(3)). Only this function
        // has the list, which nothing changes. `convert` copies the bytes, and neither they nor
        // `first` are used after the list is freed, once.
        unsafe {
            let first = &*list;
            let bytes =
                slice::from_raw_parts(first.ai_addr.cast::<u8>(), first.ai_addrlen as usize);
            let converted = self.convert(first.ai_family, bytes, Some(first.ai_socktype));
            libc::freeaddrinfo(list);
            converted
        }
    }

    /// Converts one result to memory on C's heap. Programs may free parts of it themselves.
    fn convert(
        &self,
        family: c_int,
        address: &[u8],
        socktype: Option<c_int>,
    ) -> std::result::Result<*mut rdma_addrinfo, c_int> {
        let reliable = match socktype {
            Some(socktype) => socktype != libc::SOCK_DGRAM,
            None => !matches!(self.port_space, RDMA_PS_UDP | RDMA_PS_IPOIB),
        };
        let passive = self.flags & RAI_PASSIVE != 0;
        let mut rai: rdma_addrinfo = zeroed();
        rai.ai_flags = self.flags;
        rai.ai_family = family;
        rai.ai_qp_type = match self.qp_type {
            0 if reliable => IBV_QPT_RC,
            0 => IBV_QPT_UD,
            given => given,
        };
        rai.ai_port_space = match self.port_space {
            0 if rai.ai_qp_type == IBV_QPT_UD => RDMA_PS_UDP,
            0 => RDMA_PS_TCP,
            given => given,
        };
        if passive && socktype.is_some() {
            (rai.ai_src_addr, rai.ai_src_len) = copy(address);
        } else {
            (rai.ai_dst_addr, rai.ai_dst_len) = copy(address);
        }
        if rai.ai_src_len == 0 && self.hinted {
            (rai.ai_src_addr, rai.ai_src_len) = copy(&self.src);
        }
        let rai = copy_to_heap(&[rai]);
        if rai.is_null() { Err(libc::EAI_MEMORY) } else { Ok(rai) }
    }
}

/// Copies bytes to C's heap. Returns NULL if there are none, or no memory.
fn copy(bytes: &[u8]) -> (*mut libc::sockaddr, libc::socklen_t) {
    let copy = copy_to_heap(bytes);
    (copy.cast(), if copy.is_null() { 0 } else { bytes.len() as libc::socklen_t })
}

/// `rdma_getaddrinfo`: returns 0, an error of the C library's `getaddrinfo`, or -1 with `errno`.
pub extern "C" fn rdma_getaddrinfo(
    node: TextPtr<'_>,
    service: TextPtr<'_>,
    hints: InPtr<'_, rdma_addrinfo>,
    res: OutPtr<'_, *mut rdma_addrinfo>,
) -> c_int {
    boundary::number(|| {
        let query = AddressQuery::read(&node, &service, &hints)?;
        res.check()?;
        match query.answer().take() {
            Ok(list) => res.write(list).map(|()| 0),
            Err(error) => Ok(error),
        }
    })
}

/// `rdma_resolve_addrinfo`: like [`rdma_getaddrinfo`], but makes the look-up on another thread and
/// announces the result with an event.
pub extern "C-unwind" fn rdma_resolve_addrinfo(
    id: AnyPtr<rdma_cm_id>,
    node: TextPtr<'_>,
    service: TextPtr<'_>,
    hints: InPtr<'_, rdma_addrinfo>,
) -> c_int {
    let result = boundary::minus_one(|| {
        let id = id.get()?;
        let query = AddressQuery::read(&node, &service, &hints)?;
        if query.flags & RAI_SA != 0 {
            // RAI_SA requests a look-up by the subnet administration of InfiniBand.
            return Err(Errno::UNSUPPORTED.because("there is no subnet administration (RAI_SA)"));
        }
        let answer = move || {
            let resolved = query.answer();
            let note = match resolved.error() {
                0 => LocalEvent::new(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0),
                error => LocalEvent::new(RDMA_CM_EVENT_ADDRINFO_ERROR, error),
            };
            if let Some(mut state) = id.lock_alive() {
                state.resolved = Some(resolved);
            }
            // An id that was destroyed meanwhile gets no event.
            let _ = id.post(note);
        };
        spawn_thread("uiw-resolver", answer)?;
        Ok(())
    });
    // SAFETY: this function is `extern "C-unwind"`, so its frame may unwind, and its arguments and
    // variables have no destructors. Its caller is C, or a test, whose threads nobody cancels.
    unsafe { sync::complete(id, result) }
}

/// `rdma_query_addrinfo`: returns the result that an event has announced. Each result is returned
/// only once.
pub extern "C" fn rdma_query_addrinfo(
    id: AnyPtr<rdma_cm_id>,
    info: OutPtr<'_, *mut rdma_addrinfo>,
) -> c_int {
    boundary::minus_one(|| {
        let id = id.get()?;
        info.check()?;
        let resolved = id.lock_checked()?.resolved.take();
        let resolved = resolved
            .ok_or_else(|| Errno::INVAL.because("the id has no result of rdma_resolve_addrinfo"))?;
        let list = resolved.take().map_err(|_| Errno::INVAL.because("the look-up has failed"))?;
        info.write(list)
    })
}
