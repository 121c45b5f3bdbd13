//! The programs that tests need and the Debian packages they come from.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{self, End};

/// Something that some tests cannot run without.
pub(crate) struct Need {
    /// A program on the path, or the path of a file.
    program: &'static str,
    package: &'static str,
    tests: &'static str,
}

/// Which test needs what. Everything else needs Cargo alone.
pub(crate) const NEEDS: &[Need] = &[
    Need { program: "tshark", package: "tshark", tests: "interop: oracles tshark::*" },
    Need { program: "dumpcap", package: "wireshark-common", tests: "interop: stock ucx::* mpi::*" },
    Need { program: "openssl", package: "openssl", tests: "tls: tls_peers openssl*" },
    Need { program: "gnutls-cli", package: "gnutls-bin", tests: "tls: tls_peers gnutls*" },
    Need { program: "gnutls-serv", package: "gnutls-bin", tests: "tls: tls_peers gnutls*" },
    Need { program: "ip", package: "iproute2", tests: "interop: tests with network namespaces" },
    Need { program: "ethtool", package: "ethtool", tests: "interop: stacks pairings::*" },
    Need { program: "qemu-system-x86_64", package: "qemu-system-x86", tests: SIW },
    Need { program: "gcc", package: "gcc", tests: SIW },
    // The compiler of Debian 12's kernel.
    Need { program: "gcc-12", package: "gcc-12", tests: SIW },
    Need { program: "make", package: "make", tests: SIW },
    Need { program: "patch", package: "patch", tests: SIW },
    Need { program: "strip", package: "binutils", tests: SIW },
    Need { program: "mmdebstrap", package: "mmdebstrap", tests: SIW },
    Need { program: "cpio", package: "cpio", tests: SIW },
    Need { program: "modprobe", package: "kmod", tests: SIW },
    Need { program: "xz", package: "xz-utils", tests: SIW },
    Need { program: "setpriv", package: "util-linux", tests: SIW },
    Need { program: "socat", package: "socat", tests: "siw: *tls_proxy*" },
    Need { program: "tgtd", package: "tgt", tests: "siw: kernel ib_iser" },
    Need { program: "diod", package: "diod", tests: "siw: kernel 9p" },
    Need { program: "text2pcap", package: "wireshark-common", tests: "interop: stock tls::rping*" },
    Need { program: "rping", package: "rdmacm-utils", tests: "interop: stock rping::* cm::*" },
    Need { program: "ibv_rc_pingpong", package: "ibverbs-utils", tests: "interop: stock utilities::*" },
    Need { program: "ibstat", package: "infiniband-diags", tests: "interop: stock utilities::*ibstat*" },
    Need { program: "nft", package: "nftables", tests: "interop: stock utilities::*walled*" },
    Need { program: "ib_write_bw", package: "perftest", tests: "interop: stock perftest::*" },
    Need { program: "podman", package: "podman", tests: "interop: stock containers::*" },
    Need { program: "crun", package: "crun", tests: "interop: stock containers::*" },
    Need { program: "runc", package: "runc", tests: "interop: stock containers::*" },
    Need {
        program: "fi_pingpong",
        package: "libfabric-bin",
        tests: "interop: stock libfabric::* datagrams::libfabric*",
    },
    Need { program: "objdump", package: "binutils", tests: "interop: stock exports::*" },
    Need { program: "unshare", package: "util-linux", tests: "interop: stock require::*" },
    Need { program: "ucx_perftest", package: "ucx-utils", tests: "interop: stock ucx::* require::ucx*" },
    Need { program: UCX_HEADER, package: "libucx-dev", tests: "interop: stock ucx::*" },
    Need { program: "mpirun.openmpi", package: "openmpi-bin", tests: "interop: stock mpi::*open_mpi*" },
    Need { program: "mpicc.openmpi", package: "libopenmpi-dev", tests: "interop: stock mpi::*open_mpi*" },
    Need { program: "mpirun.mpich", package: "mpich", tests: "interop: stock mpi::*mpich*" },
    Need { program: "mpicc.mpich", package: "libmpich-dev", tests: "interop: stock mpi::*mpich*" },
    Need { program: "rstream", package: "rdmacm-utils", tests: "interop: stock rsockets::*" },
    Need { program: "iperf3", package: "iperf3", tests: "interop: stock sockets::*" },
    Need {
        program: "redis-server",
        package: "redis-server",
        tests: "interop: stock sockets_programs::redis",
    },
    Need { program: "redis-cli", package: "redis-tools", tests: "interop: stock sockets_programs::redis" },
    Need { program: "memcached", package: "memcached", tests: "interop: stock sockets_programs::memcached" },
    Need {
        program: MEMCACHE,
        package: "python3-memcache",
        tests: "interop: stock sockets_programs::memcached",
    },
    Need {
        program: TEST_SOCKET,
        package: "libpython3.11-testsuite",
        tests: "interop: stock sockets_programs::cpythons*",
    },
    Need { program: "nginx", package: "nginx-light", tests: "interop: stock sockets_programs::nginx*" },
    Need { program: "curl", package: "curl", tests: "interop: stock sockets::* sockets_programs::*" },
    Need {
        program: PGBENCH,
        package: "postgresql-15",
        tests: "interop: stock sockets_programs::postgresql*",
    },
    Need { program: "qperf", package: "qperf", tests: "interop: stock forks::qperf*" },
    Need { program: "fio", package: "fio", tests: "interop: stock forks::fio*" },
    Need { program: "tgtd", package: "tgt", tests: "interop: stock iser::*" },
    Need { program: "qemu-img", package: "qemu-utils", tests: "interop: stock iser::*" },
    Need { program: ISCSI_DRIVER, package: "qemu-block-extra", tests: "interop: stock iser::*" },
    Need { program: "setpriv", package: "util-linux", tests: "interop: stock programs as an ordinary user" },
    Need { program: "cc", package: "gcc", tests: "interop: stock c_programs::*" },
    Need { program: C_HEADER, package: "librdmacm-dev", tests: "interop: stock c_programs::*" },
    Need { program: "valgrind", package: "valgrind", tests: "interop: stock c_programs::*valgrind*" },
    Need { program: "strip", package: "binutils", tests: INSTALL },
    Need { program: "pkg-config", package: "pkgconf", tests: INSTALL },
    Need { program: "man", package: "man-db", tests: INSTALL },
    Need { program: "systemd-analyze", package: "systemd", tests: INSTALL },
    Need { program: "dpkg-deb", package: "dpkg", tests: DIST },
    Need { program: "mmdebstrap", package: "mmdebstrap", tests: DIST },
    Need { program: "mount", package: "mount", tests: DIST },
    Need { program: "python3", package: "python3-venv", tests: DIST },
    Need { program: RDMA_CORE_TESTS, package: "rdma-core", tests: "interop: stock python::*" },
    Need { program: PYVERBS, package: "python3-pyverbs", tests: "interop: stock python::*" },
];

/// The tests on a virtual machine with the Linux siw driver.
const SIW: &str = "interop/siw: siw::*";
/// The tests of what is installed.
const INSTALL: &str = "xtask: install *";
/// The tests of the packages for users, and of the book's commands with these packages.
const DIST: &str = "xtask: dist * book *";
const UCX_HEADER: &str = "/usr/include/ucp/api/ucp.h";
const C_HEADER: &str = "/usr/include/rdma/rdma_cma.h";
/// QEMU's block driver for iSCSI.
const ISCSI_DRIVER: &str = "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so";
const RDMA_CORE_TESTS: &str = "/usr/share/doc/rdma-core/tests/run_tests.py";
const MEMCACHE: &str = "/usr/lib/python3/dist-packages/memcache.py";
const TEST_SOCKET: &str = "/usr/lib/python3.11/test/test_socket.py";
const PGBENCH: &str = "/usr/lib/postgresql/15/bin/pgbench";
const PYVERBS: &str = "/usr/lib/python3/dist-packages/pyverbs/__init__.py";

/// The longest that one apt-get call may take.
const APT_CAP: Duration = Duration::from_secs(600);

/// Installs what is missing, if this machine lets us; says what stays missing and which tests that costs.
pub(crate) fn install(deadline: Instant) {
    // Twice: a package of another release may be removed when the first call installs those that it conflicts with.
    for _ in 0..2 {
        let mut packages: Vec<&str> = missing().iter().map(|need| need.package).collect();
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
    for need in missing() {
        eprintln!(
            "xtask: no `{}` here (Debian package {}): skipping {}",
            need.program, need.package, need.tests
        );
    }
}

/// Installs what is missing of these programs (each with its package), if this machine lets us. Gives those that stay missing,
/// of which it has said where they come from.
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

fn missing() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| !on_path(need.program)).collect()
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
    // An update that failed may still have left lists good enough to install from.
    if update != End::Success {
        eprintln!("xtask: apt-get update: {update:?}");
    }
    let install = |packages: &[&str]| {
        apt_get(&[&["install", "-y", "--no-install-recommends"], packages].concat(), deadline)
    };
    if install(packages) == End::Success {
        return;
    }
    // One at a time: what this release does not have keeps nothing else away.
    for package in packages {
        let end = install(&[package]);
        if end != End::Success {
            eprintln!("xtask: apt-get install {package}: {end:?}");
        }
    }
}

/// No question can be asked: no terminal on stdin, no debconf front end, old configuration files stay.
fn apt_get(args: &[&str], deadline: Instant) -> End {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Options::=--force-confold"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let deadline = deadline.min(Instant::now() + APT_CAP);
    process::run(&mut command, deadline).unwrap_or_else(|error| End::Failure(error.to_string()))
}

/// Returns whether the user's or the system's path has this program.
pub(crate) fn on_path(program: &str) -> bool {
    find(program).is_some()
}

/// Where the user's or the system's path has this program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).to_path_buf());
    env::split_paths(&path).chain(system).map(|folder| folder.join(program)).find(|file| file.is_file())
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
