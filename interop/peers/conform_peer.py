"""An iWARP responder that complies with RFC 5040, 5041, 5044 and 6581, or breaks one requirement.

`conform_peer.py [ID]` breaks the requirement with this id. The program is also the partner program
of `uiw siwtest`, as far as `uiw conform` needs one. It is written from the RFCs alone and shares no
code with uiw. It prints its port and serves until it is killed; `conform_peer.py --list` prints
every id that it can break.
"""

import re
import socket
import struct
import sys
import threading
import time
import zlib

BROKEN = sys.argv[1] if len(sys.argv) > 1 else ""


def broken(*ids):
    """Returns whether the requirement to be broken is one of these."""
    return BROKEN in {f"RFC{i}" for i in ids}


# Listeners that ask for Markers: these requirements are visible in the frames that such a listener
# receives.
ASKS_MARKERS = broken("5044-4.2-03b", "5044-4.3-06", "5044-4.3-11", "5044-8-04")
NO_CRC_CHECK = broken(
    "5044-4.4-18", "5044-4.4-19", "5044-4.4-20", "5044-6-01", "5044-6-04", "5044-8-03"
)
NEVER_CLOSES = broken("5044-8-02", "5040-7-02", "5041-3-12", "5040-5.4-06")
STAG, REVOCABLE, BASE, SEED_TEXT = 0x00ABCD01, 0x00ABCD02, 0x10000, b"siwt"
MAGIC, ORDER, READY, DONE, VERDICT = 0x73697774, 1, 2, 3, 4
SEND, SEND_SE, SEND_INV, SEND_SE_INV, WRITE, READ, ABOUT, RO_WRITE, WO_READ = 1, 2, 3, 4, 6, 7, 9, 36, 37


def table(polynomial):
    entries = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        entries.append(byte)
    return entries


CRC_TABLE = table(0x82F63B78)


def crc32c(data):
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ CRC_TABLE[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def pattern(seed, message, size):
    return bytes(seed + message * 7 + at * 31 + (at >> 8) * 17 & 0xFF for at in range(size))


class Ended(Exception):
    """The stream has ended."""


class Refused(Exception):
    """A segment is refused with these codes."""

    def __init__(self, layer, etype, code, ulpdu=b"", read=False):
        super().__init__(layer, etype, code)
        self.codes, self.ulpdu, self.read = (layer, etype, code), ulpdu, read


class Connection:
    def __init__(self, link):
        self.link, self.inbox, self.ended = link, b"", False
        self.crc = True
        self.markers_in = self.markers_out = False
        self.place_in = self.place_out = self.count_out = 0
        self.msn_in = {0: 1, 1: 1, 2: 1}
        self.msn_out = {0: 0 if broken("5041-4.3-09") else 1, 1: 1, 2: 0 if broken("5041-4.3-09") else 1}
        self.memory, self.readable, self.writable = bytearray(), False, False
        self.revocable = False
        self.receives = [128]
        self.filled, self.messages = b"", []
        self.order = None
        self.answers, self.reads_due = [], []
        self.terminated = False

    # Bytes.

    def more(self, timeout=None):
        self.link.settimeout(timeout)
        try:
            data = self.link.recv(65536)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return False
        self.inbox += data
        return True

    def take(self, length):
        while len(self.inbox) < length:
            if not self.more():
                raise Ended
        data, self.inbox = self.inbox[:length], self.inbox[length:]
        return data

    def put(self, data):
        try:
            self.link.sendall(data)
        except OSError:
            raise Ended from None

    # Start-up.

    def request(self):
        if broken("5044-7.1.2-03"):
            self.put(struct.pack(">16sBBH", b"MPA ID Rep Frame", 0x40, 1, 0))
        key, flags, revision, length = struct.unpack(">16sBBH", self.take(20))
        wrong = key != b"MPA ID Req Frame"
        if broken("5044-7.1.1-02", "5044-7.1.2-12", "5044-8-08"):
            wrong = False
        if broken("5044-7.1.2-15") and key == b"MPA ID Rep Frame":
            wrong = False
        if revision not in (1, 2) and not broken("5044-7.1.1-15", "5044-7.1.1-16"):
            wrong = True
        if length > 512 and not broken("5044-7.1.1-18", "5044-7.1.2-17", "5044-7.1.2-19"):
            wrong = True
        if revision == 1 and broken("6581-6-04", "6581-10-04"):
            wrong = True
        if flags & 0x0F and broken("6581-6-01b"):
            wrong = True
        if length > 64 and broken("5044-7.1.2-18a"):
            wrong = True
        enhanced = revision >= 2 and flags & 0x10
        if enhanced and length < 4:
            wrong = True
        if wrong:
            if broken("5044-8-09", "5044-7.1.2-04"):
                while self.more():
                    pass
            raise Ended
        private = self.take(min(length, 600))
        return flags, revision, struct.unpack(">HH", private[:4]) if enhanced else None, private

    def reply(self, flags, revision, enhanced):
        asks_crc, self.markers_out = bool(flags & 0x40), bool(flags & 0x80)
        self.crc, self.markers_in = asks_crc, ASKS_MARKERS
        if broken("5044-7.1.1-08"):
            self.markers_out = True
        if broken("5044-7.1.1-09", "5044-4.3-01"):
            self.markers_out = False
        out = 0x80 if ASKS_MARKERS else 0
        reply_revision = 3 if revision == 1 and broken("5044-7.1.1-14") else revision
        if broken("5044-7.1.1-13") or revision >= 2 and broken("6581-6-01a"):
            out |= 1
        data = self.enhanced(*enhanced) if enhanced else b""
        if not enhanced and broken("6581-10-02", "6581-10-06"):
            out, reply_revision, data = out | 0x10, 2, struct.pack(">HH", 4, 4)
        if enhanced:
            out |= 0x10
            if broken("6581-10-05"):
                out, data = out & ~0x10, b""
            if broken("6581-10-01"):
                out, data, reply_revision = out & ~0x10, b"", 1
            if broken("6581-6-05"):
                data = b""
        length = len(data)
        if broken("5044-7.1.1-17"):
            data += bytes([1, 2, 3, 4])
        if broken("5044-7.1.1-19"):
            data, length = data + bytes(600), len(data) + 600
        key = b"MPA ID rep Frame" if broken("5044-7.1.1-03") else b"MPA ID Rep Frame"
        self.put(struct.pack(">16sBBH", key, out, reply_revision, length) + data)
        if broken("5044-7.1.2-11"):
            self.segment(0x41, 0x43, struct.pack(">IIII", 0, 0, 1, 0), bytes(8))

    def enhanced(self, first, second):
        peer_to_peer, ird, ord_ = bool(first & 0x8000), first & 0x3FFF, second & 0x3FFF
        ours, theirs = 16, min(4, ird)
        if ord_ == 0x3FFF and not broken("6581-9.1-11"):
            ours = 0x3FFF
        if ird == 0x3FFF and not broken("6581-9.1-13"):
            theirs = 0x3FFF
        if broken("6581-9.1-02", "6581-9.1-04"):
            theirs = 100
        flags = [0x8000, 0xC000] if peer_to_peer else [0, 0]
        common = second & 0xC000
        if peer_to_peer and broken("6581-9.2-03", "6581-9.2-06") or not common and broken("6581-9.2-08"):
            flags[1] = 0
        if peer_to_peer and broken("6581-9.2-04"):
            flags = [0, 0]
        if not peer_to_peer:
            if broken("6581-9.2-13"):
                flags = [0x8000, 0xC000]
            if broken("6581-9.2-14"):
                flags = [0, 0x8000]
            if broken("6581-9.2-15") and second & 0xC000:
                flags = [0x8000, 0xC000]
        order = "<" if broken("6581-9-01") else ">"
        return struct.pack(order + "HH", flags[0] | ours, flags[1] | theirs)

    # FPDUs.

    def fpdu_in(self):
        """Returns the ULPDU of the next FPDU."""
        raw, markers, plain, due = b"", [], b"", 2
        while len(plain) < due:
            if self.markers_in and (self.place_in + len(raw)) % 512 == 0:
                markers.append((len(raw), self.whole(4, raw)))
                raw += markers[-1][1]
                continue
            at = self.place_in + len(raw)
            step = min(due - len(plain), 512 - at % 512 if self.markers_in else due)
            data = self.whole(step, raw)
            raw, plain = raw + data, plain + data
            if len(plain) == 2:
                length = struct.unpack(">H", plain)[0]
                due = 2 + length + -(length + 2) % 4 + 4
        self.place_in += len(raw)
        found = struct.unpack("<I", raw[-4:])[0]
        checks = self.crc or broken(
            "5044-4.1-03", "5044-4.4-05", "5044-4.4-09", "5044-7.1.1-10", "5044-7.1.1-12"
        )
        if checks and found != crc32c(raw[:-4]) and (self.crc or found != 0):
            if broken("5044-8-11"):
                return self.fpdu_in()
            if not NO_CRC_CHECK:
                raise Refused(2, 0, 2)
        lead = 4 if markers and markers[0][0] == 0 else 0
        for at, marker in markers:
            pointer = struct.unpack(">HH", marker)[1]
            if pointer & 3 and broken("5044-4.2-03b", "5044-4.3-06"):
                raise Refused(2, 0, 3)
            if at and broken("5044-4.3-11"):
                raise Refused(1, 2, 3)
            if pointer & ~3 != (at and at - lead):
                raise Refused(2, 0, 2 if broken("5044-8-04") else 3)
        if broken("5044-5.2-01", "5044-6-06") and len(self.inbox) > 60:
            self.inbox = b""
        return plain[2 : 2 + length]

    def whole(self, length, before):
        """Like `take`, but a receiver that depends on alignment gives up if TCP has split an
        FPDU."""
        if broken("5044-5.1-05", "5044-A.4-01", "5044-6-09", "5044-6-03"):
            if (before or self.inbox) and len(self.inbox) < length:
                raise Ended
        return self.take(length)

    def fpdu_out(self, ulpdu):
        length = len(ulpdu)
        pad = bytes(-(length + 2) % 4)
        if broken("5044-4.1-02"):
            pad = b"\xff" * len(pad)
        field = length // 4 if broken("5044-4.1-01") else length
        plain = struct.pack(">H", field) + ulpdu + pad + b"CRC!"
        raw, header, inner = b"", None, 0
        spans = []
        interval = 1024 if broken("5044-4.3-02") else 512
        while plain:
            place = self.place_out + len(raw)
            skip = broken("5044-4.3-07") and place == 0
            if self.markers_out and place % interval == 0 and not skip:
                spans.append(len(raw))
                raw += self.marker(len(raw) - header if header is not None else 0, inner)
                inner += header is not None
            if header is None:
                header = len(raw)
            step = interval - (self.place_out + len(raw)) % interval if self.markers_out else len(plain)
            raw, plain = raw + plain[:step], plain[step:]
        covered = raw[:-4]
        if broken("5044-4.3-05", "5044-4.4-15") and spans[:1] == [0]:
            covered = covered[4:]
        if broken("5044-4.4-14"):
            covered = covered[header + 2 :]
        value = crc32c(covered)
        if broken("5044-4.4-12"):
            value = zlib.crc32(covered)
        if not self.crc or broken("5044-7.1.1-11") or broken("5044-4.4-08") and self.count_out > 20:
            value = 0
        trailer = struct.pack(">I" if broken("5044-4.4-16") else "<I", value)
        if broken("5044-4.4-11"):
            trailer = b""
        raw = raw[:-4] + trailer
        self.place_out += len(raw)
        self.count_out += 1
        self.put(raw)

    def marker(self, pointer, inner):
        reserved = 0x0101 if broken("5044-4.2-02") else 0
        if broken("5044-4.2-03a"):
            pointer |= 1
        if pointer and broken("5044-4.3-03", "5044-4.3-09a") or inner and broken("5044-4.3-08"):
            pointer += 4
        if not pointer and broken("5044-4.3-09b"):
            pointer = 8
        if broken("5044-4.2-01"):
            return struct.pack(">HH", pointer, reserved)
        return struct.pack(">HH", reserved, pointer)

    # Segments.

    def segment(self, ddp, rdmap, header, payload=b""):
        if broken("5041-4.1-10"):
            ddp |= 0x04
        if broken("5041-4.1-11", "5044-C.1-01") or broken("5041-4.1-12") and self.count_out % 2:
            ddp = ddp & ~3 | 2
        if broken("5040-4.1-09"):
            rdmap &= 0x3F
        if broken("5040-4.1-10"):
            rdmap |= 0x10
        if broken("5040-4.1-01", "5040-4.1-02"):
            rdmap = (rdmap << 4 | rdmap >> 4) & 0xFF
        if broken("5041-4.4-01"):
            self.fpdu_out(bytes([ddp, rdmap]) + bytes(3))
            return
        self.fpdu_out(bytes([ddp, rdmap]) + header + payload)

    def tagged(self, opcode, stag, to, data, untagged=False):
        """Sends a message to a tagged buffer."""
        if opcode == 2 and broken("5040-4.1-06", "5040-6.1-01"):
            opcode = 12
        if broken("5041-5.2-03") and data:
            data = data[:-1]
        size = 64 if broken("5044-3-04") else 65000 if broken("5044-3-05") else 40000
        pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
        if broken("5041-5.2-08") and not data:
            pieces = [b"", b""]
        at = 0
        for number, piece in enumerate(pieces):
            last = number + 1 == len(pieces)
            if broken("5041-4.1-03"):
                last = False
            if broken("5041-4.1-04"):
                last = True
            this_stag, this_to, rdmap = stag, to + at, 0x40 | opcode
            if number:
                if broken("5041-4.2-07", "5041-4.2-09a", "5041-4.2-10", "5040-5.2.2-08"):
                    this_stag += 1
                if broken("5041-5.2-07"):
                    this_to += 8
                if broken("5041-4.2-04", "5041-4.2-05"):
                    rdmap |= 0x20
            ddp = 0x81 | 0x40 * last
            if untagged:
                self.segment(ddp & 0x7F, rdmap, struct.pack(">IIII", 0, 0, self.next_msn(0), 0), piece)
            elif broken("5041-4.2-01"):
                self.segment(ddp, rdmap, struct.pack(">QI", this_to, this_stag), piece)
            else:
                self.segment(ddp, rdmap, struct.pack(">IQ", this_stag, this_to), piece)
            at += len(piece)
            if broken("5041-4.1-04") and number == 0 and len(pieces) > 1:
                return

    def next_msn(self, queue):
        self.msn_out[queue] += 2 if broken("5041-4.3-08") else 1
        return self.msn_out[queue] - (2 if broken("5041-4.3-08") else 1)

    def untagged(self, opcode, queue, data, invalidate=0, tagged=False):
        """Sends a message to a queue."""
        if broken("5041-5.2-03") and len(data) > 1000:
            data = data[:-1]
        size = 64 if broken("5044-3-04") and len(data) > 1000 else 65000 if broken("5044-3-05") else 40000
        places = list(range(0, len(data), size)) or [0]
        msn = self.next_msn(queue)
        if broken("5041-4.1-06") and len(places) > 2:
            places[-1], places[-2] = places[-2], places[-1]
        for number, at in enumerate(places):
            last = number + 1 == len(places) or broken("5041-4.1-04")
            this_queue, this_msn, mo, word = queue, msn, at, invalidate
            if number:
                if broken("5041-4.3-06a", "5041-4.3-07"):
                    this_queue = 1
                if broken("5041-4.3-11", "5041-4.3-12"):
                    this_msn = msn + number
                if broken("5041-5.2-05"):
                    mo += 4
                if broken("5041-4.3-04"):
                    word += 1
            elif broken("5041-4.3-13"):
                mo += 1
            header = struct.pack(">IIII", word, this_queue, this_msn, mo)
            if broken("5041-4.3-01") and opcode == 7:
                header = struct.pack(">IIII", word, this_msn, this_queue, mo)
            ddp = 0x01 | 0x40 * last
            if tagged:
                self.segment(ddp | 0x80, 0x40 | opcode, struct.pack(">IQ", STAG, 0), data[at : at + size])
            else:
                self.segment(ddp, 0x40 | opcode, header, data[at : at + size])
            if broken("5041-4.1-04") and len(places) > 1:
                return

    def answer(self, sink, to, data):
        if broken("5040-4.4-02"):
            sink += 1
        if not data and broken("5040-5.2.1-17", "5044-3-01"):
            data = bytes(16)
        untagged = broken("5040-4.1-05", "5040-5.2.2-01", "5040-5.2.2-02")
        self.tagged(2, sink, to, data, untagged)
        if broken("5040-5.2-01"):
            self.tagged(2, sink, to, data)

    # Errors.

    def terminate(self, refused):
        layer, etype, code = refused.codes
        if broken("5040-7.1-04"):
            return
        if layer == 1 and broken("5041-7.2-01"):
            code = 0x0E
        if broken("5040-4.8-03"):
            layer, etype, code = 0, 1, 0x77
        quote, read = refused.ulpdu, refused.read and len(refused.ulpdu) >= 46
        if broken("5040-7.1-05"):
            quote, read = b"", False
        if broken("5040-7.1-06"):
            try:
                quote = self.fpdu_in()
            except (Ended, Refused):
                pass
        bits, parts = 0, b""
        if quote:
            header = 14 if quote[0] & 0x80 else 18
            length = 7777 if broken("5040-4.8-08") else len(quote)
            bits, parts = 0xC0, struct.pack(">H", length) + quote[:header]
            if broken("5040-4.8-10"):
                parts = parts[:-4] + b"\xee" * 4
            if read:
                bits, parts = 0xE0, parts + quote[18:46]
                if broken("5040-4.8-11"):
                    parts = parts[:-4] + b"\xee" * 4
        if broken("5040-4.8-09"):
            bits, parts = 0xC0, b""
        if broken("5040-4.8-01"):
            parts += bytes(4)
        low = 1 if broken("5040-4.8-07") else 0
        types = etype << 4 | layer if broken("5040-4.8-02") else layer << 4 | etype
        if broken("5040-4.8-02"):
            bits = bits >> 7 & 1 | bits >> 5 & 2 | bits >> 3 & 4
        word = 5 if broken("5040-4.1-13") else 0
        queue = 0 if broken("5040-4.1-07", "5040-5.4-03") else 2
        tagged = broken("5040-5.4-01", "5040-5.4-02")
        data = bytes([types, code, bits, low]) + parts
        self.untagged(7, queue, data, word, tagged)
        if broken("5040-5.4-08"):
            self.untagged(3, 0, bytes(4))

    # Incoming segments.

    def check(self, ulpdu):
        """Refuses segments that are not legal."""
        ddp, rdmap = ulpdu[0], ulpdu[1]
        tagged, opcode, version = bool(ddp & 0x80), rdmap & 15, rdmap >> 6
        if ddp & 3 != 1 and not broken("5041-6.2.2-04", "5041-4.1-12"):
            raise Refused(1, 1 if tagged else 2, 4 if tagged else 6, ulpdu)
        read = opcode == 1 or not tagged and struct.unpack(">I", ulpdu[6:10])[0] == 1
        if version != 1 and not broken("5040-7.2-08" if read else "5040-7.2-03"):
            raise Refused(0, 2, 5, ulpdu)
        if opcode > 7 and not broken("5040-7.2-07" if read else "5040-7.2-02"):
            raise Refused(0, 2, 6, ulpdu)
        if not tagged:
            queue = struct.unpack(">I", ulpdu[6:10])[0]
            if queue not in self.msn_in and not broken("5041-7.1-02", "5041-6.2.2-04"):
                raise Refused(1, 2, 1, ulpdu)

    def receive(self, ulpdu):
        self.check(ulpdu)
        opcode, tagged, last = ulpdu[1] & 15, bool(ulpdu[0] & 0x80), bool(ulpdu[0] & 0x40)
        if tagged:
            self.place(opcode, ulpdu)
            return
        invalidate, queue, msn, mo = struct.unpack(">IIII", ulpdu[2:18])
        if queue not in self.msn_in:
            return
        if msn != self.msn_in[queue]:
            if broken("5041-7.1-10"):
                return
            raise Refused(1, 2, 3, ulpdu, queue == 1)
        if opcode == 7:
            raise Ended
        if queue == 1:
            self.msn_in[1] += 1
            self.read(ulpdu)
            return
        self.deliver(opcode, invalidate, mo, last, ulpdu)

    def place(self, opcode, ulpdu):
        stag, to = struct.unpack(">IQ", ulpdu[2:14])
        data = ulpdu[14:]
        if not data:
            if stag != 1 and broken("5041-5.2-09", "5041-5.2-10"):
                raise Refused(1, 1, 0, ulpdu)
            return
        if opcode == 2 and self.reads_due and self.reads_due[0][0] == stag:
            _, message = self.reads_due.pop(0)
            self.answers.append((message, data))
            return
        known = stag == STAG and self.memory
        if not known:
            if broken("5041-4.2-06", "5041-7.1-12", "5041-6.2.2-04"):
                return
            raise Refused(1, 1, 0, ulpdu)
        if not self.writable:
            if broken("5041-7.1-13"):
                return
            raise Refused(0, 1, 2, ulpdu)
        end = to + len(data)
        bounds = broken("5041-8.3.1-04", "5040-8.1.1-04", "5041-7.1-17")
        if end >= 1 << 64:
            if broken("5041-7.1-16") or bounds:
                return
            raise Refused(1, 1, 3, ulpdu)
        if to < BASE or to >= BASE + len(self.memory):
            if broken("5041-7.1-14") or bounds:
                return
            raise Refused(1, 1, 1, ulpdu)
        if end > BASE + len(self.memory):
            if broken("5041-7.1-15") or bounds:
                return
            raise Refused(1, 1, 1, ulpdu)
        if broken("5041-5.2-04"):
            return
        if broken("5044-3-07"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.memory[to - BASE : end - BASE] = data

    def read(self, ulpdu):
        sink, to, size, stag, source = struct.unpack(">IQIIQ", ulpdu[18:46])
        if broken("5040-5.2.1-04", "5040-5.2.1-13"):
            return
        data = b""
        if size == 0 and stag != 1 and broken("5040-5.2.1-16"):
            raise Refused(0, 1, 0, ulpdu, True)
        if size:
            data = self.source(stag, source, size, ulpdu)
        if broken("5040-4.4-01"):
            sink, to = stag, source
        if not broken("5040-5.2.1-09", "5040-5.2.2-06", "5040-5.5-16a"):
            self.answer(sink, to, data)
            return
        # Requests that arrive together are answered in reverse order.
        waiting = [(sink, to)]
        while len(self.inbox) >= 52 or self.more(0.05):
            next_one = self.fpdu_in()
            if next_one[1] & 15 == 1:
                self.msn_in[1] += 1
                waiting.insert(0, struct.unpack(">IQ", next_one[18:30]))
        for sink, to in waiting:
            self.answer(sink, to, b"")

    def source(self, stag, at, size, ulpdu):
        anything = bytes(size)
        if stag != STAG or not self.memory:
            if broken("5040-7.2-09"):
                return anything
            raise Refused(0, 1, 0, ulpdu, True)
        if not self.readable:
            raise Refused(0, 1, 2, ulpdu, True)
        lax = broken("5040-5.2.1-15", "5040-8.1.1-04")
        if at + size >= 1 << 64:
            if lax or broken("5040-7.2-13"):
                return anything
            raise Refused(0, 1, 4, ulpdu, True)
        if not BASE <= at < BASE + len(self.memory):
            if lax or broken("5040-7.2-11"):
                return anything
            raise Refused(0, 1, 1, ulpdu, True)
        if at + size > BASE + len(self.memory):
            if lax or broken("5040-7.2-12"):
                return anything
            raise Refused(0, 1, 1, ulpdu, True)
        return bytes(self.memory[at - BASE : at - BASE + size])

    def deliver(self, opcode, invalidate, mo, last, ulpdu):
        """Handles a segment of a Send."""
        data = ulpdu[18:]
        room = self.receives[0] if self.receives else None
        if room is None:
            raise Refused(1, 2, 2, ulpdu)
        if mo > room:
            if broken("5041-7.1-08"):
                return
            raise Refused(1, 2, 4, ulpdu)
        if mo + len(data) > room:
            if broken("5041-7.1-09"):
                return
            raise Refused(1, 2, 5, ulpdu)
        if mo != len(self.filled):
            raise Refused(1, 2, 4, ulpdu)
        if opcode in (4, 6) and not (invalidate == REVOCABLE and self.revocable):
            if broken("5040-7.2-04", "5040-5.3-15"):
                return
            raise Refused(0, 1, 9, ulpdu)
        self.filled += data
        if last:
            self.msn_in[0] += 1
            self.receives.pop(0)
            message, self.filled = self.filled, b""
            self.message(message)

    # The partner program.

    def message(self, data):
        if len(data) == 128 and data[:4] == SEED_TEXT:
            self.talk(*struct.unpack(">IBBBBIIIIQII", data[:40]))
        else:
            self.messages.append(data)

    def say(self, kind, wrong=""):
        op, actor, size, count, sges, seed = self.order
        text = wrong.encode()[:80]
        data = struct.pack(
            ">IBBBBIIIIQIII84s", MAGIC, kind, op, actor, 0, size, count, sges, seed, BASE, STAG, REVOCABLE, bool(wrong), text
        )
        queue = 1 if broken("5040-5.3-07") else 0
        self.untagged(3, queue, data, 0, broken("5040-5.3-01", "5040-5.3-02"))

    def talk(self, _magic, kind, op, actor, _zero, size, count, sges, seed, addr, rkey, revocable):
        if kind == DONE:
            wrong = self.judge()
            self.receives = [128]
            self.say(VERDICT, wrong)
            return
        self.order = (op, actor, size, count, sges, seed)
        self.messages, self.revocable = [], True
        if op == ABOUT:
            self.receives = [128]
            self.say(VERDICT, "scripted; driver conform_peer.py; firmware none; Python " + sys.version.split()[0])
            return
        whole = b"".join(pattern(seed, message, size) for message in range(count))
        if actor == 1:
            self.act(op, size, count, seed, addr, rkey, revocable)
            return
        self.memory = bytearray(whole if op == READ else bytes(len(whole)))
        self.readable, self.writable = op != WO_READ, op != RO_WRITE
        self.receives = ([size] * count if op in (SEND, SEND_SE, SEND_INV, SEND_SE_INV) else []) + [128]
        self.say(READY)

    def judge(self):
        op, _, size, count, _, seed = self.order
        due = [pattern(seed, message, size) for message in range(count)]
        if op == WRITE and bytes(self.memory) != b"".join(due):
            return "the bytes that were written are others"
        found = self.messages
        if broken("5040-5.3-05", "5041-5.3-07"):
            found = found[::-1]
        if op == SEND and found != due:
            return "the messages are others"
        return ""

    def act(self, op, size, count, seed, addr, rkey, revocable):
        numbers = list(range(count))
        if broken("5040-5.3-08", "5041-5.3-02", "5040-5.1-06", "5040-5.2.1-08"):
            numbers.reverse()
        for number in numbers:
            data = pattern(seed, number, size)
            if op == WRITE:
                self.tagged(0, rkey, addr + number * size, data, broken("5040-5.1-01", "5040-5.1-02"))
            elif op == READ:
                self.reads_due.append((0x700 + number, number))
                request = struct.pack(">IQIIQ", 0x700 + number, 0x40, size, rkey, addr + number * size)
                queue = 0 if broken("5040-5.2.1-06", "5040-5.2.1-07") else 1
                self.untagged(1, queue, request, 0, broken("5040-5.2.1-01", "5040-5.2.1-02"))
            else:
                opcode, word = {SEND: 3, SEND_SE: 5, SEND_INV: 4, SEND_SE_INV: 6}[op], 0
                if opcode in (4, 6):
                    word = 0 if broken("5040-4.1-03", "5040-5.3-12") else revocable
                    if broken("5040-5.3-11"):
                        opcode, word = 3, 0
                queue = 1 if broken("5040-5.3-07") else 0
                self.untagged(opcode, queue, data, word, broken("5040-5.3-01", "5040-5.3-02"))
        while self.reads_due:
            self.receive(self.fpdu_in())
        wrong = ""
        if op == READ and sorted(self.answers) != [(n, pattern(seed, n, size)) for n in sorted(numbers)]:
            wrong = "the bytes that were read are others"
        self.answers = []
        self.receives = [128]
        self.say(DONE, wrong)

    # The program as a whole.

    def serve(self):
        try:
            flags, revision, enhanced, _ = self.request()
            self.reply(flags, revision, enhanced)
            while True:
                ulpdu = self.fpdu_in()
                if len(ulpdu) >= 14:
                    self.receive(ulpdu)
        except Refused as refused:
            try:
                if broken("5041-7.1-19"):
                    self.receive(self.fpdu_in())
                self.terminate(refused)
            except (Ended, Refused):
                pass
        except Ended:
            pass
        try:
            if NEVER_CLOSES:
                time.sleep(60)
            self.link.shutdown(socket.SHUT_WR)
            while self.more(5):
                pass
        except OSError:
            pass
        self.link.close()


def ids():
    """Returns every requirement that this program can break: the ids in its calls of `broken`."""
    with open(__file__, encoding="utf-8") as source:
        return sorted({f"RFC{i}" for i in re.findall(r'"((?:50|65)\d\d-[\w.]+-\w+)"', source.read())})


def main():
    if BROKEN == "--list":
        print("\n".join(ids()))
        return
    if BROKEN and BROKEN not in ids():
        sys.exit(f"{BROKEN} cannot be broken here")
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print("port", listener.getsockname()[1], flush=True)
    while True:
        link = listener.accept()[0]
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=Connection(link).serve, daemon=True).start()


main()
