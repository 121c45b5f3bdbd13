"""Round trips of 4 KiB in asyncio: compares uiw.aio with asyncio's TCP streams, alternately, between two processes on this machine.

    python python/bench/round_trips.py
"""

import asyncio
import statistics
import subprocess
import sys
import time

from uiw import aio

SIZE = 4096
ROUND_TRIPS = 2000
TURNS = 7


async def server():
    """Echoes on both connections, until the client of uiw closes."""
    listener = aio.Device().listen(("127.0.0.1", 0))

    async def echo(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    streams = await asyncio.start_server(echo, "127.0.0.1", 0)
    print(listener.address[1], streams.sockets[0].getsockname()[1], flush=True)
    connection = await listener.accept()
    while (message := await connection.recv()) is not None:
        await connection.send(message)


async def microseconds(round_trip):
    """Returns the mean of one run."""
    start = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        await round_trip()
    return (time.perf_counter() - start) / ROUND_TRIPS * 1e6


async def client(port, stream_port):
    connection = await aio.Device().connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection("127.0.0.1", stream_port)
    data = bytes(SIZE)

    async def messages():
        await connection.send(data)
        await connection.recv()

    async def streams():
        writer.write(data)
        await writer.drain()
        await reader.readexactly(SIZE)

    pairs = [(await microseconds(messages), await microseconds(streams)) for _ in range(TURNS)]
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    for name, times in zip(["uiw", "TCP"], zip(*pairs)):
        print(f"{name}: median {statistics.median(times):.1f} us, {min(times):.1f} to {max(times):.1f}")
    print(f"ratio: median {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f}")
    writer.close()
    await writer.wait_closed()
    await connection.close()


if sys.argv[1:] == ["server"]:
    asyncio.run(server())
else:
    with subprocess.Popen([sys.executable, __file__, "server"], stdout=subprocess.PIPE, text=True) as process:
        asyncio.run(client(*map(int, process.stdout.readline().split())))
