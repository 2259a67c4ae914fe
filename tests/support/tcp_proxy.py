"""A TCP proxy that can be cut: bytes stop, connections stay open, and nobody is told."""

import contextlib
import socket
import threading


class TcpProxy:
    """Forwards a local port to another one, except while it is cut."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Hold back everything from now on, silently."""
        self._open.clear()

    def mend(self) -> None:
        """Let through what was held back, and all that follows."""
        self._open.set()

    def close(self) -> None:
        """End all connections."""
        self._open.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target_port))
                except OSError:
                    client.close()  # the target is away just now
                    continue
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
