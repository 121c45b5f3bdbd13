//! Processor time of three ways to send payload that needs a CRC: the basis of `ONE_PASS_MIN` and
//! `GATHER_MIN` in `stream/src/sender/build.rs`.
//!
//! * *two passes*: copy it behind its header, compute the CRC of the copy, send the copy;
//! * *one pass*: the same, but the CRC is computed while copying;
//! * *gather*: compute the CRC, and let the kernel gather header, payload and CRC.
//!
//! `cargo run --release -p uiw-mem --example send_speed`

use std::hint::black_box;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use uiw_crc32c::Crc32c;
use uiw_mem::{Access, Limits, Memory, PdId, PinnedSpan, Right, StreamId, Table};

const HEADER: [u8; 20] = [0; 20];
/// Bytes of payload in one call of the kernel, like in a batch of a stream.
const BATCH: usize = 64 << 10;
/// Bytes of payload that are sent for one measurement.
const WORK: usize = 256 << 20;
/// Number of measurements, of which the fastest one is printed.
const ROUNDS: usize = 5;
const PAGE: usize = 4096;

/// Payload of the FPDUs of one call.
struct Source<'a> {
    /// Registered memory, from which payload is copied.
    span: &'a PinnedSpan<'a>,
    /// Other memory at the same page offset, which the kernel gathers: the registered memory belongs
    /// to the table.
    bytes: &'a [u8],
}

/// Function that sends `count` FPDUs with `len` bytes of payload each.
type SendFpdus =
    fn(&Source<'_>, len: usize, count: usize, staging: &mut Vec<u8>, to: &mut TcpStream);

fn main() {
    let ways: [(&str, SendFpdus); 3] =
        [("two passes", two_passes), ("one pass", one_pass), ("gather", gather)];
    println!("{}; one pass: {}", processor(), uiw_mem::recover::copies_with_crc());
    let mut socket = discarding_socket();
    for offset in [0, 16] {
        println!("ns of the sending thread for an FPDU, payload at page offset {offset}");
        print!("{:>10}", "bytes");
        ways.iter().for_each(|(name, _)| print!("{name:>12}"));
        println!();
        for len in [256, 512, 1024, 1280, 2048, 4096, 8192, 16_384, 32_768, 64_000] {
            let count = (BATCH / len).max(1);
            let memory = vec![1; PAGE + offset + len * count];
            let first = memory.as_ptr().align_offset(PAGE) + offset;
            let copy = vec![1; memory.len()];
            let first_of_copy = copy.as_ptr().align_offset(PAGE) + offset;
            let table = Table::new(Limits::default());
            let region = table
                .register(PdId(1), Memory::from(memory), 0, Access::REMOTE_READ)
                .expect("within limits");
            let span = table
                .remote(
                    region.stag(),
                    StreamId(1),
                    PdId(1),
                    first as u64,
                    (len * count) as u32,
                    Right::Read,
                )
                .expect("allowed");
            let span = span.pin().expect("registered");
            let source = Source { span: &span, bytes: &copy[first_of_copy..][..len * count] };
            let mut staging = Vec::with_capacity(2 * BATCH);
            print!("{len:>10}");
            for (_, send) in ways {
                let calls = WORK / (len * count);
                let took = (0..ROUNDS).map(|_| {
                    let begun = thread_time();
                    (0..calls).for_each(|_| {
                        send(black_box(&source), len, count, &mut staging, &mut socket);
                    });
                    (thread_time() - begun) / (calls * count) as f64
                });
                print!("{:>12.0}", took.fold(f64::MAX, f64::min));
            }
            println!();
        }
    }
}

fn two_passes(
    source: &Source<'_>,
    len: usize,
    count: usize,
    staging: &mut Vec<u8>,
    to: &mut TcpStream,
) {
    staging.clear();
    for at in (0..count).map(|fpdu| fpdu * len) {
        let start = staging.len();
        staging.extend_from_slice(&HEADER);
        source.span.copy_to_vec(at..at + len, staging).expect("mapped");
        let crc = Crc32c::new().update(&staging[start..]);
        staging.extend_from_slice(&crc.finish_wire());
    }
    to.write_all(staging).expect("the other end reads");
}

fn one_pass(
    source: &Source<'_>,
    len: usize,
    count: usize,
    staging: &mut Vec<u8>,
    to: &mut TcpStream,
) {
    staging.clear();
    for at in (0..count).map(|fpdu| fpdu * len) {
        staging.extend_from_slice(&HEADER);
        let crc = Crc32c::new().update(&HEADER);
        let crc = source.span.copy_to_vec_with_crc(at..at + len, staging, crc).expect("mapped");
        staging.extend_from_slice(&crc.finish_wire());
    }
    to.write_all(staging).expect("the other end reads");
}

fn gather(source: &Source<'_>, len: usize, count: usize, _: &mut Vec<u8>, to: &mut TcpStream) {
    let crcs: Vec<[u8; 4]> = source.bytes[..len * count]
        .chunks(len)
        .map(|payload| Crc32c::new().update(&HEADER).update(payload).finish_wire())
        .collect();
    let mut parts: Vec<IoSlice<'_>> = source.bytes[..len * count]
        .chunks(len)
        .zip(&crcs)
        .flat_map(|(payload, crc)| [&HEADER[..], payload, &crc[..]])
        .map(IoSlice::new)
        .collect();
    let mut parts = &mut parts[..];
    while !parts.is_empty() {
        let sent = to.write_vectored(parts).expect("the other end reads");
        IoSlice::advance_slices(&mut parts, sent);
    }
}

/// Returns a TCP socket whose other end discards what it receives.
fn discarding_socket() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (mut other, _) = listener.accept().expect("it has connected");
    thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        while other.read(&mut buffer).is_ok_and(|len| len > 0) {}
    });
    socket
}

/// Returns the processor time of this thread in nanoseconds.
fn thread_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the processor features on which the choice depends.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("ermsb", is_x86_feature_detected!("ermsb")),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("vpclmulqdq", is_x86_feature_detected!("vpclmulqdq")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
        ];
        let found: Vec<_> = known.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        found.join(" ")
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.to_owned()
}
