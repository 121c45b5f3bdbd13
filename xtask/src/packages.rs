//! Programs that tests need, and the Debian packages that contain them.

use std::process::Command;
use std::time::{Duration, Instant};

use uiw_interop::find;

use crate::process::{self, ChildEnd};

/// Prerequisite of some tests: a program on the path or the path of a file, its package, and the
/// tests.
pub(crate) type PackageNeed = (&'static str, &'static str, &'static str);

/// Prerequisites of the tests. All other tests only need Cargo.
pub(crate) const NEEDS: &[PackageNeed] = &[
    ("tshark", "tshark", "interop: oracles tshark::*"),
    ("dumpcap", "wireshark-common", "interop: stock ucx::* mpi::*"),
    ("openssl", "openssl", "tls: tls_peers openssl*"),
    ("gnutls-cli", "gnutls-bin", "tls: tls_peers gnutls*"),
    ("gnutls-serv", "gnutls-bin", "tls: tls_peers gnutls*"),
    ("ip", "iproute2", "interop: tests with network namespaces"),
    ("ethtool", "ethtool", "interop: stacks pairings::*"),
    ("sysctl", "procps", "interop: stacks gateway::*"),
    ("qemu-system-x86_64", "qemu-system-x86", SIW),
    ("gcc", "gcc", SIW),
    // The kernel of Debian 12 was built with this compiler.
    ("gcc-12", "gcc-12", SIW),
    ("make", "make", SIW),
    ("patch", "patch", SIW),
    ("strip", "binutils", SIW),
    ("mmdebstrap", "mmdebstrap", SIW),
    ("cpio", "cpio", SIW),
    ("modprobe", "kmod", SIW),
    ("xz", "xz-utils", SIW),
    ("setpriv", "util-linux", SIW),
    ("socat", "socat", "siw: *tls_proxy*"),
    ("tgtd", "tgt", "siw: kernel ib_iser"),
    ("diod", "diod", "siw: kernel 9p"),
    ("text2pcap", "wireshark-common", "interop: stock tls::rping*"),
    ("rping", "rdmacm-utils", "interop: stock rping::* cm::*"),
    ("ibv_rc_pingpong", "ibverbs-utils", "interop: stock utilities::*"),
    ("ibstat", "infiniband-diags", "interop: stock utilities::*ibstat*"),
    ("nft", "nftables", "interop: stock utilities::*walled*"),
    ("ib_write_bw", "perftest", "interop: stock perftest::*"),
    ("podman", "podman", "interop: stock containers::*"),
    ("crun", "crun", "interop: stock containers::*"),
    ("runc", "runc", "interop: stock containers::*"),
    ("fi_pingpong", "libfabric-bin", "interop: stock libfabric::* datagrams::libfabric*"),
    ("objdump", "binutils", "interop: stock exports::*"),
    ("unshare", "util-linux", "interop: stock require::*"),
    ("ucx_perftest", "ucx-utils", "interop: stock ucx::* require::ucx*"),
    (UCX_HEADER, "libucx-dev", "interop: stock ucx::*"),
    ("mpirun.openmpi", "openmpi-bin", "interop: stock mpi::*open_mpi*"),
    ("mpicc.openmpi", "libopenmpi-dev", "interop: stock mpi::*open_mpi*"),
    ("mpirun.mpich", "mpich", "interop: stock mpi::*mpich*"),
    ("mpicc.mpich", "libmpich-dev", "interop: stock mpi::*mpich*"),
    ("rstream", "rdmacm-utils", "interop: stock rsockets::*"),
    ("iperf3", "iperf3", "interop: stock sockets::*"),
    ("redis-server", "redis-server", "interop: stock sockets_programs::redis"),
    ("redis-cli", "redis-tools", "interop: stock sockets_programs::redis"),
    ("memcached", "memcached", "interop: stock sockets_programs::memcached"),
    (MEMCACHE, "python3-memcache", "interop: stock sockets_programs::memcached"),
    (TEST_SOCKET, "libpython3.11-testsuite", "interop: stock sockets_programs::cpythons*"),
    ("nginx", "nginx-light", "interop: stock sockets_programs::nginx*"),
    ("curl", "curl", "interop: stock sockets::* sockets_programs::*"),
    (PGBENCH, "postgresql-15", "interop: stock sockets_programs::postgresql*"),
    ("qperf", "qperf", "interop: stock forks::qperf*"),
    ("fio", "fio", "interop: stock forks::fio*"),
    ("tgtd", "tgt", "interop: stock iser::*"),
    ("qemu-img", "qemu-utils", "interop: stock iser::*"),
    (ISCSI_DRIVER, "qemu-block-extra", "interop: stock iser::*"),
    ("setpriv", "util-linux", "interop: stock programs as an ordinary user"),
    ("cc", "gcc", "interop: stock c_programs::*"),
    (C_HEADER, "librdmacm-dev", "interop: stock c_programs::*"),
    ("valgrind", "valgrind", "interop: stock c_programs::*valgrind*"),
    ("strip", "binutils", INSTALL),
    ("pkg-config", "pkgconf", INSTALL),
    ("man", "man-db", INSTALL),
    ("systemd-analyze", "systemd", INSTALL),
    ("dpkg-deb", "dpkg", DIST),
    ("mmdebstrap", "mmdebstrap", DIST),
    ("mount", "mount", DIST),
    ("python3", "python3-venv", DIST),
    (RDMA_CORE_TESTS, "rdma-core", "interop: stock python::*"),
    (PYVERBS, "python3-pyverbs", "interop: stock python::*"),
];

/// Tests on a virtual machine with the Linux siw driver.
const SIW: &str = "interop/siw: siw::*";
/// Tests of the installed files.
const INSTALL: &str = "xtask: install *";
/// Tests of the packages for users, and of the book's commands with these packages.
const DIST: &str = "xtask: dist * book *";
const UCX_HEADER: &str = "/usr/include/ucp/api/ucp.h";
const C_HEADER: &str = "/usr/include/rdma/rdma_cma.h";
/// Block driver of QEMU for iSCSI.
const ISCSI_DRIVER: &str = "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so";
const RDMA_CORE_TESTS: &str = "/usr/share/doc/rdma-core/tests/run_tests.py";
const MEMCACHE: &str = "/usr/lib/python3/dist-packages/memcache.py";
const TEST_SOCKET: &str = "/usr/lib/python3.11/test/test_socket.py";
const PGBENCH: &str = "/usr/lib/postgresql/15/bin/pgbench";
const PYVERBS: &str = "/usr/lib/python3/dist-packages/pyverbs/__init__.py";

/// Maximum time of one call of apt-get.
const APT_CAP: Duration = Duration::from_secs(600);

/// Installs missing prerequisites if this machine allows it. Prints those that are still missing,
/// and the tests that cannot run without them.
pub(crate) fn install(deadline: Instant) {
    // Packages are installed in up to two passes, because the first one may remove a package of
    // another release that conflicts with a new one.
    for _ in 0..2 {
        let mut packages: Vec<&str> = missing().iter().map(|(_, package, _)| *package).collect();
        packages.dedup();
        if packages.is_empty() {
            return;
        }
        if let Some(reason) = why_not() {
            eprintln!("xtask: not installing packages: {reason}");
            break;
        }
        apt(&packages, deadline);
    }
    for (program, package, tests) in missing() {
        eprintln!("xtask: no `{program}` here (Debian package {package}): skipping {tests}");
    }
}

/// Installs the missing ones of `programs`, each given with its package, if this machine allows it.
/// Prints and returns the programs that are still missing.
pub(crate) fn provide(programs: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    let absent = || programs.iter().filter(|(program, _)| !on_path(program));
    let mut packages: Vec<&str> = absent().map(|(_, package)| *package).collect();
    packages.dedup();
    if !packages.is_empty() {
        match why_not() {
            Some(reason) => eprintln!("xtask: not installing packages: {reason}"),
            None => apt(&packages, Instant::now() + 2 * APT_CAP),
        }
    }
    let mut absent: Vec<_> = absent().copied().collect();
    absent.dedup();
    for (program, package) in &absent {
        eprintln!("xtask: no `{program}` here: `apt-get install {package}`");
    }
    absent.into_iter().map(|(program, _)| program).collect()
}

fn missing() -> Vec<&'static PackageNeed> {
    NEEDS.iter().filter(|(program, ..)| !on_path(program)).collect()
}

fn why_not() -> Option<&'static str> {
    if !on_path("apt-get") {
        Some("no apt-get")
    } else if !rustix::process::geteuid().is_root() {
        Some("not root")
    } else {
        None
    }
}

fn apt(packages: &[&str], deadline: Instant) {
    eprintln!("xtask: installing {}", packages.join(" "));
    let update = apt_get(&["update"], deadline);
    // Even if the update fails, the existing lists may be sufficient.
    if update != ChildEnd::Success {
        eprintln!("xtask: apt-get update: {update:?}");
    }
    let install = |packages: &[&str]| {
        apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat(), deadline)
    };
    if install(packages) == ChildEnd::Success {
        return;
    }
    // Packages are installed one by one, so that a package that this release does not have does not
    // prevent the others.
    for package in packages {
        let end = install(&[package]);
        if end != ChildEnd::Success {
            eprintln!("xtask: apt-get install {package}: {end:?}");
        }
    }
}

/// Runs apt-get such that it cannot ask questions: without a terminal on stdin, without a front end
/// for debconf, and keeping old configuration files.
fn apt_get(args: &[&str], deadline: Instant) -> ChildEnd {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Options::=--force-confold"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let deadline = deadline.min(Instant::now() + APT_CAP);
    // A package manager that is killed leaves packages that are not configured.
    process::run_uninterrupted(&mut command, deadline)
        .unwrap_or_else(|error| ChildEnd::Failure(error.to_string()))
}

/// Returns whether the user's or the system's path has this program.
pub(crate) fn on_path(program: &str) -> bool {
    find(program).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs() {
        assert!(on_path("sh"));
        assert!(!on_path("no-program-has-this-name"));
    }
}
