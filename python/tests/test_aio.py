"""Tests of the classes for asyncio."""

import array
import asyncio
import doctest
import threading

import pytest
import uiw
from uiw import aio


def run(main):
    """Runs a test of both ends of a connection in one event loop."""

    async def both():
        device = aio.Device()
        listener = device.listen(("127.0.0.1", 0), private_data=b"of the server")
        client, server = await asyncio.gather(
            device.connect(listener.address, private_data=b"of the client"), listener.accept()
        )
        await main(device, client, server)
        await asyncio.gather(client.close(), server.close())
        device.close()

    asyncio.run(asyncio.wait_for(both(), 60))


def test_documentation():
    assert doctest.testmod(aio).failed == 0


def test_messages():
    async def main(_, client, server):
        assert (client.private_data, server.private_data) == (b"of the server", b"of the client")
        waiting = asyncio.create_task(server.recv())
        await asyncio.sleep(0.01)
        await client.send(array.array("B", b"good day"))
        assert await waiting == b"good day"
        # Many calls at the same time.
        messages = [bytes([n]) * n * 100 for n in range(100)]
        received, _ = await asyncio.gather(
            asyncio.gather(*(server.recv() for _ in messages)), asyncio.gather(*map(client.send, messages))
        )
        assert sorted(received, key=len) == messages

    run(main)


def test_reads_writes_and_atomics():
    async def main(device, client, server):
        memory = device.memory(32, read=True, write=True, atomic=True)
        await server.send(bytes(memory.remote()))
        remote = uiw.Remote(await client.recv())
        await client.write(b"by a peer", remote.slice(8))
        assert await client.read(remote.slice(8, 9)) == b"by a peer"
        target = array.array("H", [0])
        await client.read_into(target, remote.slice(8))
        assert target.tobytes() == b"by"
        assert [await client.fetch_add(remote, 3), await client.compare_swap(remote, 3, 9)] == [0, 3]
        assert memory.load() == 9

    run(main)


def test_a_call_that_is_cancelled_loses_no_message():
    async def main(_, client, server):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(server.recv(), 0.05)
        await client.send(b"later")
        assert await server.recv() == b"later"

    run(main)


def test_a_call_that_is_cancelled_as_it_ends_loses_nothing():
    async def main(device, client, server):
        for n in range(200):
            waiting = asyncio.create_task(server.recv())
            await asyncio.sleep(0)
            await client.send(b"%d" % n)
            # Sometimes the message has already arrived, but the task has not run yet.
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await asyncio.wait_for(server.recv(), 20) == b"%d" % n
        listener = device.listen(("127.0.0.1", 0))
        for _ in range(20):
            waiting = asyncio.create_task(listener.accept())
            await asyncio.sleep(0)
            mine = await device.connect(listener.address)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            theirs = waiting.result() if not waiting.cancelled() else await listener.accept()
            await asyncio.gather(mine.close(), theirs.close())

    run(main)


def test_a_name_is_looked_up_beside_the_loop():
    async def main(device, client, server):
        listener = device.listen(("127.0.0.1", 0))
        _, port = listener.address
        mine, theirs = await asyncio.gather(device.connect(("localhost", port)), listener.accept())
        await asyncio.gather(mine.close(), theirs.close())
        with pytest.raises(OSError):
            await device.connect(("no-such-name.invalid", 1))

    run(main)


def test_a_length_of_a_peers():
    async def main(_, client, server):
        with pytest.raises(ValueError, match="1099511627776 bytes"):
            await client.read(uiw.Remote(bytes(8) + (2**40).to_bytes(8, "big") + bytes(4)))

    run(main)


def test_the_peer_closes_and_is_absent():
    async def main(device, client, server):
        closing = asyncio.create_task(client.close())
        assert await server.recv() is None
        await closing
        listener = device.listen(("127.0.0.1", 0))
        address = listener.address
        del listener
        with pytest.raises(OSError):
            await device.connect(address)

    run(main)


def test_a_peer_in_another_thread():
    listener = uiw.Device().listen(("127.0.0.1", 0))

    def serve():
        with listener.accept(timeout=20) as connection:
            while (message := connection.recv(timeout=20)) is not None:
                connection.send(message[::-1])

    thread = threading.Thread(target=serve)
    thread.start()

    async def main():
        device = aio.Device()
        async with await device.connect(listener.address) as connection:
            for n in range(200):
                await connection.send(b"%d " % n)
                assert await connection.recv() == (b"%d " % n)[::-1]
        device.close()
        with pytest.raises(RuntimeError):
            await connection.recv()

    asyncio.run(asyncio.wait_for(main(), 60))
    thread.join()


def test_listener_closes():
    async def main():
        device = aio.Device()
        with device.listen(("127.0.0.1", 0)) as listener:
            waiting = asyncio.create_task(listener.accept())
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="the listener is closed"):
            await waiting
        with pytest.raises(OSError, match="the listener is closed"):
            await listener.accept()
        with pytest.raises(ConnectionRefusedError):
            await device.connect(listener.address)
        device.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_closed_device_refuses_calls():
    async def main():
        device = aio.Device()
        device.close()
        for call in (lambda: device.memory(8), lambda: device.listen(("127.0.0.1", 0))):
            with pytest.raises(RuntimeError, match="the device is closed"):
                call()
        with pytest.raises(RuntimeError, match="the device is closed"):
            await device.connect(("127.0.0.1", 1))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_close_fails_waiting_calls():
    async def main():
        device = aio.Device()
        listener = device.listen(("127.0.0.1", 0))
        client, server = await asyncio.gather(device.connect(listener.address), listener.accept())
        waiting = asyncio.create_task(server.recv())
        await client.send(b"received")
        assert await waiting == b"received"
        waiting = asyncio.create_task(server.recv())
        await asyncio.sleep(0)
        device.close()
        with pytest.raises(RuntimeError, match="the device is closed"):
            await waiting

    asyncio.run(asyncio.wait_for(main(), 60))


def test_abort():
    async def main(_, client, server):
        waiting = asyncio.create_task(server.recv())
        await client.abort()
        with pytest.raises(ConnectionAbortedError):
            await waiting

    run(main)
