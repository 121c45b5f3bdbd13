"""The classes of ``uiw`` for asyncio. The event loop drives the device: there is no other thread.

>>> import asyncio
>>> from uiw import aio
>>> async def main():
...     device = aio.Device()
...     listener = device.listen(("127.0.0.1", 0))
...     client, server = await asyncio.gather(device.connect(listener.address), listener.accept())
...     await client.send(b"good day")
...     print(await server.recv())
...     await asyncio.gather(client.close(), server.close())
...     device.close()
>>> asyncio.run(main())
b'good day'
"""

import asyncio
import ipaddress
import socket
from collections import deque

from ._uiw import AsyncDevice as _AsyncDevice

__all__ = ["Connection", "Device", "Listener"]


class _Driver:
    """Drives a device from an event loop, and completes the futures of its calls."""

    def __init__(self):
        self.core = _AsyncDevice()
        self.loop = asyncio.get_running_loop()
        self.futures = {}
        self.timer = None
        self.fds = self.core.fds()
        for fd in self.fds:
            self.loop.add_reader(fd, self.step)

    def close(self):
        for fd in self.fds:
            self.loop.remove_reader(fd)
        self.fds = []
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        for future, _ in self.futures.values():
            future.cancel()
        self.futures.clear()

    def step(self):
        for number, result, error in self.core.step():
            future, kept = self.futures.pop(number, (None, None))
            if future is None:
                continue
            if future.done():
                # Cancelled: its task runs after this.
                if error is None and kept is not None:
                    kept.append(result)
            elif error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if not self.fds:
            return
        deadline = self.core.deadline()
        if self.timer is not None:
            # One that is due earlier does no harm.
            if deadline is None or self.timer.when() <= self.loop.time() + deadline:
                return
            self.timer.cancel()
        self.timer = None if deadline is None else self.loop.call_later(deadline, self.due)

    def due(self):
        self.timer = None
        self.step()

    def opened(self):
        """The device in Rust. Raises RuntimeError when it is closed."""
        if not self.fds:
            raise RuntimeError("the device is closed")
        return self.core

    async def call(self, number, kept=None):
        """Waits for a call. If it is cancelled when it is done already, its result goes to ``kept``."""
        if not self.fds:
            self.core.cancel(number)
            self.opened()
        future = self.loop.create_future()
        self.futures[number] = (future, kept)
        self.step()
        try:
            return await future
        except asyncio.CancelledError:
            if self.futures.pop(number, None) is not None:
                self.core.cancel(number)
            elif kept is not None and future.done() and not future.cancelled() and future.exception() is None:
                kept.append(future.result())
            raise

    async def resolved(self, address):
        """The first address of a name, looked up beside the event loop."""
        host, port = address
        try:
            ipaddress.ip_address(host)
        except ValueError:
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            host, port = found[0][4][:2]
        return host, port


class Device:
    """Makes connections and memory, in the event loop that runs. Functions of a closed device raise RuntimeError.

    The exceptions of all classes are otherwise those of the classes in ``uiw``; time limits are asyncio's.
    """

    def __init__(self):
        self._driver = _Driver()

    async def connect(self, address, *, private_data=None, max_message=None):
        """Connects to a listener."""
        address = await self._driver.resolved(address)
        number = self._driver.opened().connect(address, private_data, max_message)
        return Connection(self._driver, await self._driver.call(number))

    def listen(self, address, *, private_data=None, max_message=None):
        """Listens; port 0 takes a free one."""
        return Listener(self._driver, self._driver.opened().listen(address, private_data, max_message))

    def memory(self, size, *, read=False, write=False, atomic=False):
        """Zeroed memory that peers reach."""
        return self._driver.opened().memory(size, read, write, atomic)

    def close(self):
        """Takes the device out of the event loop: nothing moves any more."""
        self._driver.close()


class Listener:
    """A port on which peers connect."""

    def __init__(self, driver, core):
        self._driver = driver
        self._core = core
        self._kept = deque()

    @property
    def address(self):
        """Host and port."""
        return self._core.address

    async def accept(self):
        """The next peer that connects. A call that is cancelled loses no peer."""
        if self._kept:
            core = self._kept.popleft()
        else:
            core = await self._driver.call(self._core.accept(), self._kept)
        return Connection(self._driver, core)

    def close(self):
        """Stops listening. Calls of ``accept`` that wait raise OSError; connections that were accepted go on."""
        self._core.close()
        self._kept.clear()
        self._driver.step()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()


class Connection:
    """A connection."""

    def __init__(self, driver, core):
        self._driver = driver
        self._core = core
        self._kept = deque()

    @property
    def peer(self):
        """Host and port of the peer."""
        return self._core.peer

    @property
    def private_data(self):
        """The peer's private data."""
        return self._core.private_data

    async def send(self, data):
        """Sends the bytes of ``data`` as one message."""
        await self._driver.call(self._core.send(data))

    async def recv(self):
        """The next message; ``None`` when the connection was closed in order. A call that is cancelled loses no message."""
        if self._kept:
            return self._kept.popleft()
        return await self._driver.call(self._core.recv(), self._kept)

    async def write(self, data, remote):
        """Writes the bytes of ``data`` to a peer's memory. The peer's program does not learn of it."""
        await self._driver.call(self._core.write(data, remote))

    async def read(self, remote):
        """Reads a peer's memory."""
        return await self._driver.call(self._core.read(remote))

    async def read_into(self, target, remote):
        """Reads as many bytes of a peer's memory as ``target`` has."""
        with memoryview(target) as view, view.cast("B") as part:
            part[:] = await self.read(remote.slice(0, part.nbytes))

    async def fetch_add(self, remote, add):
        """Adds to eight bytes of a peer's memory, atomically; returns what they were."""
        return await self._driver.call(self._core.fetch_add(remote, add))

    async def compare_swap(self, remote, compare, swap):
        """Replaces eight bytes of a peer's memory if they are ``compare``, atomically; returns what they were."""
        return await self._driver.call(self._core.compare_swap(remote, compare, swap))

    async def abort(self):
        """Ends the connection at once, even if the peer does not answer."""
        await self._driver.call(self._core.abort())

    async def close(self):
        """Closes in order: what was sent before arrives."""
        await self._driver.call(self._core.close())

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        await self.close()
