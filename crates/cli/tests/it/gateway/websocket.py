"""Both ends of a WebSocket: `serve` prints its port and echoes messages, `call PORT` sends messages and checks the echo."""

import sys

from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import connect
from websockets.sync.server import serve


def echo(socket):
    for message in socket:
        if message == "bye":
            socket.close(code=1000, reason="as you say")
            return
        socket.send(message)


def call(port):
    with connect(f"ws://127.0.0.1:{port}/chat", subprotocols=None, max_size=None) as socket:
        messages = ["hello", "", "äöü", b"\x00\x01\xff", "x" * 1_000_000, b"y" * 1_000_000]
        for message in messages:
            socket.send(message)
            assert socket.recv(timeout=60) == message, f"{message[:20]!r} was not echoed"
        # Pipelined messages with a ping after them.
        for number in range(100):
            socket.send(str(number))
        pong = socket.ping()
        assert [socket.recv(timeout=60) for _ in range(100)] == [str(number) for number in range(100)]
        assert pong.wait(timeout=60)
        socket.send("bye")
        try:
            socket.recv(timeout=60)
            raise AssertionError("the connection is still open")
        except ConnectionClosedOK as closed:
            assert closed.rcvd.reason == "as you say", closed
    print("fine")


if sys.argv[1] == "serve":
    with serve(echo, "127.0.0.1", 0, max_size=None) as server:
        print(server.socket.getsockname()[1], flush=True)
        server.serve_forever()
else:
    call(sys.argv[2])
