"""Limits set by zeusd, the privileged daemon of Zeus, for processes that may not set limits themselves.

HTTP over a Unix socket or TCP, by the public reference (ml.energy/zeus/zeusd/api): writes are POST
/gpu/NAME?gpu_ids=..&block=true, and failures per GPU come as {"errors": {"0": "..."}}.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any
from urllib.parse import urlencode

from ekc.devices.clocks.limits import Limit, LimitSetter, normalize_pci_address
from ekc.errors import ActuatorError, DriverTrouble

DEFAULT_SOCKET = "/run/zeusd/zeusd.sock"
TIMEOUT_S = 3.0
_ADDRESS_FORMS = "give /path/of/socket or host:port"


def find_daemon_address() -> str | None:
    """Address of the daemon: ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT or the default socket; None without one."""
    address = os.environ.get("ZEUSD_SOCK_PATH") or os.environ.get("ZEUSD_HOST_PORT")
    return address or (DEFAULT_SOCKET if os.path.exists(DEFAULT_SOCKET) else None)


class ZeusdLimits(LimitSetter):
    """Sets the limits of one GPU through the daemon."""

    kind = "zeusd"

    def __init__(self, uuid: str, daemon_address: str) -> None:
        super().__init__(uuid, daemon_address)
        self._daemon_gpu_id = self._find_daemon_gpu_id(_send_request(daemon_address, "GET", "/discover"))

    def check_permission(self) -> None:
        """Set the power cap to its present value. Raises `ActuatorError` where the daemon refuses."""
        if self._offered.power_w:
            self.set_limit("power_w", self.settings().power_w)

    def set_limit(self, limit: Limit, value: float | None) -> None:
        """Set one limit; returns when the daemon has done it."""
        if limit == "power_w":
            self._post_request("set_power_limit", power_limit_mw=self._convert_to_milliwatts(value))
            return
        clock = {"sm_mhz": "gpu", "memory_mhz": "mem"}[limit]
        if value is None:
            self._post_request(f"reset_{clock}_locked_clocks")
            return
        low, high = self._make_clock_range(limit, value)
        self._post_request(f"set_{clock}_locked_clocks", min_clock_mhz=low, max_clock_mhz=high)

    def _post_request(self, name: str, **parameters: int) -> None:
        query = urlencode({"gpu_ids": self._daemon_gpu_id, "block": "true"} | parameters)
        _send_request(self.reference.address, "POST", f"/gpu/{name}?{query}")

    def _find_daemon_gpu_id(self, discovered: Any) -> int:
        """The daemon's number of this GPU, by PCI address: in a container it may number differently."""
        try:
            groups = discovered.get("enabled_api_groups") or ["gpu-control"]
            numbers_by_address = {
                normalize_pci_address(gpu["pci_address"]): int(gpu["id"])
                for gpu in discovered.get("gpus") or ()
            }
            numbers = [int(number) for number in discovered.get("gpu_ids") or ()]
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            reason = f"{type(problem).__name__}: {problem}"
            raise ActuatorError(
                f"zeusd at {self.reference.address} lists its GPUs in an unknown form ({reason})"
            ) from problem
        if "gpu-control" not in groups:
            raise ActuatorError(
                f"zeusd at {self.reference.address} was started without gpu-control; use --advise"
            )
        bus = self.read_pci_address()
        if bus in numbers_by_address:
            return numbers_by_address[bus]
        if numbers_by_address or self.index not in numbers:
            raise ActuatorError(f"zeusd at {self.reference.address} does not know {self.name} at {bus}")
        return self.index  # Older daemons list numbers alone.


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of TCP."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def _send_request(daemon_address: str, method: str, path: str) -> Any:
    """JSON of the reply, {} for an empty reply. Raises `ActuatorError`, `DriverTrouble` where a later request
    may succeed."""
    headers = _make_headers()
    connection = _open_connection(daemon_address)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except UnicodeError as problem:  # No host name: a label too long, or none between two dots.
        raise ActuatorError(f"zeusd at {daemon_address}: {problem}; {_ADDRESS_FORMS}") from problem
    except (OSError, http.client.HTTPException) as problem:
        raise DriverTrouble(
            f"zeusd at {daemon_address} does not answer ({str(problem) or type(problem).__name__})"
        ) from problem
    finally:
        connection.close()
    if status != http.client.OK:
        kind = DriverTrouble if status >= http.client.INTERNAL_SERVER_ERROR else ActuatorError
        raise kind(
            f"zeusd at {daemon_address} refused {path.split('?')[0]}: {_describe_refusal(status, body)}"
        )
    return _parse_json(daemon_address, body) if body.strip() else {}


def _make_headers() -> dict[str, str]:
    """Headers with the token, where there is one; white space around it is removed."""
    token = os.environ.get("ZEUSD_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise ActuatorError(
            "ZEUSD_TOKEN has characters that an HTTP header cannot have: give the token alone, in plain ASCII"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def _open_connection(daemon_address: str) -> http.client.HTTPConnection:
    if daemon_address.startswith("/"):
        return _UnixConnection(daemon_address)
    try:
        return http.client.HTTPConnection(daemon_address, timeout=TIMEOUT_S)
    except http.client.InvalidURL as problem:
        raise ActuatorError(f"zeusd at {daemon_address}: {problem}; {_ADDRESS_FORMS}") from problem


def _parse_json(daemon_address: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as problem:
        raise ActuatorError(f"zeusd at {daemon_address} replies with no JSON; is it zeusd?") from problem


def _describe_refusal(status: int, body: bytes) -> str:
    helps = {
        401: "no valid token; set ZEUSD_TOKEN",
        403: "not permitted to us, or to the daemon itself",
        404: "no such endpoint; it may be disabled, or this zeusd too old",
    }
    try:
        reason = " ".join(str(text) for text in json.loads(body)["errors"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = " ".join(body.decode(errors="replace").split())[:200]
    return ", ".join(text for text in (f"HTTP {status}", helps.get(status), reason) if text)
