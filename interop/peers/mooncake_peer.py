#!/usr/bin/env python3
"""Programs that use Mooncake's Python wheel with default settings except the protocol, "rdma".

    mooncake_peer.py target ADDRESS PORT                 offers memory, and checks the data that
                                                         the initiator has written
    mooncake_peer.py initiator ADDRESS TARGET PORT       writes and reads with a transfer engine,
                                                         and checks the data it has read
    mooncake_peer.py writer ADDRESS MASTER PORT          puts objects into a store, and lets the
                                                         two readers check them
    mooncake_peer.py reader ADDRESS MASTER WRITER PORT   reads every object of the store; the
                                                         second reader is killed, the first goes on

ADDRESS is the program's own address, MASTER the ADDRESS:PORT of a `mooncake_master`. The programs
control each other over TCP connections.
"""
import ctypes
import hashlib
import os
import pickle
import random
import signal
import socket
import struct
import sys
import time

SIZE = 8 << 20
ROUNDS = 8
OBJECTS = 1000


def send(peer, value):
    data = pickle.dumps(value)
    peer.sendall(struct.pack("!I", len(data)) + data)


def receive(peer):
    head = peer.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise EOFError("the other program has ended")
    return pickle.loads(peer.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL))


def connect(address, port):
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def pattern(seed, size=SIZE):
    return random.Random(seed).randbytes(size)


# ---- transfer engine ----


def engine(address):
    from mooncake.engine import TransferEngine

    own = TransferEngine()
    assert own.initialize(address, "P2PHANDSHAKE", "rdma", "") == 0, "the engine does not start"
    return own


def memory(own):
    block = ctypes.create_string_buffer(SIZE)
    assert own.register_memory(ctypes.addressof(block), SIZE) == 0, "memory is not registered"
    return block


def target(address, port):
    own = engine(address)
    written, kept = memory(own), memory(own)
    kept[:] = pattern(0)
    listener = socket.create_server((address, port))
    peer, _ = listener.accept()
    name = f"{address}:{own.get_rpc_port()}"
    send(peer, (name, ctypes.addressof(written), ctypes.addressof(kept)))
    for seed in range(1, ROUNDS + 1):
        assert receive(peer) == "written"
        assert written.raw == pattern(seed), "what was written differs"
        send(peer, "checked")
    assert receive(peer) == "done"


def initiator(address, target, port):
    own = engine(address)
    block = memory(own)
    peer = connect(target, port)
    name, written, kept = receive(peer)
    here = ctypes.addressof(block)
    for seed in range(1, ROUNDS + 1):
        block[:] = pattern(seed)
        assert own.transfer_sync_write(name, here, written, SIZE) == 0, "a write failed"
        send(peer, "written")
        assert receive(peer) == "checked"
        ctypes.memset(here, 0, SIZE)
        assert own.transfer_sync_read(name, here, kept, SIZE) == 0, "a read failed"
        assert block.raw == pattern(0), "what was read differs"
    send(peer, "done")
    print(f"{ROUNDS} writes and reads of {SIZE} bytes are equal")


# ---- store ----


def store(address, master):
    from mooncake.store import MooncakeDistributedStore

    own = MooncakeDistributedStore()
    assert own.setup(address, "P2PHANDSHAKE", 128 << 20, 64 << 20, "rdma", "", master) == 0, "the store does not start"
    return own


def value(key):
    return pattern(key, 1024 + int(hashlib.sha256(key.encode()).hexdigest(), 16) % (64 << 10))


def put(own, keys):
    until = time.monotonic() + 90
    for key in keys:
        # After a program has been killed, its memory is still allocated until the master has missed
        # the program for long enough.
        while (code := own.put(key, value(key))) != 0:
            assert time.monotonic() < until, f"{key} is not stored: {code}"
            time.sleep(0.5)


def read(own, keys):
    """Returns the number of existing keys. A value that differs is an error."""
    found = 0
    for key in keys:
        data = own.get(key)
        assert data in (b"", value(key)), f"{key} differs"
        found += data != b""
    return found


FIRST = [f"first-{number}" for number in range(OBJECTS)]
SECOND = [f"second-{number}" for number in range(OBJECTS // 10)]


def writer(address, master, port):
    own = store(address, master)
    listener = socket.create_server((address, port))
    readers = [listener.accept()[0] for _ in range(2)]
    for number, reader in enumerate(readers):
        send(reader, number)
        assert receive(reader) == "ready"
    put(own, FIRST)
    for reader in readers:
        send(reader, "read")
    for reader in readers:
        assert receive(reader) == OBJECTS, "objects are missing"
    send(readers[1], "end")
    try:
        receive(readers[1])
        raise AssertionError("a program that was to be killed is there")
    except (EOFError, ConnectionError):
        pass
    # Objects in the killed program's memory are lost; all others must exist with the right value.
    send(readers[0], "read")
    left = receive(readers[0])
    put(own, SECOND)
    send(readers[0], "read more")
    assert receive(readers[0]) == len(SECOND), "objects stored since are missing"
    print(f"{OBJECTS} objects are equal, {left} without one of three programs, and {len(SECOND)} stored since")
    own.close()


def reader(address, master, writer, port):
    own = store(address, master)
    peer = connect(writer, port)
    number = receive(peer)
    send(peer, "ready")
    assert receive(peer) == "read"
    send(peer, read(own, FIRST))
    order = receive(peer)
    if order == "end":
        os.kill(os.getpid(), signal.SIGKILL)
    send(peer, read(own, FIRST))
    assert receive(peer) == "read more"
    send(peer, read(own, SECOND))
    print(f"reader {number} is done")
    own.close()


if __name__ == "__main__":
    roles = {"target": target, "initiator": initiator, "writer": writer, "reader": reader}
    *words, port = sys.argv[2:]
    roles[sys.argv[1]](*words, int(port))
