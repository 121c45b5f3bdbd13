"""Tests of environment variables: each one applies, or opening a device fails. They are read once, so each test uses its own process."""

import os
import re
import subprocess
import sys

import pytest
import uiw

TALK = """
import threading, uiw
device = uiw.Device()
listener = device.listen(("127.0.0.1", 0))
accepted = []
thread = threading.Thread(target=lambda: accepted.append(listener.accept(timeout=20)))
thread.start()
client = uiw.Device().connect(listener.address, timeout=20)
thread.join()
client.send(b"a message in the clear", timeout=20)
assert accepted[0].recv(timeout=20) == b"a message in the clear"
"""

CLIENT = """
import sys, uiw
connection = uiw.Device().connect((sys.argv[1], int(sys.argv[2])), timeout=20)
connection.send(b"a message in the clear", timeout=20)
try:
    connection.recv(timeout=30)
except OSError:
    pass
"""

# All devices of a process have the same TLS, which does not apply to connections inside of the process. Removing a key from the file ends the connections of its peer.
TALK_TO_PROCESS = """
import os, pathlib, subprocess, sys, uiw
listener = uiw.Device().listen(("127.0.0.1", 0))
variables = {name: value for name, value in os.environ.items() if name != "UIW_PCAP"}
client = subprocess.Popen([sys.executable, "-c", os.environ["CLIENT"], *map(str, listener.address)], env=variables)
connection = listener.accept(timeout=20)
assert connection.recv(timeout=20) == b"a message in the clear"
pathlib.Path(os.environ["PEERS"]).write_text(os.environ["OTHER"])
try:
    connection.recv(timeout=20)
except TimeoutError:
    print("still connected")
except OSError:
    print("ended")
client.wait(timeout=40)
"""

OPEN_BOTH = """
import asyncio, uiw
from uiw import aio
async def main():
    aio.Device()
for open in (uiw.Device, lambda: asyncio.run(main())):
    try:
        open()
    except ValueError as error:
        print(error)
    else:
        print("opened")
"""


def run(script, **variables):
    """Runs a program, and returns its standard output and standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UIW_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {name: str(value) for name, value in variables.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", uiw.__version__)


def test_capture(tmp_path):
    # Both devices write to the same file.
    run(TALK, UIW_PCAP=tmp_path / "capture")
    assert b"a message in the clear" in (tmp_path / "capture").read_bytes()


def test_log():
    _, log = run(TALK, UIW_LOG="debug")
    assert "full operation" in log


def test_counters(tmp_path):
    tmp_path.chmod(0o700)
    listing = TALK + "import os; print(os.listdir(os.environ['UIW_COUNTERS']))"
    files, log = run(listing, UIW_COUNTERS=tmp_path)
    assert log == "" and files.strip() != "[]"


@pytest.mark.parametrize("name, value", [("UIW_TLS", "/nonexistent"), ("UIW_CRC", "perhaps"), ("UIW_PCAP", "x,snap=1")])
def test_wrong_value_refused(name, value):
    said, _ = run(OPEN_BOTH, **{name: value})
    assert len(said.splitlines()) == 2 and "opened" not in said
    if name == "UIW_TLS":
        assert said.count("UIW_TLS=/nonexistent") == 2


def test_tls(tmp_path):
    program = os.environ["UIW_PROGRAM"]

    def key(*arguments):
        return subprocess.run([program, "key", *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)

    public = key("new", "own.pem").stdout.strip()
    key("pin", "peers", public, "this-program")
    (tmp_path / "tls").write_text("mode raw\nkey own.pem\npinned peers\n")
    other = key("new", "other.pem").stdout.strip()
    said, _ = run(
        TALK_TO_PROCESS,
        UIW_TLS=tmp_path / "tls",
        UIW_PCAP=tmp_path / "capture",
        CLIENT=CLIENT,
        PEERS=tmp_path / "peers",
        OTHER=other + " other\n",
    )
    assert said == "ended\n"
    assert b"a message in the clear" not in (tmp_path / "capture").read_bytes()
