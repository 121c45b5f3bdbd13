#!/usr/bin/env python3
"""Two NIXL agents (a Python wheel with its own UCX) with default settings.

One agent writes to the memory of the other one and reads from it.

    nixl_peer.py target PORT            offers memory, and checks the data that was written
    nixl_peer.py initiator ADDRESS PORT writes and reads, and checks the data it has read

The agents' metadata and the memory locations are exchanged over one TCP connection.
"""
import pickle
import socket
import struct
import sys
import time

import numpy as np
from nixl_cu12 import nixl_agent, nixl_agent_config

SIZE = 8 << 20
ROUNDS = 8


def pattern(seed):
    return np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)


def send(peer, value):
    data = pickle.dumps(value)
    peer.sendall(struct.pack("!I", len(data)) + data)


def receive(peer):
    (length,) = struct.unpack("!I", peer.recv(4, socket.MSG_WAITALL))
    return pickle.loads(peer.recv(length, socket.MSG_WAITALL))


def agent(name, memory):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    places = [(int(block.ctypes.data), SIZE, 0, "") for block in memory]
    agent.register_memory(places, "DRAM")
    return agent


def transfer(agent, operation, local, remote):
    place = lambda address: agent.get_xfer_descs([(address, SIZE, 0)], "DRAM")
    handle = agent.initialize_xfer(operation, place(local), place(remote), "target")
    state = agent.transfer(handle)
    until = time.monotonic() + 60
    while state == "PROC" and time.monotonic() < until:
        state = agent.check_xfer_state(handle)
    assert state == "DONE", (operation, state)
    agent.release_xfer_handle(handle)


def target(port):
    written, kept = np.zeros(SIZE, dtype=np.uint8), pattern(0)
    own = agent("target", [written, kept])
    listener = socket.create_server(("0.0.0.0", port))
    peer, _ = listener.accept()
    send(peer, (own.get_agent_metadata(), int(written.ctypes.data), int(kept.ctypes.data)))
    for seed in range(1, ROUNDS + 1):
        assert receive(peer) == "written"
        assert np.array_equal(written, pattern(seed)), "what was written differs"
        send(peer, "checked")
    assert receive(peer) == "done"


def initiator(address, port):
    source, read = np.zeros(SIZE, dtype=np.uint8), np.zeros(SIZE, dtype=np.uint8)
    own = agent("initiator", [source, read])
    peer = socket.create_connection((address, port))
    metadata, written, kept = receive(peer)
    own.add_remote_agent(metadata)
    for seed in range(1, ROUNDS + 1):
        source[:] = pattern(seed)
        transfer(own, "WRITE", int(source.ctypes.data), written)
        send(peer, "written")
        assert receive(peer) == "checked"
        read[:] = 0
        transfer(own, "READ", int(read.ctypes.data), kept)
        assert np.array_equal(read, pattern(0)), "what was read differs"
    send(peer, "done")
    print(f"{ROUNDS} writes and reads of {SIZE} bytes are equal")


if __name__ == "__main__":
    if sys.argv[1] == "target":
        target(int(sys.argv[2]))
    else:
        initiator(sys.argv[2], int(sys.argv[3]))
