"""An iWARP responder for one connection, written from RFC 5044, 5041, 5040 and 6581 alone.

It prints its port. Every Send is answered with its bytes reversed. Writes and Reads can access
4 KiB of STag 0x1234 from TO 0x1000 on. It prints the messages it receives and the end of the
connection.
"""

import socket
import struct

STAG, BASE, memory, sent = 0x1234, 0x1000, bytearray(4096), 0


def crc(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return struct.pack("<I", register ^ 0xFFFFFFFF)


def read(length):
    data = b""
    while len(data) < length:
        more = link.recv(length - len(data))
        if not more:
            raise EOFError(f"{len(data)} of {length} bytes")
        data += more
    return data


def fpdu(ulpdu):
    body = struct.pack(">H", len(ulpdu)) + ulpdu + bytes(-(len(ulpdu) + 2) % 4)
    link.sendall(body + crc(body))


listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
link = listener.accept()[0]
key, flags, revision, length = struct.unpack(">16sBBH", read(20))
assert key == b"MPA ID Req Frame" and flags & 0x50 == 0x50 and revision == 2, (key, flags, revision)
assert struct.unpack(">I", read(length)[:4])[0] & 0x80008000 == 0x80008000, "peer-to-peer with an RTR Write"
link.sendall(struct.pack(">16sBBHHH", b"MPA ID Rep Frame", 0x50, 2, 4, 0x8000 | 16, 0x8000 | 16))
try:
    while True:
        size = struct.unpack(">H", read(2))[0]
        rest = read(size + -(size + 2) % 4)
        assert read(4) == crc(struct.pack(">H", size) + rest), "CRC"
        ulpdu = rest[:size]
        opcode = ulpdu[1] & 15
        if opcode == 0:
            stag, to = struct.unpack(">IQ", ulpdu[2:14])
            if size > 14 and stag == STAG:
                memory[to - BASE : to - BASE + size - 14] = ulpdu[14:]
        elif opcode == 1:
            sink, to, count, stag, source = struct.unpack(">IQIIQ", ulpdu[18:46])
            data = bytes(memory[source - BASE : source - BASE + count]) if count else b""
            fpdu(struct.pack(">BBIQ", 0xC1, 0x42, sink, to) + data)
        elif opcode == 3:
            sent += 1
            print("send", ulpdu[18:].hex(), flush=True)
            fpdu(struct.pack(">BBIIII", 0x41, 0x43, 0, 0, sent, 0) + ulpdu[:17:-1])
except EOFError as end:
    print("end:", end, flush=True)
