//! The XDP program, which is assembled instruction by instruction, without a compiler and ELF.
//!
//! It redirects frames to our MAC address, ARP packets whose target is one of our IPv4 addresses,
//! and frames to the solicited-node groups of our IPv6 addresses to the AF_XDP socket of their
//! queue. All other frames, and all frames on a queue without a socket, pass to the kernel.

use super::super::SmolConfig;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// BPF instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// Destination register in the low half, source register in the high half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const XDP_PASS: i32 = 2;
/// Number of the helper function bpf_redirect_map.
const REDIRECT_MAP: i32 = 51;
/// Marks a 64-bit immediate as the descriptor of a map.
const PSEUDO_MAP_FD: u8 = 1;

// Offsets of fields in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_QUEUE: i16 = 16;

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: from << 4 | to, offset, immediate }
}

/// `to = *(u32 *)(from + offset)`
const fn load32(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x61, to, from, offset, 0)
}

/// `to = *(u16 *)(from + offset)`
const fn load16(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x69, to, from, offset, 0)
}

const fn move_register(to: u8, from: u8) -> Instruction {
    instruction(0xBF, to, from, 0, 0)
}

const fn move_number(to: u8, number: i32) -> Instruction {
    instruction(0xB7, to, 0, 0, number)
}

const fn add(to: u8, number: i32) -> Instruction {
    instruction(0x07, to, 0, 0, number)
}

const CALL: u8 = 0x85;
const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);
/// Opcode that jumps if the low 32 bits of a register differ from a number.
const UNEQUAL32: u8 = 0x56;
/// Opcode that jumps if the low 32 bits of a register are equal to a number.
const EQUAL32: u8 = 0x16;
/// Opcode that jumps if one register is greater than another one (unsigned).
const GREATER: u8 = 0x2D;

/// Assembler for instructions. Jumps refer to labels, which are resolved at the end.
#[derive(Default)]
struct BpfAssembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, JumpTarget)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JumpTarget {
    Redirect,
    Pass,
    /// End of the given test.
    Next(usize),
}

impl BpfAssembler {
    fn push(&mut self, instruction: Instruction) {
        self.code.push(instruction);
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, number: u32, target: JumpTarget) {
        self.jumps.push((self.code.len(), target));
        self.push(instruction(code, to, from, 0, number.cast_signed()));
    }

    /// Jumps to the next test unless the bytes at offset `at` of the frame are `bytes`. Register 2
    /// contains the address of the frame.
    fn require(&mut self, at: i16, bytes: &[u8], test: usize) {
        let mut at = at;
        for piece in bytes.chunks(4) {
            match *piece {
                [a, b, c, d] => {
                    self.push(load32(4, 2, at));
                    self.jump(
                        UNEQUAL32,
                        4,
                        0,
                        u32::from_ne_bytes([a, b, c, d]),
                        JumpTarget::Next(test),
                    );
                }
                [a, b] => {
                    self.push(load16(4, 2, at));
                    let number = u32::from(u16::from_ne_bytes([a, b]));
                    self.jump(UNEQUAL32, 4, 0, number, JumpTarget::Next(test));
                }
                _ => unreachable!("only pairs and fours are compared"),
            }
            at += piece.len() as i16;
        }
    }

    fn resolve(mut self, ends: &[usize], redirect: usize, pass: usize) -> Vec<Instruction> {
        for (at, target) in self.jumps {
            let to = match target {
                JumpTarget::Redirect => redirect,
                JumpTarget::Pass => pass,
                JumpTarget::Next(test) => ends[test],
            };
            // The offset is counted from the instruction after the jump.
            self.code[at].offset = (to - at - 1) as i16;
        }
        self.code
    }
}

/// Returns the program for the sockets in `map`.
pub(super) fn redirect(map: BorrowedFd<'_>, config: &SmolConfig) -> Vec<Instruction> {
    let mut asm = BpfAssembler::default();
    let mut ends = Vec::new();
    // r6 is the context, r2 the beginning of the frame, r3 its end.
    asm.push(move_register(6, 1));
    asm.push(load32(2, 6, MD_DATA));
    asm.push(load32(3, 6, MD_DATA_END));
    // The verifier requires a check that the frame contains all bytes that are read. An ARP packet
    // has 42 bytes, and all other frames for us are longer.
    asm.push(move_register(4, 2));
    asm.push(add(4, 42));
    asm.jump(GREATER, 4, 3, 0, JumpTarget::Pass);
    asm.require(0, &config.mac, ends.len());
    asm.jump(EQUAL32, 4, 0, mac_tail(&config.mac), JumpTarget::Redirect);
    ends.push(asm.code.len());
    for (address, _) in &config.addresses {
        match address {
            IpAddr::V4(v4) => {
                asm.require(12, &[0x08, 0x06], ends.len());
                // Target protocol address (RFC 826).
                asm.push(load32(4, 2, 38));
                let wanted = u32::from_ne_bytes(v4.octets());
                asm.jump(EQUAL32, 4, 0, wanted, JumpTarget::Redirect);
            }
            IpAddr::V6(v6) => {
                let [.., a, b, c] = v6.octets();
                // The solicited-node group (RFC 4291 section 2.7.1), mapped to Ethernet (RFC 2464
                // section 7).
                let group = [0x33, 0x33, 0xFF, a, b, c];
                asm.require(0, &group, ends.len());
                asm.jump(EQUAL32, 4, 0, mac_tail(&group), JumpTarget::Redirect);
            }
        }
        ends.push(asm.code.len());
    }
    let pass = asm.code.len();
    asm.push(move_number(0, XDP_PASS));
    asm.push(EXIT);
    let redirect = asm.code.len();
    // bpf_redirect_map(map, queue, XDP_PASS): frames of a queue without a socket pass to the
    // kernel.
    asm.push(load32(2, 6, MD_QUEUE));
    asm.push(Instruction {
        code: 0x18,
        registers: PSEUDO_MAP_FD << 4 | 1,
        offset: 0,
        immediate: map.as_raw_fd(),
    });
    asm.push(instruction(0, 0, 0, 0, 0));
    asm.push(move_number(3, XDP_PASS));
    asm.push(instruction(CALL, 0, 0, 0, REDIRECT_MAP));
    asm.push(EXIT);
    // A failed test continues with the next one; after the last one follows "pass".
    asm.resolve(&ends, redirect, pass)
}

/// Returns the value of register 4 after [`BpfAssembler::require`] with six bytes. Comparing the
/// register with it is always true, so the jump is in effect unconditional.
fn mac_tail(mac: &[u8; 6]) -> u32 {
    u32::from(u16::from_ne_bytes([mac[4], mac[5]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// Runs the program on a frame. Returns whether the frame was redirected.
    fn run(program: &[Instruction], frame: &[u8]) -> bool {
        let mut r = [0u64; 11];
        let mut at = 0;
        loop {
            let Instruction { code, registers, offset, immediate } = program[at];
            let (to, from) = (usize::from(registers & 15), usize::from(registers >> 4));
            at += 1;
            let jump = |taken: bool| if taken { offset as usize } else { 0 };
            match code {
                0xBF => r[to] = r[from],
                0xB7 => r[to] = immediate as u64,
                0x07 => r[to] += immediate as u64,
                // The context refers to a frame at address 1000.
                0x61 if from == 6 => {
                    r[to] = match offset {
                        MD_DATA => 1000,
                        MD_DATA_END => 1000 + frame.len() as u64,
                        _ => 0,
                    }
                }
                0x61 | 0x69 => {
                    let start = r[from] as usize - 1000 + offset as usize;
                    let mut bytes = [0; 4];
                    let len = if code == 0x61 { 4 } else { 2 };
                    bytes[..len].copy_from_slice(&frame[start..start + len]);
                    r[to] = u64::from(u32::from_ne_bytes(bytes));
                }
                UNEQUAL32 => at += jump(r[to] as u32 != immediate.cast_unsigned()),
                EQUAL32 => at += jump(r[to] as u32 == immediate.cast_unsigned()),
                GREATER => at += jump(r[to] > r[from]),
                0x18 => at += 1,
                CALL => return true,
                0x95 => return false,
                other => panic!("no such instruction: {other:#x}"),
            }
        }
    }

    #[test]
    fn program_redirects_own_frames_only() {
        let config = SmolConfig {
            mac: [2, 3, 4, 5, 6, 7],
            addresses: vec![
                ("10.0.0.7".parse().unwrap(), 24),
                ("fd00::1234:5678".parse().unwrap(), 64),
            ],
            ..SmolConfig::new("10.0.0.7".parse().unwrap(), 24)
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        let program = redirect(file.as_fd(), &config);
        let frame = |to: [u8; 6], kind: [u8; 2]| {
            let mut frame = vec![0u8; 60];
            frame[..6].copy_from_slice(&to);
            frame[12..14].copy_from_slice(&kind);
            frame
        };
        assert!(run(&program, &frame([2, 3, 4, 5, 6, 7], [8, 0])));
        assert!(!run(&program, &frame([2, 3, 4, 5, 6, 8], [8, 0])));
        assert!(!run(&program, &frame([3, 3, 4, 5, 6, 7], [8, 0])));
        let mut arp = frame([0xFF; 6], [8, 6]);
        assert!(!run(&program, &arp));
        arp[38..42].copy_from_slice(&[10, 0, 0, 7]);
        assert!(run(&program, &arp));
        assert!(run(&program, &frame([0x33, 0x33, 0xFF, 0x34, 0x56, 0x78], [0x86, 0xDD])));
        assert!(!run(&program, &frame([0x33, 0x33, 0, 0, 0, 1], [0x86, 0xDD])));
        assert!(!run(&program, &frame([2, 3, 4, 5, 6, 7], [8, 0])[..20]));
    }
}
