//! Runs servers and clients of Debian's packages over rsockets, both under `uiw run --sockets
//! --require`. The received data is compared, and the counters show that it arrived over rsockets.

use crate::reported::{number, parsed};
use crate::sockets::{connections, with_sockets};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use uiw_interop::stock::{Libraries, ProcessEnd, Running, free_port, noise};

/// Options for both ends. With an offset of 0 the ports do not change, so the tests can wait for
/// the listening port.
const OPTIONS: [&str; 4] = ["--require", "--json", "--port-offset", "0"];

/// Starts a server and waits until it listens.
fn serve(libraries: &Libraries, port: u16, program: &[&str]) -> Running {
    let mut server = Running::start(with_sockets(libraries, &OPTIONS, program));
    server.wait_listening(port);
    server
}

/// Runs a client and asserts that it succeeds.
#[track_caller]
fn ask(libraries: &Libraries, program: &[&str]) -> ProcessEnd {
    let ended = Running::start(with_sockets(libraries, &OPTIONS, program)).end();
    ended.well();
    ended
}

/// Asserts that the client received at least `bytes` and used only rsockets, and that the server's
/// report shows the same for all of its `clients`.
#[track_caller]
fn are_rsockets(server: &ProcessEnd, clients: &[&ProcessEnd], bytes: u64) {
    let reports: Vec<Value> = clients.iter().map(|client| parsed(&client.said)).collect();
    let server = parsed(&server.said);
    for report in &reports {
        assert!(connections(report, "rsocket", "connected") > 0, "{report}");
        assert_eq!(connections(report, "tcp", "connected"), 0, "{report}");
    }
    let received: u64 = reports.iter().map(|report| number(report, "bytes_received")).sum();
    assert!(received >= bytes, "{received} of {bytes}");
    assert!(number(&server, "bytes_sent") >= bytes, "{server}");
    assert!(connections(&server, "rsocket", "accepted") > 0, "{server}");
}

/// Creates a directory that other users can read.
fn folder(libraries: &Libraries, name: &str) -> PathBuf {
    let folder = libraries.folder().join(name);
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn redis() {
    for program in ["redis-server", "redis-cli", "redis-benchmark"] {
        let Some(_) = uiw_interop::require(program) else { return };
    }
    let libraries = Libraries::get();
    let port = free_port();
    let text = port.to_string();
    let server = [
        "redis-server",
        "--port",
        &text,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ];
    let server = serve(&libraries, port, &server);
    let at = ["-h", "127.0.0.1", "-p", &text];
    let command = |words: &[&str]| ask(&libraries, &[&["redis-cli"][..], &at, words].concat());
    assert_eq!(command(&["set", "key", "a value"]).count("OK"), 1);
    assert_eq!(command(&["get", "key"]).count("a value"), 1);
    // The server creates a value of 1.3 MB.
    let script = "local t = {} for i = 1, 200000 do t[i] = i end return table.concat(t, ',')";
    let large = command(&["eval", script, "0"]);
    let expected = (1..=200_000).map(|n: u32| n.to_string()).collect::<Vec<_>>().join(",");
    assert!(large.said.lines().any(|line| line.trim_matches('"') == expected), "the value differs");
    let benchmark = |more: &[&str]| {
        let words = ["redis-benchmark", "-t", "set,get", "-n", "20000", "-c", "50", "-q"];
        ask(&libraries, &[&words[..], &at, more].concat())
    };
    let (single, pipelined) = (benchmark(&[]), benchmark(&["-P", "16"]));
    for ended in [&single, &pipelined] {
        assert!(ended.said.contains("GET: ") && !ended.said.contains("Error"), "{ended:?}");
        assert!(connections(&parsed(&ended.said), "rsocket", "connected") >= 50, "{ended:?}");
    }
    let server = server.interrupt();
    are_rsockets(server.well(), &[&large, &single, &pipelined], expected.len() as u64);
}

#[test]
fn memcached() {
    const MODULE: &str = "/usr/lib/python3/dist-packages/memcache.py";
    let Some(_) = uiw_interop::require("memcached") else { return };
    if !Path::new(MODULE).exists() {
        uiw_interop::skip("python3-memcache");
        return;
    }
    let libraries = Libraries::get();
    let port = free_port();
    let text = port.to_string();
    let server = serve(
        &libraries,
        port,
        &["memcached", "-u", "root", "-l", "127.0.0.1", "-p", &text, "-U", "0", "-t", "4"],
    );
    let script = format!(
        "import memcache, random\n\
         clients = [memcache.Client(['127.0.0.1:{port}']) for _ in range(10)]\n\
         values = {{str(n): random.randbytes(n * n).hex() for n in range(300)}}\n\
         for n, (key, value) in enumerate(values.items()):\n\
         \x20   assert clients[n % 10].set(key, value)\n\
         for n, (key, value) in enumerate(values.items()):\n\
         \x20   assert clients[(n + 3) % 10].get(key) == value\n\
         print('all there')\n"
    );
    let client = ask(&libraries, &["/usr/bin/python3", "-c", &script]);
    assert_eq!(client.count("all there"), 1, "{client:?}");
    assert_eq!(connections(&parsed(&client.said), "rsocket", "connected"), 10, "{client:?}");
    let server = server.interrupt();
    are_rsockets(server.well(), &[&client], 10_000_000);
}

/// The master process listens, its workers accept.
#[test]
fn nginx_and_curl() {
    let (Some(nginx), Some(_)) = (uiw_interop::require("nginx"), uiw_interop::require("curl"))
    else {
        return;
    };
    let libraries = Libraries::get();
    let port = free_port();
    let (at, got) = (folder(&libraries, "nginx"), folder(&libraries, "got"));
    let (small, large) = (noise(20_000), noise(5_000_000));
    fs::write(at.join("small"), &small).unwrap();
    fs::write(at.join("large"), &large).unwrap();
    let config = format!(
        "worker_processes 2; daemon off; pid nginx.pid; error_log stderr warn; events {{ worker_connections 64; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 10000;\n\
         client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;\n\
         server {{ listen 127.0.0.1:{port}; root .; }} }}\n"
    );
    fs::write(at.join("nginx.conf"), config).unwrap();
    let prefix = format!("{}/", at.display());
    let server = serve(
        &libraries,
        port,
        &[nginx.to_str().unwrap(), "-p", &prefix, "-c", "nginx.conf", "-e", "stderr"],
    );
    let to = format!("{}/#1", got.display());
    let url = format!("http://127.0.0.1:{port}/small?[1-1000]");
    let said = "%{http_code} %{num_connects}\n";
    let thousand = ask(&libraries, &["curl", "-s", "-o", &to, "-w", said, &url]);
    assert_eq!((thousand.count("200 1"), thousand.count("200 0")), (1, 999), "{thousand:?}");
    for n in 1..=1000 {
        assert!(fs::read(got.join(n.to_string())).unwrap() == small, "response {n} differs");
    }
    let (to, url) = (got.join("large"), format!("http://127.0.0.1:{port}/large"));
    let one = ask(&libraries, &["curl", "-s", "-o", to.to_str().unwrap(), &url]);
    assert!(fs::read(to).unwrap() == large, "the file differs");
    let server = server.interrupt();
    are_rsockets(server.well(), &[&thousand, &one], 25_000_000);
}

#[test]
fn pythons_http_server_and_curl() {
    let (Some(_), Some(_)) = (uiw_interop::require("python3"), uiw_interop::require("curl")) else {
        return;
    };
    let libraries = Libraries::get();
    let port = free_port();
    let (at, file) = (folder(&libraries, "http"), noise(3_000_000));
    fs::write(at.join("file"), &file).unwrap();
    let (text, directory) = (port.to_string(), at.display().to_string());
    let server =
        ["/usr/bin/python3", "-m", "http.server", "-b", "127.0.0.1", "-d", &directory, &text];
    let server = serve(&libraries, port, &server);
    let (to, url) = (at.join("got"), format!("http://127.0.0.1:{port}/file"));
    let client = ask(&libraries, &["curl", "-s", "-o", to.to_str().unwrap(), &url]);
    assert!(fs::read(to).unwrap() == file, "the file differs");
    let server = server.interrupt();
    are_rsockets(server.well(), &[&client], 3_000_000);
}

/// The server accepts connections and forks a process for each of them.
#[test]
fn postgresql_and_pgbench() {
    const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
    if !Path::new(PROGRAMS).join("pgbench").exists() {
        uiw_interop::skip("postgresql-15");
        return;
    }
    let libraries = Libraries::get();
    let port = free_port();
    let (text, data) = (port.to_string(), folder(&libraries, "data"));
    let program = |name: &str| format!("{PROGRAMS}/{name}");
    // The server refuses to run as root.
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    let user = if is_root { &user[..] } else { &[] };
    if is_root {
        let Some(_) = uiw_interop::require("setpriv") else { return };
        std::os::unix::fs::chown(&data, Some(65534), Some(65534)).unwrap();
    }
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
    let (place, initdb) = (data.display().to_string(), program("initdb"));
    let made =
        [user, &[&initdb, "-D", &place, "-A", "trust", "-U", "tester", "--no-sync"]].concat();
    let mut command = libraries.command(uiw_interop::stock::User::Same, made[0]);
    command.args(&made[1..]).env_remove("LD_LIBRARY_PATH");
    Running::start(command).end().well();
    let postgres = program("postgres");
    let server = [
        user,
        &[&postgres, "-D", &place, "-p", &text, "-h", "127.0.0.1", "-k", "", "-c", "fsync=off"],
    ]
    .concat();
    let mut server = Running::start(with_sockets(&libraries, &OPTIONS, &server));
    server.wait_saying("ready to accept connections");
    let at = ["-h", "127.0.0.1", "-p", &text, "-U", "tester"];
    let command = |name: &str, words: &[&str]| {
        ask(&libraries, &[&[&program(name)[..]][..], &at, words, &["postgres"]].concat())
    };
    let query = "select string_agg(i::text, ',') from generate_series(1, 100000) i";
    let value = command("psql", &["-t", "-A", "-c", query]);
    let expected = (1..=100_000).map(|n: u32| n.to_string()).collect::<Vec<_>>().join(",");
    assert!(value.said.lines().any(|line| line == expected), "the value differs");
    command("pgbench", &["-i", "-q"]);
    let bench = command("pgbench", &["-c", "8", "-j", "2", "-t", "100"]);
    assert_eq!(bench.count("number of transactions actually processed: 800/800"), 1, "{bench:?}");
    // With `-C`, pgbench opens a new connection for each transaction.
    let anew = command("pgbench", &["-C", "-S", "-c", "4", "-t", "10"]);
    assert_eq!(anew.count("number of transactions actually processed: 40/40"), 1, "{anew:?}");
    assert!(connections(&parsed(&anew.said), "rsocket", "connected") >= 40, "{anew:?}");
    let server = server.interrupt();
    are_rsockets(server.well(), &[&value, &bench, &anew], expected.len() as u64);
}

/// Both ends of every case are in one process.
#[test]
fn cpythons_test_socket() {
    if !Path::new("/usr/lib/python3.11/test/test_socket.py").exists() {
        uiw_interop::skip("libpython3.11-testsuite");
        return;
    }
    let libraries = Libraries::get();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stock/scripts/test_socket.py");
    let program = ["/usr/bin/python3.11", script.to_str().unwrap(), "110"];
    let ended = Running::start(with_sockets(&libraries, &["--json"], &program)).end();
    ended.well();
    let report = parsed(&ended.said);
    assert!(connections(&report, "rsocket", "connected") > 100, "{report}");
    assert!(connections(&report, "rsocket", "accepted") > 100, "{report}");
}
