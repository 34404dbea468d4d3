"""The local server of the page: on 127.0.0.1, for the holder of a random token only."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from functools import cache
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from ekc.errors import InvalidInput
from ekc.explorer.session import Explorer
from ekc.ir.operator import Operator
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.ir.schedule.schedule import Schedule

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
"""Names of this machine in the header Host; localhost is that of a port forwarded by ssh."""
REFUSAL = "ekc explore: refused. Open the address that the command printed: it holds the token.\n"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class TokenGuard:
    """Refuses requests and websockets of other origins and hosts, and those without the token.

    The token comes once in the address, `/?token=...`, and then as a cookie that scripts cannot read. The
    guard is outermost: nothing behind it sees a refused request.
    """

    def __init__(self, app: AsgiApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; see ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = _read_headers(scope)
        if headers is None or not _is_own_origin(headers):
            await _refuse(scope, send)
        elif self._has_cookie(headers):
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and self._is_token(_read_query_token(scope)):
            await self._hand_out_cookie(send)
        else:
            await _refuse(scope, send)

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._token.encode())

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return morsel is not None and self._is_token(morsel.value)

    async def _hand_out_cookie(self, send: Send) -> None:
        """Set the cookie, and lead to an address without the token."""
        cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Lax"
        headers = [
            (b"location", b"/"),
            (b"set-cookie", cookie.encode()),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _read_headers(scope: Scope) -> dict[str, str] | None:
    """Headers by name; None where one that decides is given twice."""
    pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    names = [name for name, _ in pairs]
    if any(names.count(name) > 1 for name in ("host", "origin", "cookie")):
        return None
    return dict(pairs)


def _is_own_origin(headers: dict[str, str]) -> bool:
    """Whether a request is for this server by name, and comes from its own page or from none."""
    host = headers.get("host", "")
    name, _, port = host.partition(":")
    if name not in HOST_NAMES or not (port.isdecimal() or not port):
        return False
    return headers.get("origin", f"http://{host}") == f"http://{host}"


def _read_query_token(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get("token", [""])[0]


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSAL.encode()})


def explore(
    start: Operator | Schedule,
    target: str = "auto",
    *,
    port: int = 0,
    open_browser: bool = True,
    announce: Callable[[str], None] = print,
) -> None:
    """Explore the schedules of an operator in the browser, until Ctrl-C.

    start: an operator, which begins at its naive schedule, or a schedule. target: as of `ekc.tune`. port: of
    127.0.0.1; 0 takes a free one. `announce` gets the address, which holds the token of this server. Raises
    `InvalidInput` for bad arguments and without the extra `explore`, `DeviceError` for the target."""
    if not isinstance(start, (Operator, Schedule)):
        raise InvalidInput(
            f"explore: {start!r:.60} is no operator and no schedule; try ekc.matmul(512, 512, 512)"
        )
    schedule = start if isinstance(start, Schedule) else make_naive_schedule(start)
    _check_installed()
    with _bind_port(port) as listener, contextlib.closing(Explorer(schedule, target)) as explorer:
        token, own_port = secrets.token_urlsafe(24), listener.getsockname()[1]
        url = f"http://{HOST}:{own_port}/?token={token}"
        announce(url)
        with contextlib.suppress(KeyboardInterrupt):
            guard = TokenGuard(_make_app(explorer), token, f"ekc_explore_{own_port}")
            if open_browser:
                threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()
            _serve(guard, listener)


def _check_installed() -> None:
    try:
        import nicegui  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as problem:
        raise InvalidInput("the explorer needs nicegui and plotly: pip install 'ekc[explore]'") from problem


@contextlib.contextmanager
def _bind_port(port: int) -> Iterator[socket.socket]:
    """A socket that is bound to a port of 127.0.0.1."""
    if not 0 <= port <= 65535:
        raise InvalidInput(f"--port: {port}, at most 65535; use 0 for a free one")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            # A browser that is quicker than the server waits.
            listener.listen()
        except OSError as problem:
            raise InvalidInput(
                f"--port: {port} cannot be used ({problem.strerror}); use 0 for a free one"
            ) from None
        yield listener


def _make_app(explorer: Explorer) -> AsgiApp:
    from ekc.explorer import page

    page.show(explorer)
    app: AsgiApp = _make_nicegui_app()
    return app


@cache
def _make_nicegui_app() -> Any:
    """The app of a process: NiceGUI has one, and takes its settings once."""
    import fastapi
    from nicegui import ui

    from ekc.explorer import page

    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(
        app,
        root=page.build_page,
        title="ekc explore",
        favicon=page.FAVICON,
        dark=None,
        reconnect_timeout=30.0,
        show_welcome_message=False,
    )
    return app


def _serve(app: AsgiApp, listener: socket.socket) -> None:
    """Serve until Ctrl-C; in a notebook, whose event loop runs already, in a thread."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="on", timeout_graceful_shutdown=1, ws="auto"
    )
    server = uvicorn.Server(config)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        server.run(sockets=[listener])
        return
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="ekc-explore")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        server.should_exit = True
        thread.join()
