//! Tests each operation once over the kernel's TCP, with both ends in one process.
use crate::common::connected;
use uiw::{Access, ConnConfig, ConnectionConfig, ErrorKind};

#[test]
fn every_operation_moves_its_bytes() {
    let ((_c, client), (_s, server)) = connected(&ConnectionConfig::default());
    let cpd = client.pd().clone();
    let spd = server.pd().clone();
    client.send_copy(b"hello").unwrap();
    assert_eq!(&*server.recv().unwrap().unwrap(), b"hello");
    server.send_copy(b"hello yourself").unwrap();
    assert_eq!(&*client.recv().unwrap().unwrap(), b"hello yourself");
    let shared = spd
        .share(1 << 20, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)
        .unwrap();
    let remote = shared.remote(0..1 << 20).unwrap();
    let data: Vec<u8> = (0..1u32 << 20).map(|i| ((i * 7) >> 3) as u8).collect();
    let mr = client.write(cpd.register(data.clone()).unwrap(), remote).wait().unwrap();
    let back = client.read(cpd.register(vec![0u8; 1 << 20]).unwrap(), remote).wait().unwrap();
    assert!(back.bytes() == data);
    drop(mr);
    assert_eq!(shared.to_vec(0..1 << 20).unwrap(), data);
    let at = remote.slice(8..16).unwrap();
    shared.update_u64(8, |_| 40).unwrap();
    assert_eq!(client.fetch_add(at, 2).unwrap(), 40);
    assert_eq!(client.compare_swap(at, 42, 7).unwrap(), 42);
    assert_eq!(shared.load_u64(8).unwrap(), 7);
    let misaligned = client.fetch_add(remote.slice(9..17).unwrap(), 1).unwrap_err();
    assert!(matches!(misaligned.kind(), ErrorKind::Misuse(_)), "{misaligned}");
    assert!(matches!(shared.load_u64(12).unwrap_err().kind(), ErrorKind::Misuse(_)));
    assert!(matches!(shared.update_u64(12, |_| 0).unwrap_err().kind(), ErrorKind::Misuse(_)));
    assert!(matches!(
        shared.load_u64((1 << 20) - 4).unwrap_err().kind(),
        ErrorKind::OutOfRange { .. }
    ));
    assert_eq!(shared.load_u64(8).unwrap(), 7);
    let client = client.into_async();
    let small = cpd.register(vec![5u8; 100]).unwrap();
    client.write_imm(small, remote, 0xDEAD_BEEF).wait().unwrap();
    let message = server.recv().unwrap().unwrap();
    assert_eq!((message.imm(), message.write_len()), (Some(0xDEAD_BEEF), Some(100)));
    client.send_imm(cpd.register(vec![6u8; 10]).unwrap(), 77).wait().unwrap();
    let message = server.recv().unwrap().unwrap();
    assert_eq!((message.imm(), &*message), (Some(77), &[6u8; 10][..]));
}

#[test]
fn orderly_close_is_seen_by_both() {
    let ((_c, client), (_s, server)) =
        connected(&ConnectionConfig::default().options(ConnConfig::default()));
    let thread = std::thread::spawn(move || server.ended());
    assert!(client.disconnect().unwrap().orderly);
    assert!(thread.join().unwrap().orderly);
}
