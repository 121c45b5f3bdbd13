//! A small `/sys/class/infiniband` for programs that look there: made on a tmpfs in a mount namespace of their own, and, for
//! ordinary users, in a user namespace that keeps their user id.

use crate::device::netdev::{self, NetDev};
use crate::device::speed::PortSpeed;
use crate::device::{attributes, gid, port};
use crate::persona::Persona;
use std::ffi::CString;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::ptr;

/// Where classes of devices are.
const CLASSES: &str = "/sys/class";

/// Shows this process, and the program that it becomes, the tree. The process must have one thread.
///
/// # Errors
/// The system's: no namespaces for this user, or no tmpfs.
pub fn enter(persona: Persona) -> io::Result<()> {
    let netdevs = netdev::all()?;
    namespaces()?;
    // Nothing of it leaves the namespace.
    mount("none", "/", None, libc::MS_REC | libc::MS_PRIVATE)?;
    let classes: Vec<_> = fs::read_dir(CLASSES)?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    // What is hidden by the new mount stays reachable by the working directory.
    let back = std::env::current_dir();
    std::env::set_current_dir(CLASSES)?;
    mount("tmpfs", CLASSES, Some("tmpfs"), libc::MS_NOSUID | libc::MS_NODEV)?;
    for class in &classes {
        let to = Path::new(CLASSES).join(class);
        fs::create_dir(&to)?;
        bind(Path::new(class), &to)?;
    }
    if let Ok(back) = back {
        std::env::set_current_dir(back)?;
    }
    for netdev in &netdevs {
        device(netdev, persona)?;
    }
    let abi = Path::new(CLASSES).join("infiniband_verbs");
    fs::create_dir_all(&abi)?;
    put(&abi.join("abi_version"), "6")
}

fn namespaces() -> io::Result<()> {
    // SAFETY: two calls without arguments.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: takes flags only; here and below.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0 {
        return Ok(());
    }
    // SAFETY: as above.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error());
    }
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

fn mount(source: &str, target: &str, kind: Option<&str>, flags: libc::c_ulong) -> io::Result<()> {
    let (source, target) = (CString::new(source)?, CString::new(target)?);
    let kind = kind.map(CString::new).transpose()?;
    let kind = kind.as_ref().map_or(ptr::null(), |kind| kind.as_ptr());
    // SAFETY: names with their NUL, no data.
    match unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, ptr::null()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(&from.to_string_lossy(), &to.to_string_lossy(), None, libc::MS_BIND | libc::MS_REC)
}

fn put(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, format!("{text}\n"))
}

/// The files that programs read of one device and its port.
fn device(netdev: &NetDev, persona: Persona) -> io::Result<()> {
    let name = format!("uiw_{}", netdev.name);
    let folder = Path::new(CLASSES).join("infiniband").join(&name);
    let words: Vec<String> = attributes::guid(netdev)
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
    // No node is nearer than another.
    put(&device.join("numa_node"), "-1")?;
    let nets = folder.join("device/net");
    fs::create_dir_all(&nets)?;
    symlink(Path::new(CLASSES).join("net").join(&netdev.name), nets.join(&netdev.name))?;
    let at = folder.join("ports/1");
    let attr = port::of(netdev, persona);
    put(&at.join("state"), if netdev.running { "4: ACTIVE" } else { "1: DOWN" })?;
    put(&at.join("phys_state"), if netdev.running { "5: LinkUp" } else { "3: Disabled" })?;
    put(&at.join("link_layer"), if persona == Persona::Ib { "InfiniBand" } else { "Ethernet" })?;
    put(&at.join("lid"), &format!("{:#x}", attr.lid))?;
    put(&at.join("lid_mask_count"), "0")?;
    put(&at.join("sm_lid"), &format!("{:#x}", attr.sm_lid))?;
    put(&at.join("sm_sl"), "0")?;
    put(&at.join("cap_mask"), &format!("{:#010x}", attr.port_cap_flags))?;
    put(&at.join("rate"), &PortSpeed::of(netdev).to_string())?;
    for (index, (address, _)) in netdev.addresses.iter().enumerate() {
        let gid =
            Ipv6Addr::from(gid::from_address(*address).raw).segments().map(|w| format!("{w:04x}")).join(":");
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
