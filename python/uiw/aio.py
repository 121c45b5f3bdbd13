"""The classes of ``uiw`` for asyncio. The event loop drives the device, without another thread.

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
        self.next_step = None
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
        if self.next_step is not None:
            self.next_step.cancel()
            self.next_step = None
        for future, _ in self.futures.values():
            if not future.done():
                future.set_exception(RuntimeError("the device is closed"))
        self.futures.clear()

    def step(self):
        done, has_more = self.core.step()
        for number, result, error in done:
            future, kept = self.futures.pop(number, (None, None))
            if future is None:
                continue
            if future.done():
                # The call was cancelled, but its task has not run yet.
                if error is None and kept is not None:
                    kept.append(result)
            elif error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        if not self.fds:
            return
        if has_more and self.next_step is None:
            self.next_step = self.loop.call_soon(self.go_on)
        deadline = self.core.deadline()
        if self.timer is not None:
            # A timer that expires earlier does no harm.
            if deadline is None or self.timer.when() <= self.loop.time() + deadline:
                return
            self.timer.cancel()
        self.timer = None if deadline is None else self.loop.call_later(deadline, self.due)

    def due(self):
        self.timer = None
        self.step()

    def go_on(self):
        self.next_step = None
        self.step()

    def opened(self):
        """Returns the device of the extension module. Raises RuntimeError if it is closed."""
        if not self.fds:
            raise RuntimeError("the device is closed")
        return self.core

    async def call(self, number, kept=None):
        """Waits for a call. If it is cancelled after it has completed, its result is added to ``kept``."""
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
        """Returns the first address of a name, which is resolved without blocking the event loop."""
        host, port = address
        try:
            ipaddress.ip_address(host)
        except ValueError:
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            host, port = found[0][4][:2]
        return host, port


class Device:
    """Creates connections and memory in the running event loop. Functions of a closed device raise RuntimeError.

Otherwise all classes raise the exceptions of the classes in ``uiw``. Use asyncio for time limits.
    """

    def __init__(self):
        self._driver = _Driver()

    async def connect(self, address, *, private_data=None, max_message=None):
        """Connects to a listener."""
        address = await self._driver.resolved(address)
        number = self._driver.opened().connect(address, private_data, max_message)
        return Connection(self._driver, await self._driver.call(number))

    def listen(self, address, *, private_data=None, max_message=None):
        """Listens at (host, port). Port 0 selects a free port."""
        return Listener(self._driver, self._driver.opened().listen(address, private_data, max_message))

    def memory(self, size, *, read=False, write=False, atomic=False):
        """Allocates zeroed memory, and gives these rights to peers."""
        return self._driver.opened().memory(size, read, write, atomic)

    def close(self):
        """Removes the device from the event loop, which no longer drives it."""
        self._driver.close()


class Listener:
    """Listening port."""

    def __init__(self, driver, core):
        self._driver = driver
        self._core = core
        self._kept = deque()

    @property
    def address(self):
        """Host and port."""
        return self._core.address

    async def accept(self):
        """Waits for the next peer that connects. Cancelling the call loses no peer."""
        if self._kept:
            core = self._kept.popleft()
        else:
            core = await self._driver.call(self._core.accept(), self._kept)
        return Connection(self._driver, core)

    def close(self):
        """Stops listening. Waiting calls of ``accept`` raise OSError. Accepted connections continue."""
        self._core.close()
        self._kept.clear()
        self._driver.step()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()


class Connection:
    """Connection to a peer."""

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
        """Private data of the peer."""
        return self._core.private_data

    async def send(self, data):
        """Sends the bytes of ``data`` as one message."""
        await self._driver.call(self._core.send(data))

    async def recv(self):
        """Waits for the next message. Returns ``None`` after an orderly close. Cancelling the call loses no message."""
        if self._kept:
            return self._kept.popleft()
        return await self._driver.call(self._core.recv(), self._kept)

    async def write(self, data, remote):
        """Writes the bytes of ``data`` to the peer's memory. The peer's program is not notified."""
        await self._driver.call(self._core.write(data, remote))

    async def read(self, remote):
        """Reads the peer's memory."""
        return await self._driver.call(self._core.read(remote))

    async def read_into(self, target, remote):
        """Fills ``target`` with bytes of the peer's memory."""
        with memoryview(target) as view, view.cast("B") as part:
            part[:] = await self.read(remote.slice(0, part.nbytes))

    async def fetch_add(self, remote, add):
        """Atomically adds to the 8-byte integer in the peer's memory, and returns the previous value."""
        return await self._driver.call(self._core.fetch_add(remote, add))

    async def compare_swap(self, remote, compare, swap):
        """Atomically replaces the 8-byte integer in the peer's memory if it equals ``compare``. Returns the previous value."""
        return await self._driver.call(self._core.compare_swap(remote, compare, swap))

    async def abort(self):
        """Ends the connection immediately, even if the peer does not respond."""
        await self._driver.call(self._core.abort())

    async def close(self):
        """Closes the connection in order: messages that were sent before still arrive."""
        await self._driver.call(self._core.close())

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        await self.close()
