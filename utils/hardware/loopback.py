"""Measures the loopback network of this machine (TCP through 127.0.0.1): the link of gloo's ranks on one node.

Its speed is no constant: it depends on the processor and on what else runs, so it is measured, not listed in
``utils.hardware.links``.
"""

from __future__ import annotations

import datetime
import socket
import threading
import time
from collections.abc import Sequence
from statistics import median

from utils.hardware import links
from utils.hardware.links import Link

SIZES = (1, 1_000, 100_000, 1_000_000, 10_000_000)


def measure_loopback(sizes: Sequence[int] = SIZES, repeats: int = 7) -> Link:
    """α and β of a TCP connection to this machine itself, fitted to measured times.

    One message of each size goes there, and one byte comes back; half of the shortest such round trip is taken off,
    so what remains is the way there. Medians of ``repeats``. Takes less than a second.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        for end in (sender, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=_answer, args=(receiver, [n for n in sizes for _ in range(repeats)]))
        thread.start()
        times = [median(_round_trip(sender, n) for _ in range(repeats)) for n in sizes]
        thread.join()
    way_back = min(times) / 2
    times = [max(t - way_back, way_back) for t in times]
    return links.fit(sizes, times, "loopback TCP, measured here", datetime.date.today().year)


def _round_trip(sender: socket.socket, size: int) -> float:
    message = bytes(size)
    start = time.perf_counter()
    sender.sendall(message)
    sender.recv(1)
    return time.perf_counter() - start


def _answer(receiver: socket.socket, sizes: Sequence[int]) -> None:
    """Receive messages of these sizes and answer each with one byte."""
    buffer = bytearray(max(sizes))
    with receiver:
        for size in sizes:
            view = memoryview(buffer)[:size]
            while view:
                view = view[receiver.recv_into(view) :]
            receiver.sendall(b"k")
