//! Counter files of ports, as the kernel's drivers have them: a process of its own serves them by FUSE as long as the program, or anything that
//! it has started, can see them. Where FUSE cannot be used there are none.

mod files;
mod totals;

use files::Files;
use fuser::{Config, Session, SessionACL};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use totals::Totals;
use uiw_cabi::device::netdev;
use uiw_cabi::split::{End, split_off};
use uiw_cabi::sysfs;
use uiw_llp::Spec;

/// How often the files of programs are read beside reads of the counter files: what a program has counted since the last time is lost when its
/// own file is removed.
const EVERY: Duration = Duration::from_millis(250);

/// The process that serves the files, which has yet to get the file system.
pub(super) struct Server {
    channel: OwnedFd,
    devices: Vec<String>,
}

impl Server {
    /// Starts it, in the namespaces that this process is about to leave: it holds none of those that the program gets.
    pub(super) fn start(llp: &Spec) -> io::Result<Self> {
        let netdevs = netdev::all_on(llp)?;
        let devices = netdevs.iter().map(|netdev| format!("uiw_{}", netdev.name)).collect::<Vec<_>>();
        match split_off()? {
            End::Here(channel) => Ok(Self { channel, devices }),
            End::There(channel) => {
                let served = receive(&channel).and_then(|descriptor| serve(descriptor, &devices, llp));
                std::process::exit(i32::from(served.is_err()));
            }
        }
    }

    /// Mounts the file system, in the program's namespaces.
    pub(super) fn show(self) -> io::Result<()> {
        sysfs::show_counters(&self.devices, |descriptor| {
            let descriptors = [descriptor.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            sendmsg(&self.channel, &[IoSlice::new(b"F")], &mut control, SendFlags::NOSIGNAL)?;
            Ok(())
        })
    }
}

/// The descriptor that the other end sends, if it does.
fn receive(channel: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Serves until the last mount of the file system is gone.
fn serve(descriptor: OwnedFd, devices: &[String], llp: &Spec) -> io::Result<()> {
    let totals = Arc::new(Mutex::new(Totals::default()));
    let updated = Arc::clone(&totals);
    std::thread::Builder::new().name("uiw-counters".to_owned()).spawn(move || {
        loop {
            updated.lock().unwrap_or_else(PoisonError::into_inner).update();
            std::thread::sleep(EVERY);
        }
    })?;
    let files = Files::new(devices, llp.clone(), totals);
    Session::from_fd(files, descriptor, SessionACL::All, Config::default())?.run()
}
