//! Runs TLS 1.3 between uiw and a proxy in front of siw, which does not support TLS. The proxy uses
//! OpenSSL, terminates TLS and forwards the decrypted stream.

use super::rping;
use crate::bench::Bench;
use crate::case::{Case, Direction, Setting, Verdict};
use crate::guest::Folder;
use crate::shell::need;
use crate::test_vm::RPING;
use crate::{Error, Result};
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

/// Name in the certificate.
const NAME: &str = "uiw.test";
/// Contents of the TLS configuration file of uiw.
const CONFIG: &str =
    "mode x509\nkey leaf.key\ncertificate leaf.crt\nauthority ca.crt\nserver-name uiw.test\n";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("rping 64, 20 rounds, TLS proxy", |b, s, d| behind_proxy(b, s, d, 64)).short(),
        Case::new("rping 65535, 20 rounds, TLS proxy", |b, s, d| behind_proxy(b, s, d, 65_535)),
    ]
}

fn behind_proxy(
    bench: &mut Bench,
    setting: &Setting,
    direction: Direction,
    size: u32,
) -> Result<Verdict> {
    need(&[("socat", "socat"), ("openssl", "openssl")])?;
    let keys = TestKeys::new()?;
    let config = keys.path("tls.conf");
    let host = bench.net().listen(setting.family)?;
    let (certificate, key, authority) =
        (keys.path("leaf.crt"), keys.path("leaf.key"), keys.path("ca.crt"));
    let tls = format!(
        "cert={certificate},key={key},cafile={authority},verify=1,commonname={NAME},openssl-min-proto-version=TLS1.3"
    );
    // With this option, socat forwards a half-closed stream for ten more seconds.
    let proxy = |from: String, to: String| vec!["-t10".to_owned(), from, to];
    let socat = bench.net().command("socat");
    match direction {
        Direction::Ours => {
            let _server = rping::serve(bench, setting, size)?;
            let guest = bench.guest_at(setting.family, RPING)?;
            let (_proxy, port) = bench.serve_stock(socat, |port| {
                let tls = tls.replace(&format!("commonname={NAME},"), "");
                proxy(format!("OPENSSL-LISTEN:{port},bind={host},{tls}"), format!("TCP:{guest}"))
            })?;
            let to = SocketAddr::new(host, port).to_string();
            rping::from_uiw(bench, setting, &["--tls", &config], &to, size, 20)
        }
        Direction::Theirs => {
            let args = [&["--tls", &config, "serve"], &super::wire(setting)[..]].concat();
            let (_server, own) = bench.serve_uiw(&args, setting.family)?;
            let own = SocketAddr::new(host, own);
            let (_proxy, port) = bench.serve_stock(socat, |port| {
                proxy(format!("TCP-LISTEN:{port},bind={host}"), format!("OPENSSL:{own},{tls}"))
            })?;
            rping::from_siw(bench, setting, port, size, 20)
        }
    }
}

/// Certificate for both ends and the authority that signed it.
struct TestKeys(Folder);

impl TestKeys {
    fn new() -> Result<Self> {
        let keys = Self(Folder::create("tls")?);
        keys.certificate("-subj /CN=authority -keyout ca.key -out ca.crt")?;
        keys.certificate(
            "-subj /CN=uiw.test -keyout leaf.key -out leaf.crt -CA ca.crt -CAkey ca.key \
             -addext subjectAltName=DNS:uiw.test -addext basicConstraints=critical,CA:FALSE",
        )?;
        fs::write(keys.path("tls.conf"), CONFIG).map_err(Error::io("tls.conf"))?;
        Ok(keys)
    }

    fn certificate(&self, arguments: &str) -> Result<()> {
        const USUAL: &str =
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -batch";
        let output = Command::new("openssl")
            .args(USUAL.split(' ').chain(arguments.split(' ')))
            .current_dir(self.0.path(""))
            .output();
        let output = output.map_err(|error| Error::Failed(format!("openssl: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Failed(format!(
            "openssl req: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }

    fn path(&self, name: &str) -> String {
        self.0.path(name).display().to_string()
    }
}
