-- Wireshark dissector for what uiw adds to iWARP: the capability exchange, placement acknowledgements, Send with immediate, and datagrams
-- (docs/datagrams.md).
--
--     wireshark -X lua_script:docs/uiw.lua capture.pcapng
--     tshark -X lua_script:docs/uiw.lua -r capture.pcapng -Y uiw
--
-- Wireshark's own dissector finds the FPDUs; this one reads its fields.

local uiw = Proto("uiw", "uiw extensions of iWARP")

local MAGIC = { [0x75697731] = "request", [0x75697732] = "answer" }
local CAPABILITIES = { "immediate data", "atomics", "Send with immediate", "FPDUs larger than a segment",
    "placement acknowledgements", "asks for acknowledgements" }
local PLACED = 0x75697733
local KINDS = { "message", "SIDR request", "SIDR reply" }
local SIDR_STATUS = { [0] = "valid", "rejected", "no queue pair" }
local OPCODES = { [3] = "Send", [5] = "Send with Solicited Event", [15] = "Send with immediate" }
local OPCODE_SEND_IMMEDIATE = 15
local SOLICITED = 0x10
local MESSAGE, SIDR_LEN, HEADER, CRC = 1, 256, 38, 4

local f = {
    exchange = ProtoField.string("uiw.capabilities", "Capability exchange"),
    bits = ProtoField.uint16("uiw.capabilities.bits", "Capabilities", base.HEX),
    nonce = ProtoField.string("uiw.capabilities.nonce", "Nonce"),
    placed = ProtoField.uint64("uiw.placed", "Bytes placed"),
    immediate = ProtoField.uint32("uiw.immediate", "Immediate data", base.HEX),
    solicited = ProtoField.bool("uiw.immediate.solicited", "Solicited event"),
    kind = ProtoField.uint8("uiw.datagram.kind", "Kind", base.DEC, KINDS),
    epoch = ProtoField.uint32("uiw.datagram.epoch", "Epoch", base.HEX),
    to = ProtoField.uint32("uiw.datagram.destination_qpn", "Destination QPN", base.HEX),
    from = ProtoField.uint32("uiw.datagram.source_qpn", "Source QPN", base.HEX),
    qkey = ProtoField.uint32("uiw.datagram.qkey", "Q_Key", base.HEX),
    opcode = ProtoField.uint8("uiw.datagram.opcode", "OpCode", base.DEC, OPCODES, 0x0f),
    msn = ProtoField.uint32("uiw.datagram.msn", "MSN"),
    payload = ProtoField.bytes("uiw.datagram.payload", "Payload"),
    status = ProtoField.uint8("uiw.sidr.status", "Status", base.DEC, SIDR_STATUS),
    transaction = ProtoField.uint64("uiw.sidr.transaction", "Transaction", base.HEX),
    qpn = ProtoField.uint32("uiw.sidr.qpn", "QPN", base.HEX),
    private = ProtoField.bytes("uiw.sidr.private_data", "Private data"),
    crc = ProtoField.uint32("uiw.datagram.crc", "CRC32C", base.HEX),
}
uiw.fields = { f.exchange, f.bits, f.nonce, f.placed, f.immediate, f.solicited, f.kind, f.epoch, f.to, f.from, f.qkey, f.opcode, f.msn, f.payload,
    f.status, f.transaction, f.qpn, f.private, f.crc }

local stag = Field.new("iwarp_ddp.stag")
local tagged_offset = Field.new("iwarp_ddp.tagged_offset")
local opcode = Field.new("iwarp_rdma.opcode")

-- A zero-length Write of the exchange: STag is a magic number, TO has 16 bits of capabilities and 48 of a nonce.
local function exchange(tree, what, to)
    local at = tree:add(f.exchange, to, what)
    local bits = to:range(0, 2)
    local item = at:add(f.bits, bits)
    for bit, name in ipairs(CAPABILITIES) do
        if bits:bitfield(16 - bit, 1) == 1 then item:append_text(", " .. name) end
    end
    at:add(f.nonce, to:range(2, 6), tostring(to:range(2, 6):bytes()))
end

-- Wireshark's dissector has run: its fields are there.
function uiw.dissector(tvb, pinfo, tree)
    local offsets, subtree = { tagged_offset() }, nil
    local function root()
        subtree = subtree or tree:add(uiw, tvb())
        return subtree
    end
    for n, field in ipairs({ stag() }) do
        local what = MAGIC[field.value]
        if what and offsets[n] then
            exchange(root(), what, offsets[n].range)
        end
        -- A placement acknowledgement: TO has a check value of 16 bits and a position of 48.
        if field.value == PLACED and offsets[n] then
            root():add(f.placed, offsets[n].range:range(2, 6))
        end
    end
    for _, field in ipairs({ opcode() }) do
        if field.value == OPCODE_SEND_IMMEDIATE then
            local control = field.source:range(field.offset, 1)
            root():add(f.immediate, field.source:range(field.offset + 1, 4))
            subtree:add(f.solicited, control, control:bitfield(3, 1) == 1)
        end
    end
end
register_postdissector(uiw)

-- Datagrams, on whatever port: by version, kind, lengths and the DDP header.
local datagram = Proto("uiw_datagram", "uiw datagram")

local function message(tvb, tree)
    local control = tvb:range(21, 1):uint()
    tree:add(f.epoch, tvb:range(4, 4))
    tree:add(f.to, tvb:range(8, 4))
    tree:add(f.from, tvb:range(12, 4))
    tree:add(f.qkey, tvb:range(16, 4))
    tree:add(f.opcode, tvb:range(21, 1))
    if control % 16 == OPCODE_SEND_IMMEDIATE then
        tree:add(f.immediate, tvb:range(22, 4))
        tree:add(f.solicited, tvb:range(21, 1), math.floor(control / SOLICITED) % 2 == 1)
    end
    tree:add(f.msn, tvb:range(30, 4))
    if tvb:len() > HEADER + CRC then tree:add(f.payload, tvb:range(HEADER, tvb:len() - HEADER - CRC)) end
    tree:add_le(f.crc, tvb:range(tvb:len() - CRC, CRC))
end

local function sidr(tvb, tree)
    tree:add(f.status, tvb:range(2, 1))
    tree:add(f.transaction, tvb:range(4, 8))
    tree:add(f.qpn, tvb:range(12, 4))
    tree:add(f.qkey, tvb:range(16, 4))
    local length = tvb:range(3, 1):uint()
    if length > 0 then tree:add(f.private, tvb:range(20, length)) end
    tree:add_le(f.crc, tvb:range(tvb:len() - CRC, CRC))
end

local function is_datagram(tvb)
    if tvb:len() < HEADER + CRC or tvb:range(0, 1):uint() ~= 1 then return false end
    local kind = tvb:range(1, 1):uint()
    if kind ~= MESSAGE then return (kind == 2 or kind == 3) and tvb:len() == SIDR_LEN and tvb:range(3, 1):uint() <= 180 end
    -- T = 0, L = 1, DV = 1; RDMAP version 1; queue 0, MO 0.
    local control = tvb:range(21, 1):uint()
    return tvb:range(20, 1):uint() == 0x41 and control >= 0x40 and control < 0x80 and OPCODES[control % 16] ~= nil
        and tvb:range(26, 4):uint() == 0 and tvb:range(34, 4):uint() == 0
end

function datagram.dissector(tvb, pinfo, tree)
    if not is_datagram(tvb) then return false end
    pinfo.cols.protocol = "uiw"
    local kind = tvb:range(1, 1):uint()
    pinfo.cols.info = "uiw " .. KINDS[kind]
    local subtree = tree:add(datagram, tvb(), "uiw datagram, " .. KINDS[kind])
    subtree:add(f.kind, tvb:range(1, 1))
    if kind == MESSAGE then message(tvb, subtree) else sidr(tvb, subtree) end
    return true
end
datagram:register_heuristic("udp", datagram.dissector)
