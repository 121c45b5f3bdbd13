//! A small `/sys/class/infiniband` for programs that look there, and device nodes for programs that
//! look for these, in a mount namespace of their own.

use crate::mounts;
use crate::split::{Outcome, in_child};
use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::Ipv6Addr;
use std::os::unix;
use std::os::unix::fs::symlink;
use std::path::Path;
use uiw_cabi_core::persona::Persona;
use uiw_cabi_verbs::device::netdev::{self, NetDev};
use uiw_cabi_verbs::device::speed::PortSpeed;
use uiw_cabi_verbs::device::{attributes, gid, port};

/// Folder of the device classes.
const CLASSES: &str = "/sys/class";
/// Folder of the device nodes of the kernel's drivers.
const NODES: &str = "/dev/infiniband";

/// Visibility of the machine's RDMA devices beside those of uiw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemDevices {
    /// Programs that scan the tree find uiw's devices only.
    Hidden,
    /// The devices stay where they are.
    Shown,
}

/// Enters a new mount namespace, and creates the tree and the device nodes there, for this process
/// and the program that it executes. The process must have one thread.
///
/// # Errors
/// Returns OS errors, for example if this user may not create namespaces or mount a tmpfs.
pub fn enter(persona: Persona, others: SystemDevices) -> io::Result<()> {
    mounts::enter()?;
    show(persona, others)
}

/// Checks whether [`enter`] would succeed, by trying it in a child process, whose namespaces end
/// with it. The process must have one thread.
///
/// # Errors
/// Returns an error with the text of the error of [`enter`] in the child process, or OS errors of
/// creating this process.
pub fn permitted() -> io::Result<()> {
    let (mut answer, mut question) = io::pipe()?;
    let outcome = in_child(|| match enter(Persona::default(), SystemDevices::Shown) {
        Ok(()) => 0,
        Err(error) => {
            let _ = write!(question, "{error}");
            1
        }
    })?;
    drop(question);
    let mut why = String::new();
    answer.read_to_string(&mut why)?;
    match outcome {
        Outcome::Exit(0) => Ok(()),
        Outcome::Exit(_) => Err(io::Error::other(why)),
        Outcome::Signal(number) => {
            Err(io::Error::other(format!("a system call ends the process by signal {number}")))
        }
    }
}

/// Creates the tree and the nodes in a container whose root file system is `root`, and whose
/// namespaces this process is in. Afterwards `root` is also the root of this process, so that
/// symbolic links of the container cannot lead out of it.
///
/// # Errors
/// Returns OS errors.
pub fn show_in(root: &Path, persona: Persona) -> io::Result<()> {
    unix::fs::chroot(root)?;
    env::set_current_dir("/")?;
    show(persona, SystemDevices::Shown)
}

/// Creates the tree and the nodes in the mount namespace of this process, readable for every user
/// that the program becomes.
fn show(persona: Persona, others: SystemDevices) -> io::Result<()> {
    // SAFETY: the call accesses no memory.
    let before = unsafe { libc::umask(0o022) };
    let shown = create(persona, others);
    // SAFETY: the call accesses no memory.
    unsafe { libc::umask(before) };
    shown
}

fn create(persona: Persona, others: SystemDevices) -> io::Result<()> {
    let netdevs = netdev::all()?;
    let classes = Path::new(CLASSES);
    mounts::make_writable(classes)?;
    // Entries that exist already belong to the system's devices.
    let abi = classes.join("infiniband_verbs");
    for folder in [&classes.join("infiniband"), &abi] {
        if folder.exists() {
            cover(folder, others)?;
        }
    }
    for netdev in &netdevs {
        device(netdev, persona)?;
    }
    fs::create_dir_all(&abi)?;
    if !abi.join("abi_version").exists() {
        put(&abi.join("abi_version"), "6")?;
    }
    nodes(&netdevs, others)
}

/// Makes a folder writable in which the system's devices have entries, and hides these entries if
/// `others` says so.
fn cover(folder: &Path, others: SystemDevices) -> io::Result<()> {
    match others {
        SystemDevices::Hidden => mounts::cover(folder),
        SystemDevices::Shown => mounts::make_writable(folder),
    }
}

/// Creates character devices under the names by which programs look for them. They are bind mounts
/// of /dev/null, because programs only check that they can be read and written.
///
/// The loopback device has a node only if there is no other device. UCX connects every device that
/// has a node to a device of the peer, and takes 127.0.0.1 for an address of the peer's host. No
/// RoCE adapter has such an address.
fn nodes(netdevs: &[NetDev], others: SystemDevices) -> io::Result<()> {
    let folder = Path::new(NODES);
    if folder.exists() {
        cover(folder, others)?;
    } else {
        mounts::make_writable(Path::new("/dev"))?;
        fs::create_dir(folder)?;
    }
    let only_loopback = netdevs.iter().all(|netdev| netdev.loopback);
    for netdev in netdevs.iter().filter(|netdev| only_loopback || !netdev.loopback) {
        for name in [format!("uiw_{}", netdev.name), format!("uverbs_uiw_{}", netdev.name)] {
            let node = folder.join(name);
            File::create(&node)?;
            mounts::bind(Path::new("/dev/null"), &node)?;
        }
    }
    Ok(())
}

fn put(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, format!("{text}\n"))
}

/// Creates the files that programs read about one device and its port.
fn device(netdev: &NetDev, persona: Persona) -> io::Result<()> {
    let name = format!("uiw_{}", netdev.name);
    let folder = Path::new(CLASSES).join("infiniband").join(&name);
    let words: Vec<String> = netdev
        .guid()
        .to_ne_bytes()
        .chunks(2)
        .map(|w| format!("{:02x}{:02x}", w[0], w[1]))
        .collect();
    let guid = words.join(":");
    let node = if persona == Persona::Iwarp { "4: RNIC" } else { "1: CA" };
    put(&folder.join("node_type"), node)?;
    put(&folder.join("node_guid"), &guid)?;
    put(&folder.join("sys_image_guid"), &guid)?;
    put(&folder.join("node_desc"), &name)?;
    put(&folder.join("fw_ver"), env!("CARGO_PKG_VERSION"))?;
    put(&folder.join("hca_type"), "uiw")?;
    put(&folder.join("hw_rev"), "0")?;
    put(&folder.join("board_id"), "uiw")?;
    let device = folder.join("device");
    put(&device.join("vendor"), &format!("{:#06x}", attributes::VENDOR_ID & 0xFFFF))?;
    put(&device.join("device"), "0x0000")?;
    // The device is near to no NUMA node.
    put(&device.join("numa_node"), "-1")?;
    let verbs = Path::new(CLASSES).join("infiniband_verbs").join(format!("uverbs_{name}"));
    put(&verbs.join("ibdev"), &name)?;
    put(&verbs.join("abi_version"), "1")?;
    let nets = folder.join("device/net");
    fs::create_dir_all(&nets)?;
    symlink(Path::new(CLASSES).join("net").join(&netdev.name), nets.join(&netdev.name))?;
    let at = folder.join("ports/1");
    let attr = port::port_attr(netdev, persona);
    put(&at.join("state"), if netdev.running { "4: ACTIVE" } else { "1: DOWN" })?;
    put(&at.join("phys_state"), if netdev.running { "5: LinkUp" } else { "3: Disabled" })?;
    put(&at.join("link_layer"), if persona == Persona::Ib { "InfiniBand" } else { "Ethernet" })?;
    put(&at.join("lid"), &format!("{:#x}", attr.lid))?;
    put(&at.join("lid_mask_count"), "0")?;
    put(&at.join("sm_lid"), &format!("{:#x}", attr.sm_lid))?;
    put(&at.join("sm_sl"), "0")?;
    put(&at.join("cap_mask"), &format!("{:#010x}", attr.port_cap_flags))?;
    put(&at.join("rate"), &PortSpeed::from_netdev(netdev).to_string())?;
    for (index, (address, _)) in netdev.addresses.iter().enumerate() {
        let gid = Ipv6Addr::from(gid::from_address(*address).raw)
            .segments()
            .map(|w| format!("{w:04x}"))
            .join(":");
        put(&at.join(format!("gids/{index}")), &gid)?;
        let kind = if persona == Persona::Roce { "RoCE v2" } else { "IB/RoCE v1" };
        put(&at.join(format!("gid_attrs/types/{index}")), kind)?;
        put(&at.join(format!("gid_attrs/ndevs/{index}")), &netdev.name)?;
    }
    if persona.pkeys() > 0 {
        put(&at.join("pkeys/0"), "0xffff")?;
    }
    Ok(())
}
