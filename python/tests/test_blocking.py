"""Tests of the blocking classes: all operations, objects of all kinds, and invalid arguments."""

import array
import errno
import doctest
import signal
import threading

import pytest
import uiw


@pytest.fixture
def pair():
    """Returns both ends of a connection, each on its own device."""
    server_device, client_device = uiw.Device(), uiw.Device()
    listener = server_device.listen(("127.0.0.1", 0), private_data=b"of the server")
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept(timeout=20)))
    thread.start()
    client = client_device.connect(listener.address, timeout=20, private_data=b"of the client")
    thread.join()
    yield client, accepted[0], server_device
    # Closing a connection waits for the peer.
    thread = threading.Thread(target=accepted[0].close)
    thread.start()
    client.close(timeout=20)
    thread.join()


def test_documentation():
    assert doctest.testmod(uiw).failed == 0
    assert doctest.testmod(uiw).attempted > 0


def test_messages_in_both_directions(pair):
    client, server, _ = pair
    assert (client.private_data, server.private_data) == (b"of the server", b"of the client")
    for data in [b"bytes", bytearray(b"bytearray"), memoryview(b"a view")[2:], array.array("I", [1, 2**31])]:
        client.send(data)
        assert server.recv(timeout=20) == bytes(memoryview(data).cast("B"))
    server.send(b"")
    assert client.recv(timeout=20) == b""
    long = bytes(range(256)) * 4096
    client.send(long)
    assert server.recv(timeout=20) == long


def test_messages_into_objects(pair):
    client, server, _ = pair
    target = bytearray(b"........")
    client.send(b"abc")
    assert server.recv_into(target, timeout=20) == 3
    assert target == b"abc....."
    with pytest.raises(BufferError):
        server.recv_into(b"read-only", timeout=20)
    client.send(b"123456789")
    with pytest.raises(BufferError):
        server.recv_into(target, timeout=20)
    # The next call returns the message.
    assert server.recv(timeout=20) == b"123456789"
    with pytest.raises(TypeError):
        client.send("text")
    numbers = array.array("H", [0, 0])
    client.send(array.array("H", [7, 513]))
    assert server.recv_into(numbers, timeout=20) == 4
    assert list(numbers) == [7, 513]


def test_reads_writes_and_atomics(pair):
    client, server, device = pair
    memory = device.memory(64, read=True, write=True, atomic=True)
    server.send(bytes(memory.remote()))
    remote = uiw.Remote(client.recv(timeout=20))
    assert (len(remote), remote == memory.remote()) == (64, True)
    client.write(array.array("B", b"by a peer"), remote.slice(8, 16))
    assert client.read(remote.slice(8, 9)) == b"by a peer"
    assert memory.read(8, 9) == b"by a peer"
    memory.write(b"here", offset=20)
    target = bytearray(4)
    client.read_into(target, remote.slice(20))
    assert target == b"here"
    assert [client.fetch_add(remote, 5), client.fetch_add(remote, 2)] == [0, 5]
    assert client.compare_swap(remote, 7, 2**64 - 1) == 7
    assert client.compare_swap(remote, 7, 1) == 2**64 - 1
    assert (memory.load(), memory.fetch_add(2), memory.load()) == (2**64 - 1, 2**64 - 1, 1)


def test_what_is_not_granted_is_refused(pair):
    client, server, device = pair
    memory = device.memory(16, read=True)
    with pytest.raises(ValueError):
        memory.remote(8, 9)
    with pytest.raises(ValueError):
        memory.write(b"12345", offset=12)
    with pytest.raises(ValueError):
        uiw.Remote(b"too short")
    with pytest.raises(ValueError):
        client.read_into(bytearray(17), memory.remote())
    assert client.read(memory.remote()) == bytes(16)
    client.write(b"not granted", memory.remote())
    with pytest.raises(OSError):
        client.recv(timeout=20)


def test_a_length_of_a_peers(pair):
    client, _, _ = pair
    with pytest.raises(ValueError, match="1099511627776 bytes"):
        client.read(uiw.Remote(bytes(8) + (2**40).to_bytes(8, "big") + bytes(4)))


def test_every_wait_has_a_limit(pair):
    client, server, device = pair
    memory = device.memory(16, read=True, write=True, atomic=True)
    remote = memory.remote()
    for call in (
        lambda: client.read(remote, timeout=20),
        lambda: client.read_into(bytearray(8), remote, timeout=20),
        lambda: client.write(b"here", remote, timeout=20),
        lambda: client.fetch_add(remote, 1, timeout=20),
        lambda: client.compare_swap(remote, 1, 2, timeout=20),
    ):
        call()
    with pytest.raises(TimeoutError):
        while True:
            # The peer receives no messages, so it grants no more credits.
            client.send(bytes(1 << 20), timeout=0.2)
    while True:
        try:
            assert len(server.recv(timeout=1)) == 1 << 20
        except TimeoutError:
            break


def test_errors_are_those_of_python(pair):
    client, _, device = pair
    with pytest.raises(TimeoutError):
        client.recv(timeout=0.05)
    listener = device.listen(("127.0.0.1", 0))
    with pytest.raises(TimeoutError):
        listener.accept(timeout=0.05)
    with pytest.raises(ValueError):
        client.recv(timeout=-1)
    address = listener.address
    del listener
    with pytest.raises(OSError):
        device.connect(address, timeout=20)


def test_the_peer_closes():
    listener = uiw.Device().listen(("127.0.0.1", 0))

    def serve():
        with listener.accept(timeout=20) as connection:
            connection.send(b"last")

    thread = threading.Thread(target=serve)
    thread.start()
    with uiw.Device().connect(listener.address) as client:
        assert client.recv(timeout=20) == b"last"
        assert client.recv(timeout=20) is None
        assert client.recv_into(bytearray(1), timeout=20) is None
    thread.join()


def test_other_threads_run_while_a_call_waits(pair):
    client, server, _ = pair
    received = []
    thread = threading.Thread(target=lambda: received.append(server.recv(timeout=20)))
    thread.start()
    # This would not end if the other thread kept the interpreter's lock.
    assert sum(range(1000)) == 499500
    client.send(b"for the other thread")
    thread.join()
    assert received == [b"for the other thread"]


def test_a_signal_ends_a_wait(pair):
    class Ended(Exception):
        pass

    def end(*_):
        raise Ended

    client, _, _ = pair
    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Ended):
            client.recv()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_listener_closes():
    device = uiw.Device()
    with device.listen(("127.0.0.1", 0)) as listener:
        address = listener.address
        failed = []

        def accept():
            with pytest.raises(OSError, match="the listener is closed") as raised:
                listener.accept(timeout=20)
            failed.append(raised.value.errno)

        thread = threading.Thread(target=accept)
        thread.start()
        listener.close()
        thread.join()
        assert failed == [errno.EBADF]
    with pytest.raises(OSError):
        listener.accept(timeout=20)
    assert listener.address == address
    with pytest.raises(ConnectionRefusedError):
        device.connect(address, timeout=20)


def test_operations_after_the_end(pair):
    client, server, _ = pair
    thread = threading.Thread(target=server.recv)
    thread.start()
    client.close(timeout=20)
    thread.join()
    with pytest.raises(BrokenPipeError, match="the connection is closed"):
        client.send(b"late", timeout=20)


def test_abort_ends_a_wait(pair):
    client, server, _ = pair
    failed = []

    def receive():
        with pytest.raises(ConnectionAbortedError, match="aborted by this end"):
            client.recv(timeout=20)
        failed.append(True)

    thread = threading.Thread(target=receive)
    thread.start()
    client.abort()
    thread.join()
    assert failed
    with pytest.raises(ConnectionAbortedError, match="the peer terminated the stream"):
        server.recv(timeout=20)


def test_long_message_is_refused_with_its_length():
    device = uiw.Device()
    listener = device.listen(("127.0.0.1", 0), max_message=1000)
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept(timeout=20)))
    thread.start()
    client = device.connect(listener.address, timeout=20)
    thread.join()
    client.send(bytes(20_000), timeout=20)
    with pytest.raises(OSError, match="20000 bytes, and there is room for 1000"):
        accepted[0].recv(timeout=20)


def test_exceptions_documented():
    for function in (uiw.Device.connect, uiw.Device.listen, uiw.Listener.accept, uiw.Connection.send, uiw.Connection.recv):
        assert "Error" in function.__doc__
