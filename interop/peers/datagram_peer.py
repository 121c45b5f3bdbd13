"""A peer for datagrams, written from docs/datagrams.md alone.

    datagram_peer.py serve ADDRESS            returns every message with its payload reversed
    datagram_peer.py ask ADDRESS PORT TEXT    asks the listener for a queue pair by SIDR, sends
                                              TEXT and prints the answer
"""

import random
import select
import socket
import struct
import sys

QKEY = 0x01234567
# Version, Kind, reserved, Epoch, destination QPN, source QPN, Q_Key; DDP: control, RsvdULP (8 and
# 32 bits), QN, MSN, MO.
HEADER = struct.Struct(">BBHIIII" "BBIIII")
SIDR = struct.Struct(">BBBBQII")
SEND, SEND_SE, SEND_IMM = 3, 5, 15


def crc(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return struct.pack("<I", register ^ 0xFFFFFFFF)


class Peer:
    def __init__(self, address):
        self.socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 0))
        self.qpn = self.socket.getsockname()[1] << 8 | 7
        self.epoch = random.getrandbits(32)
        self.msn = 0

    def send(self, host, qpn, qkey, payload, imm=None, solicited=False):
        self.msn += 1
        opcode = SEND_IMM if imm is not None else SEND_SE if solicited else SEND
        control = 1 << 6 | opcode | (0x10 if imm is not None and solicited else 0)
        header = HEADER.pack(1, 1, 0, self.epoch, qpn, self.qpn, qkey, 0x41, control, imm or 0, 0, self.msn, 0)
        message = header + payload
        self.socket.sendto(message + crc(message), (host, qpn >> 8))

    def receive(self):
        """Returns source, host, payload, immediate and solicited flag of the next message; drops
        anything else."""
        while True:
            data, (host, port, *_) = self.socket.recvfrom(65536)
            if len(data) < HEADER.size + 4 or crc(data[:-4]) != data[-4:]:
                continue
            version, kind, _, _, to, source, qkey, ddp, control, word, qn, _, mo = HEADER.unpack_from(data)
            to, source = to & 0xFFFFFF, source & 0xFFFFFF
            if (version, kind, ddp & 0xC3, qn, mo, control >> 6) != (1, 1, 0x41, 0, 0, 1):
                continue
            if source >> 8 != port or to != self.qpn or qkey != QKEY or control & 15 not in (SEND, SEND_SE, SEND_IMM):
                continue
            imm = word if control & 15 == SEND_IMM else None
            solicited = bool(control & 0x10) if imm is not None else control & 15 == SEND_SE
            return source, host, data[HEADER.size:-4], imm, solicited


def serve(address):
    peer = Peer(address)
    print(f"{peer.qpn} {QKEY}", flush=True)
    while True:
        source, host, payload, imm, solicited = peer.receive()
        peer.send(host, source, QKEY, payload[::-1], None if imm is None else imm + 1, solicited)


def ask(address, port, text):
    peer = Peer(address)
    transaction = random.getrandbits(64)
    private = b"from the peer"
    request = SIDR.pack(1, 2, 0, len(private), transaction, 0, 0) + private
    request = request.ljust(252, b"\0")
    timeout = 0.25
    for _ in range(8):
        peer.socket.sendto(request + crc(request), (address, int(port)))
        if select.select([peer.socket], [], [], timeout)[0]:
            break
        timeout = min(2 * timeout, 4)
    reply, (_, source, *_) = peer.socket.recvfrom(256)
    version, kind, status, length, same, qpn, qkey = SIDR.unpack_from(reply)
    assert len(reply) == 256 and crc(reply[:-4]) == reply[-4:] and source == int(port)
    assert (version, kind, status, same) == (1, 3, 0, transaction), "a valid reply to this request"
    print(reply[20 : 20 + length].decode(), flush=True)
    peer.send(address, qpn & 0xFFFFFF, qkey, text.encode() + peer.qpn.to_bytes(3, "big"))
    print(peer.receive()[2].decode(), flush=True)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
