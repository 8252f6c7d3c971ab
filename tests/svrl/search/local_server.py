"""A server on loopback that answers as a test wrote down, also badly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE_S = 0.05
"""Seconds between the bytes of an answer that trickles."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        status, body, headers: as sent.
        wait_s: seconds before it.
        sent: bytes of the body after which the connection is cut; None for all.
        trickle: a byte at a time.
    """

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    wait_s: float = 0.0
    sent: int | None = None
    trickle: bool = False


def as_json(value: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode())


HANGS_UP = Answer(status=0)
"""Closes the connection without a word."""


@dataclass(frozen=True)
class Seen:
    """A request that came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class LocalServer:
    """Answers in turn; the last answer is repeated."""

    url: str
    answers: Sequence[Answer]
    seen: list[Seen] = field(default_factory=list)


@contextmanager
def serve(*answers: Answer) -> Iterator[LocalServer]:
    lock = threading.Lock()

    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                turn = min(len(server.seen), len(server.answers) - 1)
                seen = Seen(self.command, self.path, dict(self.headers.items()), body)
                server.seen.append(seen)
            reply = server.answers[turn]
            time.sleep(reply.wait_s)
            if reply.status == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if reply.trickle:
                for byte in reply.body:
                    self.wfile.write(bytes([byte]))
                    time.sleep(PIECE_S)
            else:
                self.wfile.write(reply.body[: reply.sent])
            if reply.sent is not None:
                self.close_connection = True

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None: ...

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """The client gave up before the answer ended: that is what is tested."""

    with Quiet(("127.0.0.1", 0), Handler) as listening:
        server = LocalServer(f"http://127.0.0.1:{listening.server_port}", answers)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
            # a server that dies takes the connections that were kept open with it
            for connection in connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
