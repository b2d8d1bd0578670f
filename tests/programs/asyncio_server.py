"""An echo server on asyncio's streams: every connection gets back what it sends.

usage: asyncio_server.py ADDRESS PORT [DIRECTORY]

With the directory of uvloop's package it runs on uvloop.
"""

import asyncio
import signal
import sys


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def main(address, port):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with await asyncio.start_server(echo, address, port):
        await stop.wait()


run = asyncio.run
if len(sys.argv) > 3:
    sys.path.insert(0, sys.argv[3])
    import uvloop

    run = uvloop.run
run(main(sys.argv[1], int(sys.argv[2])))
