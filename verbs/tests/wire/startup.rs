//! MPA start-up, both roles (RFC 5044 section 7.1, RFC 6581).

use crate::common::{
    End, closed_addr, initiator_opt, initiator_with, next_request, pair_of, plain, requested,
    responder_with,
};
use crate::peer::{Peer, Port, enhanced, frame, reply, request, tagged, untagged, with};
use crate::simulation::{any_port, change_link, now, run_until_idle, until};
use crate::transport::pass;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use uiw_mpa::startup::RtrKinds;
use uiw_mpa::wire::startup::{Enhanced, Frame, FrameKind};
use uiw_rdmap::Opcode;
use uiw_verbs::cm::{ConnHandle, Listener};
use uiw_verbs::{
    CapabilityExchange, ConnConfig, Error, QpCap, QpInit, QpState, Remote, Revision, SendFlags,
    SendOp, WcStatus,
};

fn p2p(rtr: RtrKinds) -> ConnConfig {
    plain().peer_to_peer(true).rtr(rtr)
}

fn asks(kinds: RtrKinds) -> Enhanced {
    Enhanced {
        peer_to_peer: true,
        rtr_send: kinds.send,
        rtr_write: kinds.write,
        rtr_read: kinds.read,
        ..enhanced(4, 4)
    }
}

const WRITE: RtrKinds = RtrKinds { write: true, ..RtrKinds::NONE };
const READ: RtrKinds = RtrKinds { read: true, ..RtrKinds::NONE };
const SEND: RtrKinds = RtrKinds { send: true, ..RtrKinds::NONE };

// ---------------------------------------------------------------- two steps

#[test]
fn second_step_establishes_connection() {
    let (client, server) = (End::new(), End::new());
    let listener = server.listen(&ConnConfig::default());
    let options = Arc::new(ConnConfig::default());
    let to = listener.local_addr();
    uiw_verbs::cm::connect_in_two_steps(&client.qp, None, to, &options, b"", &client.channel)
        .unwrap();
    server.accept(server.request());
    client.established();
    client.send(1, 0, 16);
    run_until_idle();
    assert!(server.channel.is_empty(), "the peer has an event before the second step");
    let handle = ConnHandle::of(&client.qp).unwrap();
    server.recv(1, 0, 64);
    handle.establish().unwrap();
    server.established();
    assert_eq!(server.received_ok(1).byte_len, 16);
    handle.establish().unwrap();
    client.sent_ok(1);
}

#[test]
fn missing_second_step_reported() {
    let (client, server) = (End::new(), End::new());
    let listener = server.listen(&ConnConfig::default());
    let options = Arc::new(ConnConfig::default());
    let to = listener.local_addr();
    uiw_verbs::cm::connect_in_two_steps(&client.qp, None, to, &options, b"", &client.channel)
        .unwrap();
    server.accept(server.request());
    client.established();
    ConnHandle::of(&client.qp).unwrap().abort().unwrap();
    let error = server.failed();
    let Error::Lost { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.kind(), ErrorKind::ConnectionReset);
}

// ---------------------------------------------------------------- responder

#[test]
fn responder_answers_each_revision_in_kind() {
    for (asked, expected_s) in [
        (request(0), false),
        (request(1), false),
        (request(2), false),
        (with(request(2), enhanced(3, 2)), true),
    ] {
        let end = End::new();
        let (mut peer, reply) = responder_with(&end, &plain(), &asked);
        assert_eq!((reply.revision, reply.enhanced.is_some()), (asked.revision, expected_s));
        assert_eq!((reply.kind, reply.reject, reply.reserved), (FrameKind::Reply, false, 0));
        let info = end.established();
        assert_eq!(info.negotiated.revision, asked.revision);
        end.recv(1, 0, 64);
        peer.send(b"works");
        assert_eq!(end.received_ok(1).byte_len, 5);
    }
}

fn refused(bytes: &[u8]) {
    let end = End::new();
    let listener = end.listen(&plain());
    let mut peer = Peer::connect(listener.local_addr());
    peer.raw(bytes);
    assert!(peer.rest().is_empty(), "nothing may be answered");
    assert!(end.channel.is_empty());
    // The listener continues to work.
    let mut next = Peer::requesting(listener.local_addr(), &request(1));
    end.accept(end.request());
    assert!(!next.startup_frame().reject);
}

// [test:RFC5044-7.1.1-02] [test:RFC5044-7.1.1-16] [test:RFC5044-7.1.1-18] [test:RFC5044-7.1.2-04] [test:RFC5044-7.1.2-12] [test:RFC5044-7.1.2-15]
#[test]
fn responder_closes_on_invalid_frames() {
    refused(&request(3).emit());
    refused(&request(129).emit());
    refused(b"GET / HTTP/1.1\r\n");
    refused(&reply(1).emit());
    let mut late = request(1).emit();
    late[15] ^= 1;
    refused(&late);
    let mut long = request(1).emit();
    long[18..20].copy_from_slice(&513u16.to_be_bytes());
    refused(&long);
    long[18..20].copy_from_slice(&65535u16.to_be_bytes());
    refused(&long);
}

// [test:RFC5044-7.1.1-19] [test:RFC5044-7.1.1-17]
#[test]
fn private_data_of_every_size_arrives() {
    for (revision, s, max) in [(1, false, 512), (2, false, 512), (2, true, 508)] {
        for len in [0, 1, 252, 256, max] {
            let end = End::new();
            let listener = end.listen(&plain());
            let data = crate::common::pattern(len);
            let mut asked = frame(FrameKind::Request, revision, &data);
            asked.enhanced = s.then(|| enhanced(1, 1));
            let mut peer = Peer::requesting(listener.local_addr(), &asked);
            let request = end.request();
            assert_eq!(request.private_data(), data);
            assert_eq!(request.max_reply_private_data(), max);
            assert_eq!(request.revision(), revision);
            request.accept(&end.qp, None, &data, None).unwrap();
            assert_eq!(peer.startup_frame().private_data, data);
        }
    }
}

#[test]
fn request_in_single_bytes() {
    let end = End::new();
    let listener = end.listen(&plain());
    let mut peer = Peer::connect(listener.local_addr());
    for byte in with(frame(FrameKind::Request, 2, b"pieces"), enhanced(1, 1)).emit() {
        peer.raw(&[byte]);
    }
    let request = end.request();
    assert_eq!(request.private_data(), b"pieces");
    end.accept(request);
    assert!(!peer.startup_frame().reject);
}

#[test]
fn bytewise_reply_with_first_fpdu() {
    let end = End::new();
    let (mut peer, _) = requested(&end, &plain());
    end.recv(1, 0, 64);
    let mut bytes = with(frame(FrameKind::Reply, 2, b"x"), enhanced(1, 1)).emit();
    bytes.extend(peer.seal(&untagged(Opcode::Send, 0, 1, 0, true, 0, b"glued")));
    for byte in bytes {
        peer.raw(&[byte]);
    }
    assert_eq!(end.established().private_data, b"x");
    assert_eq!(end.received_ok(1).byte_len, 5);
}

// [test:RFC5044-7.1-01] [test:RFC5044-7.1-04]
#[test]
fn bytes_after_reply_are_full_operation() {
    let end = End::new();
    end.recv(1, 0, 64);
    let (mut peer, _) = requested(&end, &plain());
    let mut bytes = with(reply(2), enhanced(1, 1)).emit();
    bytes.extend(peer.seal(&untagged(Opcode::Send, 0, 1, 0, true, 0, b"glued")));
    bytes.extend(peer.seal(&tagged(
        Opcode::Write,
        end.mr.rkey().0,
        end.mr.addr() + 100,
        true,
        b"write",
    )));
    peer.raw(&bytes);
    end.established();
    assert_eq!(end.received_ok(1).byte_len, 5);
    assert_eq!(crate::common::peek(&end.mr, 0, 5), b"glued");
}

/// Bytes that the initiator sends after its Request are not permitted, but harmless: they wait for
/// the decision.
#[test]
fn bytes_glued_behind_the_request_wait() {
    let end = End::new();
    let listener = end.listen(&plain());
    let mut peer = Peer::connect(listener.local_addr());
    let mut bytes = request(1).emit();
    bytes.extend(peer.seal(&untagged(Opcode::Send, 0, 1, 0, true, 0, b"early")));
    peer.raw(&bytes);
    end.recv(1, 0, 64);
    end.accept(end.request());
    assert!(!peer.startup_frame().reject);
    assert_eq!(end.received_ok(1).byte_len, 5);
}

// [test:RFC5044-7.1.2-14]
#[test]
fn rejection_carries_private_data_both_ways() {
    let end = End::new();
    let listener = end.listen(&plain());
    for revision in [1, 2] {
        let asked = frame(FrameKind::Request, revision, b"please");
        let mut peer = Peer::requesting(listener.local_addr(), &asked);
        let request = end.request();
        assert_eq!(request.private_data(), b"please");
        request.reject(b"no").unwrap();
        let reply = peer.startup_frame();
        assert_eq!(
            (reply.reject, &*reply.private_data, reply.revision),
            (true, &b"no"[..], revision)
        );
        assert!(peer.rest().is_empty());
    }
    // Dropping a request rejects it as well.
    let mut peer = Peer::requesting(listener.local_addr(), &request(1));
    drop(end.request());
    assert!(peer.startup_frame().reject);
}

#[test]
fn dropped_listener_rejects_pending_requests() {
    let end = End::new();
    let channel = Arc::default();
    let options = Arc::new(plain());
    let listener = Listener::bind(&end.device, any_port(), 8, &options, &channel).unwrap();
    let mut peer = Peer::requesting(listener.local_addr(), &request(1));
    until("no request came", || !channel.is_empty());
    let mut silent = Peer::connect(listener.local_addr());
    drop(listener);
    drop(channel);
    assert!(peer.startup_frame().reject);
    peer.stream.set_read_timeout(Duration::from_secs(5));
    assert!(peer.rest().is_empty());
    silent.stream.set_read_timeout(Duration::from_secs(5));
    assert!(silent.rest().is_empty());
}

#[test]
fn socket_taken_instead_of_answer() {
    let end = End::tcp();
    let listener = end.listen(&plain());
    let mut client = TcpStream::connect(listener.local_addr()).unwrap();
    client.write_all(&frame(FrameKind::Request, 1, b"raw").emit()).unwrap();
    let mut asked = end.request();
    assert!(asked.has_socket());
    let socket = TcpStream::from(asked.take_socket().unwrap());
    assert!(matches!(asked.take_socket(), Err(Error::NotConnected)));
    drop(asked);
    socket.set_nonblocking(false).unwrap();
    client.write_all(b"there").unwrap();
    let mut bytes = [0; 5];
    (&socket).read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"there");
    (&socket).write_all(b"and back").unwrap();
    // The connection belongs to the program only.
    drop((end, listener));
    drop(socket);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"and back", "no Reply");
}

#[test]
fn failed_socket_take_keeps_request() {
    let end = End::new();
    let listener = end.listen(&plain());
    let mut peer = Peer::requesting(listener.local_addr(), &request(1));
    let mut asked = end.request();
    assert!(!asked.has_socket(), "the simulated network has none");
    let refused = asked.take_socket().unwrap_err();
    assert!(
        matches!(&refused, Error::Io { source, .. } if source.kind() == ErrorKind::Unsupported),
        "{refused}"
    );
    asked.reject(b"no socket").unwrap();
    assert_eq!(peer.startup_frame().private_data, b"no socket");

    // The bytes after the Request were read together with it, so the socket cannot be taken.
    let end = End::tcp();
    let listener = end.listen(&plain());
    let mut client = TcpStream::connect(listener.local_addr()).unwrap();
    client.write_all(&[&request(1).emit()[..], b"early"].concat()).unwrap();
    let mut asked = end.request();
    let refused = asked.take_socket().unwrap_err();
    assert!(
        matches!(&refused, Error::Io { source, .. } if source.kind() == ErrorKind::InvalidData),
        "{refused}"
    );
    asked.reject(b"too early").unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    let (reply, _) = Frame::parse(&got).unwrap().unwrap();
    assert_eq!((reply.reject, &*reply.private_data), (true, &b"too early"[..]));
}

// [test:RFC5044-7.1.2-16]
#[test]
fn responder_abandons_silent_initiator() {
    let end = End::new();
    let startup_timeout = Duration::from_millis(100);
    let options = plain().startup_timeout(startup_timeout);
    let listener = end.listen(&options);
    let start = now();
    let mut silent = [(); 2].map(|()| Peer::connect(listener.local_addr()));
    let mut half = Peer::connect(listener.local_addr());
    half.raw(&request(1).emit()[..19]);
    for peer in &mut silent {
        assert!(peer.rest().is_empty());
    }
    assert!(half.rest().is_empty());
    assert_eq!(now() - start, startup_timeout);
}

/// A peer that sends its bytes one by one does not extend the timeout.
// [test:RFC5044-7.1.2-20]
#[test]
fn bytes_do_not_extend_startup_timeout() {
    let end = End::new();
    let startup_timeout = Duration::from_millis(100);
    let options = plain().startup_timeout(startup_timeout);
    let listener = end.listen(&options);
    let start = now();
    let mut peer = Peer::connect(listener.local_addr());
    peer.stream.set_read_timeout(Duration::from_millis(20));
    let bytes = frame(FrameKind::Request, 1, &[0; 400]).emit();
    for byte in bytes {
        peer.raw(&[byte]);
        match std::io::Read::read(&mut peer.stream, &mut [0; 16]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(now() - start, startup_timeout, "420 bytes of 20 ms each");
}

#[test]
fn half_open_connections_bounded() {
    let limits = uiw_verbs::Limits::default().max_half_open(2);
    let end = End::on(&crate::simulation::device(limits));
    let listener = end.listen(&plain());
    let mut first = Peer::connect(listener.local_addr());
    let mut second = Peer::connect(listener.local_addr());
    // The oldest connection without a Request is evicted.
    let mut third = Peer::connect(listener.local_addr());
    assert!(first.rest().is_empty());
    second.raw(&request(1).emit());
    let undecided = end.request();
    third.raw(&request(1).emit());
    let other = end.request();
    // Both peers have sent their Requests and wait for the application. Neither is evicted; the
    // newest connection is closed.
    let mut late = Peer::connect(listener.local_addr());
    assert!(late.rest().is_empty());
    other.reject(b"").unwrap();
    assert!(third.startup_frame().reject);
    end.accept(undecided);
    assert!(!second.startup_frame().reject);
    end.established();
    drop(third);
    let mut fourth = Peer::requesting(listener.local_addr(), &request(1));
    end.request().reject(b"").unwrap();
    assert!(fourth.startup_frame().reject);
}

/// A Request that waits for the program keeps memory after its peer has gone.
#[test]
fn requests_of_gone_peers_bounded() {
    let limits = uiw_verbs::Limits::default().max_half_open(2);
    let end = End::on(&crate::simulation::device(limits));
    let startup_timeout = Duration::from_millis(100);
    let listener = end.listen(&plain().startup_timeout(startup_timeout));
    for _ in 0..2 {
        let mut gone = Peer::requesting(listener.local_addr(), &request(1));
        pass(&end.device, 2 * startup_timeout);
        assert!(gone.rest().is_empty());
    }
    let mut late = Peer::requesting(listener.local_addr(), &request(1));
    assert!(late.rest().is_empty());
    (0..2).for_each(|_| drop(end.request()));
    end.nothing_more();
    let mut next = Peer::requesting(listener.local_addr(), &request(1));
    end.request().reject(b"").unwrap();
    assert!(next.startup_frame().reject);
}

#[test]
fn initiator_leaving_during_startup_forgotten() {
    let end = End::new();
    let listener = end.listen(&plain());
    let mut gone = Peer::connect(listener.local_addr());
    gone.raw(&request(1).emit()[..10]);
    gone.reset();
    let mut left = Peer::connect(listener.local_addr());
    left.raw(&request(1).emit()[..10]);
    left.fin();
    assert!(left.rest().is_empty());
    // The peer resets the connection before the application has decided.
    let impatient = Peer::requesting(listener.local_addr(), &request(1));
    let request_ = end.request();
    impatient.reset();
    pass(&end.device, Duration::from_millis(40));
    let probe = End::on(&end.device);
    assert!(matches!(request_.accept(&probe.qp, None, b"", None), Err(Error::NotConnected)));
    assert_eq!(probe.qp.state(), QpState::Init);
    assert_eq!(end.qp.state(), QpState::Init);
}

// [test:RFC6581-9.1-02] [test:RFC6581-9.1-04] [test:RFC6581-9.1-11] [test:RFC6581-9.1-13]
#[test]
fn responder_negotiates_ird_and_ord() {
    // The cases map their IRD and ORD to ours, which are 4 and 4 before the negotiation.
    for ((ird, ord), expected, on_the_wire) in [
        ((4, 4), (4, 4), (4, 4)),
        ((0, 0), (4, 0), (4, 0)),
        ((2, 1), (4, 2), (4, 2)),
        ((100, 100), (4, 4), (4, 4)),
        ((0x3FFF, 0x3FFF), (4, 4), (0x3FFF, 0x3FFF)),
    ] {
        let end = End::new();
        let (_peer, reply) = responder_with(&end, &plain(), &with(request(2), enhanced(ird, ord)));
        let got = reply.enhanced.unwrap();
        assert_eq!((got.ird, got.ord), on_the_wire, "asked {ird}/{ord}");
        let info = end.established();
        assert_eq!((info.negotiated.ird, info.negotiated.ord), expected);
        assert_eq!((end.qp.query().ird, end.qp.query().ord), expected);
        if expected.1 == 0 {
            let op = SendOp::Read { remote: Remote::default(), invalidate: None };
            assert!(end.post(1, op, &[end.sge(0, 8)], SendFlags::SIGNALED).is_err());
        }
    }
}

/// Requests can be posted before ORD is negotiated.
#[test]
fn reads_posted_before_connection_refused_without_ord() {
    let end = End::new();
    end.qp.modify(QpState::Rtr).unwrap();
    end.qp.modify(QpState::Rts).unwrap();
    let read = SendOp::Read { remote: Remote::default(), invalidate: None };
    end.post(1, read, &[end.sge(0, 8)], SendFlags::SIGNALED).unwrap();
    end.send(2, 0, 8);
    let (mut peer, _) = responder_with(&end, &plain(), &with(request(2), enhanced(0, 0)));
    end.established();
    peer.empty_write();
    let refused = end.sent();
    assert_eq!((refused.wr_id, refused.status), (1, WcStatus::LocalQpOperation));
    end.sent_ok(2);
}

// [test:RFC5044-7.1.2-11]
#[test]
fn responder_waits_for_first_fpdu() {
    for asked in [request(1), with(request(2), enhanced(4, 4))] {
        let end = End::new();
        let (mut peer, _) = responder_with(&end, &plain(), &asked);
        end.established();
        end.send(1, 0, 10);
        end.op(2, SendOp::Write { remote: Remote::default() }, 0, 0);
        peer.expect_silence(100);
        peer.empty_write();
        assert_eq!(peer.next().unwrap().opcode(), Opcode::Send);
        assert_eq!(peer.next().unwrap().opcode(), Opcode::Write);
        end.sent_ok(1);
        end.sent_ok(2);
    }
}

#[test]
fn invalid_first_fpdu_closed_silently() {
    for bad in [0usize, 1] {
        let end = End::new();
        let (mut peer, _) = responder_with(&end, &plain(), &request(1));
        end.established();
        end.send(7, 0, 10);
        let mut bytes = peer.seal(&tagged(Opcode::Write, 1, 0, true, b""));
        if bad == 0 {
            *bytes.last_mut().unwrap() ^= 1;
        } else {
            bytes = peer.seal(&tagged(Opcode::Write, 1, 0, true, b"data"));
        }
        peer.raw(&bytes);
        peer.expect_close();
        assert_ne!(end.sent().status, WcStatus::Success);
    }
}

#[test]
fn first_send_without_receive_is_valid() {
    let end = End::new();
    let options = plain().peer_to_peer(true);
    let asked = with(request(2), asks(WRITE));
    let (mut peer, _) = responder_with(&end, &options, &asked);
    // A peer-to-peer application posts its receives when the connection is reported.
    peer.send(b"first");
    end.established();
    end.send(1, 0, 4);
    assert_eq!(peer.expect_fpdu().opcode(), Opcode::Send);
    end.recv(1, 0, 64);
    assert_eq!(end.received_ok(1).byte_len, 5);
}

// [test:RFC6581-9.2-04] [test:RFC6581-9.2-05]
#[test]
fn rtr_of_every_kind_as_responder() {
    for kinds in [WRITE, READ, SEND, RtrKinds::ALL] {
        for sent in [Opcode::Write, Opcode::ReadRequest, Opcode::Send] {
            let fits = match sent {
                Opcode::Write => kinds.write,
                Opcode::ReadRequest => kinds.read,
                _ => kinds.send,
            };
            if !fits {
                continue;
            }
            let end = End::new();
            end.recv(1, 0, 64);
            let (mut peer, reply) =
                responder_with(&end, &p2p(RtrKinds::ALL), &with(request(2), asks(kinds)));
            let got = reply.enhanced.unwrap();
            assert!(got.peer_to_peer);
            assert_eq!(
                (got.rtr_write, got.rtr_read, got.rtr_send),
                (kinds.write, kinds.read, kinds.send)
            );
            assert!(end.channel.is_empty(), "not before the RTR message");
            match sent {
                Opcode::Write => peer.empty_write(),
                Opcode::ReadRequest => {
                    peer.read(0xBAD, 1, 0);
                    let response = peer.expect_fpdu();
                    assert_eq!(response.opcode(), Opcode::ReadResponse);
                    assert_eq!((response.tagged().stag.0, response.tagged().to), (0x51, 0x1000));
                    assert!(response.payload().is_empty() && response.header.last());
                }
                _ => peer.send(b""),
            }
            end.established();
            peer.send(b"data");
            assert_eq!(end.received_ok(1).byte_len, 4, "the RTR message took no receive");
            end.send(1, 0, 3);
            assert_eq!(peer.expect_fpdu().untagged().msn, 1);
        }
    }
}

/// If a Write was agreed as the RTR message, a zero-length Send is a message of the application.
// [test:RFC5040-5.3-10]
#[test]
fn zero_length_send_takes_receive() {
    let end = End::new();
    end.recv(1, 0, 64);
    let (mut peer, _) = responder_with(&end, &p2p(RtrKinds::ALL), &with(request(2), asks(WRITE)));
    peer.send(b"");
    assert_eq!(end.received_ok(1).byte_len, 0);
}

#[test]
fn responder_abandons_missing_rtr() {
    let end = End::new();
    let startup_timeout = Duration::from_millis(200);
    let options = p2p(RtrKinds::ALL).startup_timeout(startup_timeout);
    let start = now();
    let (mut peer, _) = responder_with(&end, &options, &with(request(2), asks(WRITE)));
    assert!(matches!(end.failed(), Error::TimedOut { awaits_reply: false, .. }));
    peer.expect_close();
    assert_eq!(now() - start, startup_timeout);
}

/// The peer leaves after our Reply and before its first FPDU. A queue pair that outlives its peers
/// keeps the posted requests and waits for another peer.
#[test]
fn queue_pair_outlives_silent_peer() {
    let options =
        p2p(RtrKinds::ALL).startup_timeout(Duration::from_millis(200)).outlives_peer(true);
    let end = End::new();
    let goes: [fn(Peer); 3] = [
        Peer::reset,
        // The stream ends inside an FPDU.
        |mut peer| {
            peer.raw(&[0, 40, 1]);
            peer.fin();
            peer.rest();
        },
        |mut peer| peer.expect_close(),
    ];
    for (id, go) in goes.into_iter().enumerate() {
        let (peer, _) = responder_with(&end, &options, &with(request(2), asks(WRITE)));
        end.send(id as u64, 0, 5);
        go(peer);
        let error = end.failed();
        assert_eq!(end.qp.state(), QpState::Rts, "{error}");
    }
    let options = options.startup_timeout(Duration::from_secs(20));
    let (mut peer, _) = responder_with(&end, &options, &with(request(2), asks(WRITE)));
    peer.empty_write();
    end.established();
    for id in 0..3 {
        assert_eq!(peer.expect_fpdu().opcode(), Opcode::Send);
        end.sent_ok(id);
    }
}

/// Connections on a path with a long delay are set up concurrently: all of them are established
/// after the time that one needs.
#[test]
fn connections_set_up_concurrently() {
    change_link(|link| link.latency = Duration::from_millis(50));
    let server = End::new();
    let listener = server.listen(&plain());
    let took = |count: usize| {
        let begun = now();
        let client = End::new();
        let clients: Vec<_> = (0..count).map(|_| End::on(&client.device)).collect();
        clients.iter().for_each(|client| client.connect(listener.local_addr(), &plain()));
        let accepted: Vec<_> = (0..count).map(|_| End::on(&server.device)).collect();
        for end in &accepted {
            server.request().accept(&end.qp, None, b"", Some(&end.channel)).unwrap();
        }
        clients.iter().chain(&accepted).for_each(|end| drop(end.established()));
        now() - begun
    };
    let one = took(1);
    assert!(one >= Duration::from_millis(200), "TCP and MPA take a round trip each: {one:?}");
    assert_eq!(took(32), one);
}

// ---------------------------------------------------------------- initiator

// [test:RFC5044-7.1.1-14] [test:RFC6581-9.2-01] [test:RFC6581-9.2-02] [test:RFC5044-4.4-04]
#[test]
fn requests_say_what_the_options_say() {
    let case = |options: ConnConfig, data: &[u8]| -> Frame {
        let port = Port::new();
        let end = End::new();
        end.connect_with(port.addr(), &options, data).unwrap();
        port.accept().startup_frame()
    };
    let two = case(ConnConfig::default().ird(7).ord(9), b"abc");
    assert_eq!(
        (two.revision, two.crc, two.markers, two.reject, two.reserved),
        (2, true, false, false, 0)
    );
    let data = two.enhanced.unwrap();
    assert!(data.peer_to_peer && data.rtr_send && data.rtr_write && data.rtr_read);
    assert_eq!((data.ird, data.ord, &*two.private_data), (7, 9, &b"abc"[..]));
    let one = case(plain().revision(Revision::One).crc(false).markers(true), &[7; 512]);
    assert_eq!((one.revision, one.crc, one.markers, one.enhanced), (1, false, true, None));
    assert_eq!(one.private_data, [7; 512]);
    assert_eq!(case(plain(), &[1; 508]).private_data, [1; 508]);
    let unsure = case(plain().ird(0x3FFF).ord(0x3FFF), b"");
    assert_eq!(unsure.enhanced, Some(enhanced(0x3FFF, 0x3FFF)));
}

#[test]
fn illegal_options_fail_early() {
    let port = Port::new();
    let end = End::new();
    let try_ = |options: ConnConfig, data: &[u8]| end.connect_with(port.addr(), &options, data);
    assert!(matches!(try_(plain(), &[0; 509]), Err(Error::Startup(_))));
    assert!(matches!(try_(plain().revision(Revision::One), &[0; 513]), Err(Error::Startup(_))));
    assert!(matches!(try_(p2p(RtrKinds::NONE), b""), Err(Error::Startup(_))));
    assert!(try_(plain().ird(0x4000), b"").is_err());
    assert!(matches!(try_(plain().startup_timeout(Duration::ZERO), b""), Err(Error::Zero { .. })));
    assert!(port.is_quiet(30));
    assert_eq!(end.qp.state(), QpState::Init);
}

#[test]
fn closed_port_refuses() {
    let closed_port = { Port::new().addr() };
    let end = End::new();
    end.connect(closed_port, &plain());
    assert!(matches!(end.failed(), Error::Refused { .. }));
    assert_eq!(end.qp.state(), QpState::Init);
    // The queue pair can be used for another attempt.
    initiator_with(&end, &plain(), |_| with(reply(2), enhanced(1, 1)));
}

fn reply_fails(bytes: &[u8]) -> Error {
    let end = End::new();
    let port = Port::new();
    end.connect(port.addr(), &plain());
    let mut peer = port.accept();
    peer.startup_frame();
    peer.raw(bytes);
    let error = end.failed();
    assert!(peer.rest().is_empty());
    assert!(port.is_quiet(20), "no fall-back after a byte");
    assert_eq!(end.qp.state(), QpState::Init);
    error
}

// [test:RFC5044-7.1.1-04] [test:RFC5044-7.1.2-08] [test:RFC5044-7.1.2-15]
#[test]
fn replies_that_are_none() {
    for bytes in [
        request(2).emit(),
        b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
        with(reply(3), enhanced(1, 1)).emit(),
        with(reply(1), enhanced(1, 1)).emit(),
        reply(2).emit(),
    ] {
        let error = reply_fails(&bytes);
        assert!(matches!(error, Error::PeerStartup { .. }), "{error:?}");
    }
    let mut long = reply(2).emit();
    long[18..20].copy_from_slice(&513u16.to_be_bytes());
    assert!(matches!(reply_fails(&long), Error::PeerStartup { .. }));
}

#[test]
fn rejection_reported_with_private_data() {
    for revision in [1, 2] {
        let mut no = frame(FrameKind::Reply, revision, b"busy");
        no.reject = true;
        match reply_fails(&no.emit()) {
            Error::Rejected { private_data, .. } => assert_eq!(private_data, b"busy"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn initiator_abandons_silent_responder() {
    let end = End::new();
    let port = Port::new();
    let startup_timeout = Duration::from_millis(100);
    let start = now();
    end.connect(port.addr(), &plain().startup_timeout(startup_timeout));
    let mut peer = port.accept();
    assert!(matches!(end.failed(), Error::TimedOut { awaits_reply: true, .. }));
    peer.startup_frame();
    assert!(peer.rest().is_empty());
    assert_eq!(now() - start, startup_timeout);
}

#[test]
fn fall_back_to_revision_1_once() {
    let end = End::new();
    let port = Port::new();
    end.connect_with(port.addr(), &ConnConfig::default(), b"mine").unwrap();
    let mut first = port.accept();
    assert_eq!(first.startup_frame().revision, 2);
    drop(first);
    let mut second = port.accept();
    let again = second.startup_frame();
    assert_eq!((again.revision, again.enhanced, &*again.private_data), (1, None, &b"mine"[..]));
    second.raw(&reply(1).emit());
    assert_eq!(end.established().negotiated.revision, 1);
    end.recv(1, 0, 64);
    second.send(b"hi");
    end.received_ok(1);
}

#[test]
fn fall_back_not_twice() {
    let end = End::new();
    let port = Port::new();
    end.connect(port.addr(), &plain());
    for _ in 0..2 {
        let mut peer = port.accept();
        peer.startup_frame();
        peer.fin();
        peer.rest();
    }
    assert!(matches!(end.failed(), Error::ClosedInStartup { .. }));
    assert!(port.is_quiet(30));
}

#[test]
fn fall_back_after_a_reset() {
    let port = Port::new();
    let end = End::new();
    end.connect(port.addr(), &plain());
    let mut peer = port.accept();
    assert_eq!(peer.startup_frame().revision, 2);
    peer.reset();
    let mut peer = port.accept();
    assert_eq!(peer.startup_frame().revision, 1);
    peer.reset();
    assert!(matches!(end.failed(), Error::Lost { .. }));
    end.connect(port.addr(), &plain().fallback(false));
    let mut peer = port.accept();
    peer.startup_frame();
    peer.reset();
    assert!(matches!(end.failed(), Error::Lost { .. }));
    assert!(port.is_quiet(30));
}

#[test]
fn no_fallback_after_byte_or_disabled() {
    let port = Port::new();
    let end = End::new();
    end.connect(port.addr(), &plain());
    let mut peer = port.accept();
    peer.startup_frame();
    peer.raw(b"M");
    peer.fin();
    assert!(matches!(end.failed(), Error::ClosedInStartup { .. }));
    end.connect(port.addr(), &plain().fallback(false));
    let mut peer = port.accept();
    peer.startup_frame();
    peer.fin();
    assert!(matches!(end.failed(), Error::ClosedInStartup { .. }));
    assert!(port.is_quiet(30));
}

#[test]
fn fallback_within_same_timeout() {
    let end = End::new();
    let port = Port::new();
    let startup_timeout = Duration::from_millis(300);
    let start = now();
    end.connect(port.addr(), &plain().startup_timeout(startup_timeout));
    let mut peer = port.accept();
    peer.startup_frame();
    pass(&end.device, Duration::from_millis(200));
    drop(peer);
    let mut second = port.accept();
    assert!(matches!(end.failed(), Error::TimedOut { .. }));
    second.startup_frame();
    assert!(second.rest().is_empty());
    assert_eq!(now() - start, startup_timeout);
}

#[test]
fn unanswered_fallback_awaits_no_reply() {
    change_link(|link| link.latency = Duration::from_millis(10));
    let end = End::new();
    let port = Port::new();
    end.connect(port.addr(), &plain().startup_timeout(Duration::from_millis(300)));
    let mut peer = port.accept();
    peer.startup_frame();
    drop(peer);
    // The FIN has arrived, and TCP connects again.
    pass(&end.device, Duration::from_millis(15));
    change_link(|link| link.stalled = true);
    assert!(matches!(end.failed(), Error::TimedOut { awaits_reply: false, .. }));
}

// [test:RFC6581-9.1-07]
#[test]
fn initiator_scales_its_ord_down() {
    let end = End::new();
    let options = plain().ird(8).ord(8);
    initiator_with(&end, &options, |_| with(reply(2), enhanced(3, 8)));
    let attr = end.qp.query();
    assert_eq!((attr.ird, attr.ord), (8, 3));
}

/// The application gets the IRD and ORD of the other end, not the negotiated values, whether the
/// connection is accepted or rejected.
// [test:RFC6581-9.1-01] [test:RFC6581-9.1-10]
#[test]
fn ird_and_ord_of_peer_reported() {
    for said in [Some((3, 40)), None] {
        let data = |frame| match said {
            Some((ird, ord)) => with(frame, enhanced(ird, ord)),
            None => frame,
        };
        // A responder reads them from the Request.
        let end = End::new();
        let listener = end.listen(&plain());
        let _peer = Peer::requesting(listener.local_addr(), &data(request(2)));
        let request = end.request();
        assert_eq!(request.peer_ird_ord(), said);
        end.accept(request);
        assert_eq!(end.established().peer_ird_ord, said);
        // An initiator reads them from the Reply.
        for reject in [false, true] {
            let end = End::new();
            let revision = if said.is_some() { Revision::Two } else { Revision::One };
            let (mut peer, _) = requested(&end, &plain().revision(revision).ird(40));
            peer.raw(&Frame { reject, ..data(reply(revision as u8)) }.emit());
            let reported = match reject {
                false => end.established().peer_ird_ord,
                true => match end.failed() {
                    Error::Rejected { peer_ird_ord, .. } => peer_ird_ord,
                    other => panic!("{other:?}"),
                },
            };
            assert_eq!(reported, said, "rejected: {reject}");
        }
    }
}

// [test:RFC6581-9.1-08] [test:RFC6581-9.1-09]
// [test:RFC6581-9.1-06]
#[test]
fn insufficient_ird_is_terminated() {
    let end = End::new();
    let (mut peer, _) = requested(&end, &plain());
    peer.raw(&with(reply(2), enhanced(4, 5)).emit());
    peer.expect_terminate(2, 0, 6);
    assert!(matches!(end.failed(), Error::PeerRefusal { .. }));
}

// [test:RFC6581-9.2-10] [test:RFC6581-9.2-11]
#[test]
fn no_matching_rtr_is_terminated() {
    let end = End::new();
    let (mut peer, request) = requested(&end, &p2p(WRITE));
    let asked = request.enhanced.unwrap();
    assert!(asked.rtr_write && !asked.rtr_read && !asked.rtr_send);
    peer.raw(&with(reply(2), asks(SEND)).emit());
    peer.expect_terminate(2, 0, 7);
    assert!(matches!(end.failed(), Error::PeerRefusal { .. }));
}

// [test:RFC6581-9.2-09]
#[test]
fn rtr_of_every_kind_as_initiator() {
    for (offered, opcode) in [
        (WRITE, Opcode::Write),
        (READ, Opcode::ReadRequest),
        (SEND, Opcode::Send),
        (RtrKinds::ALL, Opcode::Write),
        (RtrKinds { read: true, ..SEND }, Opcode::ReadRequest),
    ] {
        let end = End::new();
        let (mut peer, _) =
            initiator_with(&end, &p2p(RtrKinds::ALL), |_| with(reply(2), asks(offered)));
        let first = peer.next().unwrap();
        assert_eq!(first.opcode(), opcode);
        if opcode == Opcode::ReadRequest {
            let request = first.read_request();
            assert_eq!(request.len, 0);
            peer.answer(&request, b"");
        } else {
            assert!(first.payload().is_empty() && first.header.last());
        }
        end.send(1, 0, 3);
        let msn = peer.expect_fpdu().untagged().msn;
        assert_eq!(msn, if opcode == Opcode::Send { 2 } else { 1 });
        end.sent_ok(1);
        end.recv(2, 0, 64);
        peer.send(b"back");
        assert_eq!(end.received_ok(2).byte_len, 4);
        // The RTR Read has returned its credit, so all four Reads of ORD are available.
        for id in 10..14 {
            end.op(id, SendOp::Read { remote: Remote::default(), invalidate: None }, 0, 8);
        }
        for _ in 0..4 {
            peer.expect_fpdu().read_request();
        }
    }
}

/// Without an RTR message, the first FPDU of the initiator is the first request that the
/// application posts.
#[test]
fn initiator_without_rtr_sends_after_post() {
    let end = End::new();
    let mut peer = crate::common::initiator(&end);
    peer.expect_silence(80);
    end.send(1, 0, 3);
    assert_eq!(peer.next().unwrap().opcode(), Opcode::Send);
}

// ---------------------------------------------------------------- CRC and Markers

// [test:RFC5044-7.1.1-08] [test:RFC5044-7.1.1-09] [test:RFC5044-7.1.1-11] [test:RFC5044-7.1.1-06] [test:RFC5044-7.1.1-07]
// [test:RFC5044-4.4-07]
#[test]
fn crc_shared_markers_per_direction() {
    for ours in [false, true] {
        for theirs in [false, true] {
            for (markers_in, markers_out) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let options = plain().crc(ours).markers(markers_in);
                let end = End::new();
                let mut asked = request(1);
                asked.crc = theirs;
                asked.markers = markers_out;
                let (mut peer, reply) = responder_with(&end, &options, &asked);
                assert_eq!((reply.crc, reply.markers), (ours || theirs, markers_in));
                end.established();
                exchange(&end, &mut peer);
                let end = End::new();
                let options = options.revision(Revision::One);
                let (mut peer, request) = initiator_with(&end, &options, |_| {
                    let mut answer = crate::peer::reply(1);
                    answer.crc = theirs;
                    answer.markers = markers_out;
                    answer
                });
                assert_eq!((request.crc, request.markers), (ours, markers_in));
                exchange(&end, &mut peer);
            }
        }
    }
}

/// Exchanges messages that are longer than the distance between two Markers, in both directions.
fn exchange(end: &End, peer: &mut Peer) {
    let data = crate::common::pattern(3001);
    end.recv(1, 0, 4000);
    peer.send(&data);
    assert_eq!(end.received_ok(1).byte_len, 3001);
    assert!(crate::common::peek(&end.mr, 0, 3001) == data);
    end.send(2, 0, 3001);
    let mut got = Vec::new();
    loop {
        let segment = peer.next().unwrap();
        assert_eq!(segment.untagged().mo as usize, got.len());
        got.extend_from_slice(segment.payload());
        if segment.header.last() {
            break;
        }
    }
    assert!(got == data);
    end.sent_ok(2);
}

// [test:RFC5044-7.1.1-10] [test:RFC5044-7.1.1-12]
#[test]
fn crc_field_ignored_when_off() {
    let end = End::new();
    let mut asked = request(1);
    asked.crc = false;
    let (mut peer, reply) = responder_with(&end, &plain().crc(false), &asked);
    assert!(!reply.crc);
    end.recv(1, 0, 64);
    let mut bytes = peer.seal(&untagged(Opcode::Send, 0, 1, 0, true, 0, b"data"));
    *bytes.last_mut().unwrap() ^= 0xFF;
    peer.raw(&bytes);
    assert_eq!(end.received_ok(1).byte_len, 4);
}

// ---------------------------------------------------------------- capability exchange

fn exchanging() -> ConnConfig {
    plain().capabilities(CapabilityExchange::On)
}

/// Returns whether requests that need an extension are refused locally.
fn is_foreign(end: &End) -> bool {
    let op = SendOp::FetchAdd { remote: Remote::default(), add: 1, mask: 0 };
    end.op(99, op, 0, 8);
    end.sent().status == WcStatus::LocalQpOperation
}

#[test]
fn echo_and_zeroes_not_uiw() {
    for zero in [false, true] {
        let end = End::new();
        let mut peer = initiator_opt(&end, &exchanging());
        let hello = peer.next().unwrap();
        assert!(hello.is_empty_write());
        let (stag, to) = if zero { (0, 0) } else { (hello.tagged().stag.0, hello.tagged().to) };
        peer.write(stag, to, b"");
        assert!(is_foreign(&end));
    }
}

#[test]
fn capability_request_repeated_to_silent_peer() {
    let end = End::new();
    let mut peer = initiator_opt(&end, &exchanging());
    let first = peer.next().unwrap();
    for _ in 0..2 {
        let again = peer.next().unwrap();
        assert!(again.is_empty_write());
        assert_eq!(again.ulpdu, first.ulpdu);
    }
    assert!(is_foreign(&end));
}

#[test]
fn capability_request_stops_at_first_fpdu() {
    let end = End::new();
    let mut peer = initiator_opt(&end, &exchanging());
    peer.next().unwrap();
    end.recv(1, 0, 64);
    peer.send(b"x");
    end.received_ok(1);
    // One repetition may already have been sent.
    peer.stream.set_read_timeout(Duration::from_millis(60));
    let mut sink = [0; 256];
    let _ = std::io::Read::read(&mut peer.stream, &mut sink);
    peer.expect_silence(150);
}

#[test]
fn uiw_peers_recognised_with_all_rtrs() {
    for rtr in [WRITE, READ, SEND, RtrKinds::ALL] {
        let options = ConnConfig::default().rtr(rtr);
        let (client, server) = pair_of(End::new(), End::new(), &options);
        for (a, b) in [(&client, &server), (&server, &client)] {
            let op = SendOp::FetchAdd { remote: b.remote(8), add: 1, mask: 0 };
            a.op(1, op, 0, 8);
            a.sent_ok(1);
        }
    }
}

#[test]
fn uiw_peers_recognised_without_rtr() {
    for options in [
        ConnConfig::default().peer_to_peer(false),
        ConnConfig::default().revision(Revision::One),
        ConnConfig::default().markers(true),
    ] {
        let (client, server) = pair_of(End::new(), End::new(), &options);
        let op = SendOp::FetchAdd { remote: server.remote(8), add: 1, mask: 0 };
        client.op(1, op, 0, 8);
        client.sent_ok(1);
    }
}

/// The answer to the RTR Read may arrive before the answer to the capability request.
#[test]
fn rtr_read_answer_keeps_peer_unclassified() {
    // The answer of a uiw peer is obtained from a real responder, which gets the capability
    // request.
    let teacher = End::new();
    let (mut oracle, _) =
        responder_with(&teacher, &exchanging(), &with(request(2), enhanced(4, 4)));
    let options = exchanging().peer_to_peer(true).rtr(READ);
    let end = End::new();
    let (mut peer, _) = initiator_with(&end, &options, |_| with(reply(2), asks(READ)));
    let rtr = peer.next().unwrap().read_request();
    let hello = peer.next().unwrap();
    oracle.fpdu(&hello.ulpdu);
    let answer = oracle.next().unwrap();
    peer.answer(&rtr, b"");
    end.op(1, SendOp::FetchAdd { remote: Remote::default(), add: 1, mask: 0 }, 0, 8);
    end.recv(2, 0, 64);
    pass(&end.device, Duration::from_millis(20));
    peer.fpdu(&answer.ulpdu);
    assert_eq!(peer.expect_fpdu().opcode(), Opcode::AtomicRequest);
}

#[test]
fn responder_recognises_foreign_initiator() {
    for rtr in [false, true] {
        let end = End::new();
        let (options, data) = if rtr {
            (exchanging().peer_to_peer(true), asks(RtrKinds::ALL))
        } else {
            (exchanging(), enhanced(4, 4))
        };
        let (mut peer, _) = responder_with(&end, &options, &with(request(2), data));
        peer.empty_write();
        end.established();
        assert!(is_foreign(&end));
    }
    // The peer sends a Send instead of a capability request.
    let end = End::new();
    end.recv(1, 0, 64);
    let (mut peer, _) = responder_with(&end, &exchanging(), &with(request(2), enhanced(4, 4)));
    peer.send(b"x");
    end.established();
    assert!(is_foreign(&end));
    // The peer sends an RTR Send and nothing afterwards.
    let end = End::new();
    let options = exchanging().peer_to_peer(true);
    let (mut peer, _) = responder_with(&end, &options, &with(request(2), asks(SEND)));
    peer.send(b"");
    end.established();
    assert!(is_foreign(&end));
}

#[test]
fn capability_exchange_off_and_assumed() {
    let end = End::new();
    let mut peer = crate::common::initiator(&end);
    assert!(is_foreign(&end));
    // Only that request has failed.
    end.op(9, SendOp::Send, 0, 8);
    assert_eq!(peer.next().unwrap().opcode(), Opcode::Send);
    let end = End::new();
    let options = plain().capabilities(CapabilityExchange::Assume);
    let mut peer = initiator_opt(&end, &options);
    end.op(1, SendOp::SendImm { imm: 1 }, 0, 8);
    // Send with immediate is only supported between uiw peers.
    assert_ne!(end.sent().status, WcStatus::Success);
    end.op(2, SendOp::FetchAdd { remote: Remote::default(), add: 1, mask: 0 }, 0, 8);
    assert_eq!(peer.next().unwrap().opcode(), Opcode::AtomicRequest);
}

#[test]
fn queue_pair_beyond_limits_refused() {
    let end = End::new();
    let cap = QpCap { max_send_wr: end.device.limits().max_qp_wr + 1, ..QpCap::default() };
    let init = QpInit::new(&end.scq, &end.rcq).cap(cap);
    assert!(matches!(end.pd.create_qp(init), Err(Error::Limit { .. })));
}

#[test]
fn refused_connection_retried_until_listening() {
    for port_given in [false, true] {
        let (server, own) = (closed_addr(), closed_addr());
        let end = End::tcp();
        let options = Arc::new(plain().refused_retry_time(Duration::from_secs(10)));
        let local = port_given.then_some(own);
        uiw_verbs::cm::connect(&end.qp, local, server, &options, b"", &end.channel).unwrap();
        for _ in 0..100 {
            end.device.pump();
        }
        assert!(end.channel.is_empty(), "it is asked again");
        let other = End::tcp();
        let listener =
            Listener::bind(&other.device, server, 4, &Arc::new(plain()), &other.channel).unwrap();
        let request = next_request(&other.device, &other.channel);
        assert!(!port_given || request.peer_addr() == own, "{request:?}");
        request.accept(&other.qp, None, b"", None).unwrap();
        assert_eq!(end.established().peer, listener.local_addr());
    }
}

#[test]
fn retries_of_a_refused_connection_end() {
    let closed_port = Port::new().addr();
    let end = End::new();
    end.connect(closed_port, &plain().refused_retry_time(Duration::from_millis(20)));
    let error = end.failed();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    // The queue pair is free for a peer that listens.
    crate::common::initiator(&end);
}

/// On loopback, the system may choose the destination port as the local port if nothing listens on
/// it. TCP then connects to itself.
#[test]
fn tcp_self_connection_is_refusal() {
    let closed_port = closed_addr();
    let end = End::tcp();
    let options = Arc::new(plain().refused_retry_time(Duration::ZERO));
    uiw_verbs::cm::connect(&end.qp, Some(closed_port), closed_port, &options, b"", &end.channel)
        .unwrap();
    let error = end.failed();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
}

#[test]
fn acceptor_chooses_congestion_control() {
    let named = |name: &str| {
        let mut options = ConnConfig::default();
        options.stream.congestion = Some(name.to_owned());
        Arc::new(options)
    };
    let (client, server) = (End::tcp(), End::tcp());
    let listener = server.listen(&ConnConfig::default());
    client.connect(listener.local_addr(), &ConnConfig::default());
    server.request().accept(&server.qp, Some(&named("reno")), b"", None).unwrap();
    client.established();
    server.established();
    assert_eq!(server.qp.path().unwrap().stream.congestion.as_deref(), Some("reno"));
    let (client, server) = (End::tcp(), End::tcp());
    let listener = server.listen(&ConnConfig::default());
    client.connect(listener.local_addr(), &ConnConfig::default());
    let error =
        server.request().accept(&server.qp, Some(&named("nonsuch")), b"", None).unwrap_err();
    assert!(error.to_string().contains("`nonsuch` is not available here"), "{error}");
    assert!(matches!(client.failed(), Error::Rejected { .. }));
    assert_eq!(server.qp.state(), QpState::Init);
}
