#!/usr/bin/env bash
# From nothing to transfers: by uiw itself, by a stock program, in C, in Python, over TLS and in Rust. These are sections of the book, one behind the
# other: on a fresh Debian 12, as root, in the folder with the packages of `cargo xtask dist`. What a command prints is in the book, on the page and
# below the heading that the title names. `cargo xtask book --run` checks that the commands are those of the book, runs them in a fresh root, and
# compares what they print. Needed besides uiw's packages: rdmacm-utils, gcc, libibverbs-dev, librdmacm-dev, python3-venv, iproute2, and Rust.
set -eu

echo '== docs/installing.md: The Debian package'
apt-get install -y ./uiw_*.deb
uiw --version

echo '== docs/quick-start.md: Two ends'
uiw serve --listen 127.0.0.1:7174 > serve.log 2>&1 &
until grep -qs listening serve.log; do sleep 0.1; done
uiw ping 127.0.0.1 --count 3
uiw perf 127.0.0.1 --op write --size 64K --seconds 1
uiw ping 127.0.0.1 --count 1 --pcap ping.pcapng > ping.log
uiw decode ping.pcapng | tail -1

echo '== docs/quick-start.md: A stock program'
kill %1
while ss -tln | grep -q 127.0.0.1:7174; do sleep 0.1; done
uiw run -- rping -s -a 127.0.0.1 -C 2 > rping.log 2>&1 &
until ss -tln | grep -q 127.0.0.1:7174; do sleep 0.1; done
uiw run -- rping -c -a 127.0.0.1 -C 2 -v 2> client.log

echo '== docs/c.md: A first program'
cp /usr/share/doc/uiw/examples/c/* .
cc -o server server.c -lrdmacm -libverbs
cc -o client client.c -lrdmacm -libverbs
uiw run -- ./server 1 > server.log 2>&1 &
until grep -qs port server.log; do sleep 0.1; done
uiw run -- ./client 127.0.0.1 "$(grep -o '[0-9]*$' server.log)" 'good day'

echo '== docs/python.md: A first program'
python3 -m venv env
env/bin/pip install --quiet ./uiw-*.whl
cat > first.py <<'END'
import threading
import uiw

listener = uiw.Device().listen(("127.0.0.1", 0))

def serve():
    with listener.accept() as connection:
        while (message := connection.recv()) is not None:
            connection.send(message.upper())

server = threading.Thread(target=serve)
server.start()
with uiw.Device().connect(listener.address) as connection:
    connection.send(b"good day")
    print(connection.recv())
server.join()
END
env/bin/python first.py

echo '== docs/tls.md: What to type: raw public keys'
uiw key new server.pem > server.pub
uiw key new client.pem > client.pub
uiw key pin clients "$(cat client.pub)" client
uiw key pin servers "$(cat server.pub)" server
cat > server.conf <<'END'
mode raw
key server.pem
pinned clients
END
cat > client.conf <<'END'
mode raw
key client.pem
pinned servers
END
uiw serve --listen 127.0.0.1:7174 --tls server.conf > tls.log 2>&1 &
until grep -qs listening tls.log; do sleep 0.1; done
uiw ping 127.0.0.1 --count 1 --tls client.conf
uiw perf 127.0.0.1 --seconds 1 --tls client.conf
UIW_TLS=client.conf uiw run -- rping -c -a 127.0.0.1 -C 1 -v 2> client.log
grep -o 'identity="client' tls.log | sort -u
uiw ping 127.0.0.1 --count 1 || echo "exit code $?"
grep -o 'the peer does not use TLS' tls.log | sort -u
kill %1

echo '== docs/quick-start.md: A Rust program'
cargo new first-rdma
cd first-rdma
cargo add uiw
cat > src/main.rs <<'END'
use std::error::Error;
use uiw::blocking::{Connection, Listener};
use uiw::{ConnectionConfig, Device};

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Device::open()?.alloc_pd()?;
    let settings = ConnectionConfig::default();
    match std::env::args().nth(1) {
        // A server: answers every message of one client.
        None => {
            let connection = Listener::bind(&pd, "127.0.0.1:7000".parse()?, &settings)?.accept()?;
            while let Some(message) = connection.recv()? {
                connection.send_copy(&message)?;
            }
        }
        // A client.
        Some(words) => {
            let connection = Connection::connect(&pd, "127.0.0.1:7000".parse()?, &settings)?;
            connection.send_copy(words.as_bytes())?;
            let answer = connection.recv()?.ok_or("closed without an answer")?;
            println!("{}", String::from_utf8_lossy(&answer));
            connection.disconnect()?;
        }
    }
    Ok(())
}
END
cargo build
cargo run > server.log 2>&1 &
until ss -tln | grep -q 127.0.0.1:7000; do sleep 0.1; done
cargo run good-day
