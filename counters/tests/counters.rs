//! Tests of counters that are read while they are written, and of damaged files.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use uiw_counters::{
    ConnDetails, Count, CounterFile, DatagramQueuePair, Datagrams, DeviceCounters, Directions,
    Directory, DropReason, FileError, Owner, Publish, Refusal, RejectReason, Snapshot,
    TrafficClass, WaitReason,
};

/// A directory, which is removed with its files when this is dropped.
struct TempDirectory(PathBuf);

impl TempDirectory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("uiw-counters-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn directory(&self) -> Directory {
        Directory::new(&self.0)
    }

    fn publish(&self) -> Publish {
        Publish { directory: self.directory(), library: "/usr/lib/libibverbs.so.1".to_owned() }
    }

    /// Returns the only file, which this process no longer publishes.
    fn only(&self) -> CounterFile {
        let mut files = self.directory().files().unwrap();
        assert_eq!(files.len(), 1);
        files.remove(0).unwrap()
    }

    fn names(&self) -> Vec<String> {
        fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Leaves a file behind as a device with one shard does, and returns its path.
    fn left(&self) -> PathBuf {
        drop(DeviceCounters::new(1, Some(&self.publish())).unwrap());
        self.0.join(self.names().remove(0))
    }

    /// Returns the error of reading the only file.
    fn error(&self) -> FileError {
        let mut files = self.directory().files().unwrap();
        assert_eq!(files.len(), 1);
        files.remove(0).unwrap_err().1
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn details(qp_num: u32, same_device: bool) -> ConnDetails {
    ConnDetails {
        qp_num,
        local: "192.0.2.1:7174".parse().unwrap(),
        peer: "[2001:db8::2]:40000".parse().unwrap(),
        initiator: qp_num.is_multiple_of(2),
        same_device,
        kernel: false,
    }
}

fn count(messages: u64, bytes: u64) -> Count {
    Count { messages, bytes }
}

#[test]
fn file_has_device_counts() {
    let temp = TempDirectory::new();
    let device = DeviceCounters::new(3, Some(&temp.publish())).unwrap();
    let mut shard = device.shard(2);
    device.queue_pair_created();
    let conn = shard.open(&details(0x1234, false));
    conn.count(TrafficClass::SendSent, 1, 100);
    conn.count(TrafficClass::WriteReceived, 0, 65_000);
    conn.count(TrafficClass::WriteReceived, 1, 536);
    conn.count(TrafficClass::ReadSent, 1, 7);
    conn.count(TrafficClass::AtomicReceived, 1, 8);
    conn.wait(WaitReason::Credit);
    conn.set_held(4096);
    shard.accepted();
    shard.refused(Refusal::System);
    shard.refused(Refusal::Program);
    shard.crc_error();
    for _ in 0..3 {
        shard.terminate((0, 1, 2), true);
    }
    shard.terminate((0, 1, 2), false);
    shard.terminate((2, 0, 2), false);
    let own = device.snapshot();
    assert!(temp.directory().files().unwrap().is_empty(), "a process does not open its own file");
    drop((conn, shard, device));

    let file = temp.only();
    let mode = fs::metadata(temp.0.join(file.name())).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let read = file.snapshot().unwrap();
    let unnamed = |mut snapshot: Snapshot| {
        snapshot.process.began_ns = 0;
        snapshot
    };
    assert_eq!(unnamed(read.clone()), unnamed(own));
    assert_eq!(read.process.pid, std::process::id());
    assert_eq!(read.process.library, "/usr/lib/libibverbs.so.1");
    assert_eq!((read.process.devices_opened, read.process.queue_pairs_created), (1, 1));
    let total = read.total();
    assert_eq!(total, {
        let mut shard = read.shards[2].clone();
        shard.index = 0;
        shard
    });
    assert_eq!(total.traffic.send.sent, count(1, 100));
    assert_eq!(total.traffic.write.received, count(1, 65_536));
    assert_eq!(
        (total.traffic.read.sent, total.traffic.atomic.received),
        (count(1, 7), count(1, 8))
    );
    assert_eq!((total.accepted, total.established, total.ended), (1, 1, 0));
    assert_eq!((total.refused_system, total.refused_program, total.refused_keys), (1, 1, 0));
    assert_eq!((total.crc_errors, total.held_bytes, total.waits.credit), (1, 4096, 1));
    let codes: Vec<_> = total.terminates.iter().map(|it| (it.code, it.sent, it.received)).collect();
    assert_eq!(codes, [(Some((0, 1, 2)), 3, 1), (Some((2, 0, 2)), 0, 1)]);
    let [connection] = &read.connections[..] else { panic!("{:?}", read.connections) };
    assert_eq!(
        (connection.qp_num, connection.shard, connection.traffic),
        (0x1234, 2, total.traffic)
    );
    assert_eq!(
        (connection.local, connection.peer),
        (details(0, false).local, details(0, false).peer)
    );
    assert_eq!(read.with_other_devices(), total.traffic);
    assert!(file.remove(&temp.directory()).unwrap() && !file.remove(&temp.directory()).unwrap());
}

#[test]
fn datagrams_counted_by_qp_and_shard() {
    let temp = TempDirectory::new();
    let device = DeviceCounters::new(2, Some(&temp.publish())).unwrap();
    let mut shard = device.shard(1);
    let local = "192.0.2.1:4000".parse().unwrap();
    let earlier = shard.open_datagrams(0x0F_A000, local);
    earlier.sent(count(3, 300), count(1, 100));
    earlier.dropped(DropReason::BadQkey, 5);
    shard.close_datagrams(&earlier);
    // A connection and another queue pair reuse the block. The sums continue, and their own
    // counters begin at zero.
    let conn = shard.open(&details(7, false));
    conn.count(TrafficClass::SendSent, 1, 10);
    shard.close(&conn, true);
    let now = shard.open_datagrams(0x0F_A001, local);
    now.sent(count(2, 64), count(0, 0));
    now.received(count(1, 1024), count(1, 1024));
    now.received(count(1, 1), count(0, 0));
    now.dropped(DropReason::Unsent, 1);
    now.dropped(DropReason::NoReceive, 2);
    now.dropped(DropReason::BadReceive, 1);
    for (why, times) in [
        (RejectReason::BadCrc, 1),
        (RejectReason::Malformed, 2),
        (RejectReason::BadSource, 3),
        (RejectReason::NoQueuePair, 4),
    ] {
        (0..times).for_each(|_| shard.datagram_rejected(why));
    }
    drop((earlier, conn, now, shard, device));

    let snapshot = temp.only().snapshot().unwrap();
    let total = snapshot.total();
    let directions = |sent, received| Directions { sent, received };
    assert_eq!(total.traffic.send.sent, count(1, 10));
    assert_eq!((total.established, total.ended), (1, 1), "a UD queue pair is no connection");
    let expected = Datagrams {
        traffic: directions(count(5, 364), count(2, 1025)),
        same_device: directions(count(1, 100), count(1, 1024)),
        unsent: 1,
        bad_qkey: 5,
        no_receive: 2,
        bad_receive: 1,
        bad_crc: 1,
        malformed: 2,
        bad_source: 3,
        no_queue_pair: 4,
    };
    assert_eq!(total.datagrams, expected);
    assert_eq!(expected.with_other_devices(), directions(count(4, 264), count(1, 1)));
    assert_eq!(expected.dropped().iter().map(|(_, count)| count).sum::<u64>(), 18);
    let [DatagramQueuePair { shard, qp_num, local: at, datagrams, .. }] =
        snapshot.datagram_queue_pairs[..]
    else {
        panic!("{:?}", snapshot.datagram_queue_pairs)
    };
    assert_eq!((shard, qp_num, at), (1, 0x0F_A001, local));
    assert_eq!(datagrams.traffic, directions(count(2, 64), count(2, 1025)));
    assert_eq!((datagrams.unsent, datagrams.bad_qkey, datagrams.no_receive), (1, 0, 2));
    assert_eq!(datagrams.bad_crc, 0, "that of no queue pair");
    assert!(snapshot.connections.is_empty());
}

#[test]
fn later_connection_starts_at_zero() {
    let device = DeviceCounters::new(1, None).unwrap();
    let mut shard = device.shard(0);
    for round in 0..5 {
        let conn = shard.open(&details(round, round == 2));
        conn.count(TrafficClass::SendSent, 1, 10);
        let now = device.snapshot();
        assert_eq!(now.connections.len(), 1);
        assert_eq!(
            (now.connections[0].qp_num, now.connections[0].traffic.send.sent),
            (round, count(1, 10))
        );
        shard.close(&conn, true);
        assert!(device.snapshot().connections.is_empty());
    }
    let total = device.snapshot().total();
    assert_eq!(total.traffic.send.sent, count(5, 50));
    // Two other connections have used its block since then.
    assert_eq!(total.same_device.send.sent, count(1, 10));
    assert_eq!((total.established, total.ended), (5, 5));
}

#[test]
fn connections_without_block_count_for_shard() {
    let temp = TempDirectory::new();
    let device = DeviceCounters::new(1, Some(&temp.publish())).unwrap();
    let mut shard = device.shard(0);
    let all: Vec<_> =
        (0..100_000).map(|number| shard.open(&details(number, number % 2 == 1))).collect();
    for conn in &all {
        conn.count(TrafficClass::WriteSent, 1, 3);
    }
    let path = temp.0.join(temp.names().remove(0));
    let len = fs::metadata(&path).unwrap().len();
    assert!(len <= 2 << 20, "{len} bytes");
    let now = device.snapshot();
    assert_eq!(now.connections.len(), 1021);
    let total = now.total();
    assert_eq!(total.traffic.write.sent, count(100_000, 300_000));
    assert_eq!(total.same_device.write.sent, count(50_000, 150_000));
    assert_eq!(now.with_other_devices().write.sent, count(50_000, 150_000));
    all.iter().for_each(|conn| shard.close(conn, true));
    // The blocks are free again.
    let conn = shard.open(&details(7, false));
    conn.count(TrafficClass::WriteSent, 1, 5);
    let now = device.snapshot();
    assert_eq!((now.connections.len(), now.connections[0].traffic.write.sent), (1, count(1, 5)));
    assert_eq!(now.total().traffic.write.sent, count(100_001, 300_005));
}

/// Connections of two addresses follow one another, with few at a time. The counts of each address
/// are exact.
#[test]
fn counts_grouped_by_local_address() {
    let device = DeviceCounters::new(2, None).unwrap();
    let mut shards = [device.shard(0), device.shard(1)];
    for number in 0..3000 {
        let shard = &mut shards[number as usize % 2];
        let mut details = details(number, false);
        details.local.set_ip([10, 0, 0, (number % 3) as u8].into());
        let conn = shard.open(&details);
        conn.count(TrafficClass::WriteSent, 1, 1 << (8 * (number % 3)));
        conn.count(TrafficClass::SendReceived, 1, 7);
        shard.close(&conn, true);
    }
    let datagrams = shards[0].open_datagrams(9, "10.0.0.9:1".parse().unwrap());
    datagrams.sent(count(2, 50), count(0, 0));
    shards[0].close_datagrams(&datagrams);
    let now = device.snapshot();
    for last in 0..3 {
        let counts = now.addresses[&[10, 0, 0, last].into()];
        assert_eq!(counts.traffic.write.sent, count(1000, 1000 << (8 * last)));
        assert_eq!(counts.traffic.send.received, count(1000, 7000));
    }
    assert_eq!(now.addresses[&[10, 0, 0, 9].into()].datagrams.sent, count(2, 50));
    assert_eq!(now.addresses.len(), 4);
}

#[test]
fn excess_codes_counted_together() {
    let device = DeviceCounters::new(1, None).unwrap();
    let shard = device.shard(0);
    for code in 0..=u8::MAX {
        shard.terminate((1, 2, code), code % 2 == 0);
    }
    let terminates = device.snapshot().total().terminates;
    let sum = terminates.iter().fold((0, 0), |sum, it| (sum.0 + it.sent, sum.1 + it.received));
    assert_eq!(sum, (128, 128));
    assert!(terminates.len() < 30 && terminates.last().unwrap().code.is_none());
}

#[test]
fn closed_device_has_ended() {
    let temp = TempDirectory::new();
    temp.left();
    assert_eq!(temp.only().owner().unwrap(), Owner::Ended);
    assert!(temp.directory().remove_ended().unwrap() && temp.names().is_empty());
}

/// Offset of the first number of the first shard, which is the number of blocks that were used.
const FIRST_SHARD: u64 = 512;

/// Changes one number of a file.
fn put(path: &Path, word: u64, number: u64) {
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(&number.to_ne_bytes(), word * 8)
        .unwrap();
}

#[test]
fn files_that_are_none_are_errors() {
    let temp = TempDirectory::new();
    let path = temp.left();
    put(&path, 1, 99);
    assert!(matches!(temp.error(), FileError::Version { found: 99 }));
    put(&path, 1, uiw_counters::VERSION);
    put(&path, 2, u64::MAX);
    assert!(matches!(temp.error(), FileError::Damaged));
    put(&path, 2, 2);
    assert!(matches!(temp.error(), FileError::Length { .. }));
    put(&path, 2, 1);
    // The number of used blocks of the shard.
    put(&path, FIRST_SHARD, u64::MAX);
    assert!(matches!(temp.only().snapshot(), Err(FileError::Damaged)));
    put(&path, FIRST_SHARD, 1024);
    let len = fs::metadata(&path).unwrap().len();
    let file = File::options().write(true).open(&path).unwrap();
    let open = temp.only();
    for cut in [0, 1, 7, 8, 1023, 1024, 1025, 4096, len - 1] {
        file.set_len(cut).unwrap();
        assert!(open.snapshot().is_err(), "{cut} bytes");
    }
    file.set_len(0).unwrap();
    assert!(matches!(temp.error(), FileError::Foreign));
    fs::write(&path, vec![b'x'; 5000]).unwrap();
    assert!(matches!(temp.error(), FileError::Foreign));
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert!(matches!(temp.error(), FileError::Io(_)));
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert!(matches!(temp.error(), FileError::Kind));
}

#[test]
fn random_file_read_without_panic() {
    let temp = TempDirectory::new();
    let path = temp.left();
    let file = File::options().write(true).open(&path).unwrap();
    let mut state = 1u64;
    for round in 0..200 {
        let mut blocks = vec![0u8; 64 << 10];
        for word in blocks.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *word = (state ^ state >> 29).to_ne_bytes();
        }
        file.write_all_at(&blocks, 4096).unwrap();
        // Marks the blocks as used, so that they are read.
        put(&path, FIRST_SHARD, 3 + round % 64);
        let snapshot = temp.only().snapshot().unwrap();
        let _ = (snapshot.total(), snapshot.with_other_devices(), snapshot.queue_pairs());
    }
}

#[test]
fn directory_of_other_user_refused() {
    let temp = TempDirectory::new();
    let user = Directory::for_user(Some(&temp.0));
    assert_eq!(user.path(), temp.0.join("uiw"));
    assert!(user.files().unwrap().is_empty() && user.linked().unwrap().is_empty());
    let publish = Publish { directory: user.clone(), library: String::new() };
    drop(DeviceCounters::new(1, Some(&publish)).unwrap());
    assert_eq!(fs::metadata(user.path()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(user.files().unwrap().len(), 1);
    fs::set_permissions(user.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(user.files().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    // The device counts nevertheless, but publishes nothing.
    let device = DeviceCounters::new(1, Some(&publish)).unwrap();
    device.queue_pair_created();
    assert_eq!(device.snapshot().process.queue_pairs_created, 1);
    assert_eq!(fs::read_dir(user.path()).unwrap().count(), 1);
    // A relative path and a missing directory are ignored.
    let user = Directory::for_user(Some(Path::new("tmp")));
    assert!(
        user.path().starts_with("/tmp/")
            && user == Directory::for_user(Some(Path::new("/nonexistent")))
    );
}

#[test]
fn directory_keeps_few_ended_files() {
    let temp = TempDirectory::new();
    let user = Directory::for_user(Some(&temp.0));
    let publish = Publish { directory: user.clone(), library: String::new() };
    for _ in 0..300 {
        drop(DeviceCounters::new(1, Some(&publish)).unwrap());
    }
    let count = user.files().unwrap().len();
    assert!((64..=129).contains(&count), "{count}");
    // In a directory of `uiw run`, all files stay until `uiw run` removes them.
    let lock = user.path().join(Directory::RUN_LOCK);
    fs::write(&lock, "").unwrap();
    let given = Directory::new(user.path());
    for _ in 0..130 {
        drop(
            DeviceCounters::new(
                1,
                Some(&Publish { directory: given.clone(), library: String::new() }),
            )
            .unwrap(),
        );
    }
    assert_eq!(given.files().unwrap().len(), count + 130);
    fs::remove_file(&lock).unwrap();
    assert!(given.remove_ended().unwrap());
    assert_eq!(fs::read_dir(user.path()).unwrap().count(), 0);
}

#[test]
fn links_lead_readers_to_directories() {
    let (temp, other) = (TempDirectory::new(), TempDirectory::new());
    other.left();
    let user = Directory::for_user(Some(&temp.0));
    user.link(&other.directory(), "1").unwrap();
    let [linked] = &user.linked().unwrap()[..] else { panic!("one link") };
    assert_eq!(linked.files().unwrap().len(), 1);
    assert!(user.files().unwrap().is_empty());
    user.unlink("1").unwrap();
    assert!(user.linked().unwrap().is_empty());
}
