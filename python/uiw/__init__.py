"""iWARP in user space: RDMA over TCP, without RDMA hardware, kernel module or root.

>>> import threading, uiw
>>> listener = uiw.Device().listen(("127.0.0.1", 0))
>>> def serve():
...     with listener.accept() as connection:
...         while (message := connection.recv()) is not None:
...             connection.send(message.upper())
>>> server = threading.Thread(target=serve)
>>> server.start()
>>> with uiw.Device().connect(listener.address) as connection:
...     connection.send(b"good day")
...     print(connection.recv())
b'GOOD DAY'
>>> server.join()

Calls that wait let other threads run. ``uiw.aio`` has the same classes for asyncio.
"""

import atexit

from ._uiw import Connection, Device, Listener, Memory, Remote, __version__, flush_capture

atexit.register(flush_capture)

__all__ = ["Connection", "Device", "Listener", "Memory", "Remote", "__version__"]
