"""A small HTTP server that answers as zeusd's public reference says, over scripted boards.

Writes need every parameter, as in the reference; a GPU that fails is named in {"errors": {...}}.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.scripted.nvml.boards import ScriptedBoards

WRITES = {
    "set_power_limit": ("power_limit_mw",),
    "set_gpu_locked_clocks": ("min_clock_mhz", "max_clock_mhz"),
    "reset_gpu_locked_clocks": (),
    "set_mem_locked_clocks": ("min_clock_mhz", "max_clock_mhz"),
    "reset_mem_locked_clocks": (),
}


class ScriptedZeusd:
    """Listens on a Unix socket (a path) or on TCP (None) until closed; `requests` holds the write
    requests."""

    def __init__(self, boards: ScriptedBoards, path: Path | None = None, token: str | None = None) -> None:
        self.boards = boards
        self.token = token
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.refusal: tuple[int, Any] | None = None
        """Status and JSON with which every write is answered instead of performed."""
        self.discovery: dict[str, Any] = {
            "gpus": [
                # The daemon numbers GPUs in reverse.
                {"id": 1 - i, "name": "Scripted GPU", "pci_address": f"0000:{i + 1:02x}:00.0"}
                for i in range(2)
            ],
            "enabled_api_groups": ["gpu-control", "gpu-read"],
            "auth_required": token is not None,
        }
        handler = type("Handler", (_Handler,), {"zeusd": self})
        self._server: socketserver.BaseServer
        if path is None:
            self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
            host, port = self._server.server_address[:2]
            self.address = f"{host!s}:{port}"
        else:
            self._server = socketserver.ThreadingUnixStreamServer(str(path), handler)
            self.address = str(path)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def apply_write(self, name: str, query: dict[str, str]) -> tuple[int, Any]:
        needed = ("gpu_ids", "block", *WRITES[name])
        if any(parameter not in query for parameter in needed):
            return 400, {"errors": {"-": f"missing one of {needed}"}}
        if self.refusal is not None:
            return self.refusal
        self.requests.append((name, query))
        index = 1 - int(query["gpu_ids"])
        if name == "set_power_limit":
            self.boards.set_state(index, limit_mw=int(query["power_limit_mw"]))
        else:
            lock = [int(query[p]) for p in WRITES[name]] or None
            self.boards.set_state(index, **{"sm_lock" if "_gpu_" in name else "memory_lock": lock})
        return 200, None


class _Handler(BaseHTTPRequestHandler):
    zeusd: ScriptedZeusd

    def do_GET(self) -> None:
        self._answer(200, self.zeusd.discovery) if self.path == "/discover" else self._answer(404, None)

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        name = parts.path.removeprefix("/gpu/")
        if self.zeusd.token and self.headers["Authorization"] != f"Bearer {self.zeusd.token}":
            self._answer(401, {"error": "missing token"})
        elif name not in WRITES:
            self._answer(404, None)
        else:
            self._answer(*self.zeusd.apply_write(name, {k: v[0] for k, v in parse_qs(parts.query).items()}))

    def _answer(self, status: int, value: Any) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        with contextlib.suppress(BrokenPipeError):  # The client was killed.
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing on the terminal of the tests."""
