"""The server of the page and the page in a browser: one `ekc explore`, started as a user starts it."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc
from ekc.errors import InvalidInput
from ekc.explorer.server import TokenGuard
from tests.browser import PageOpener

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("nicegui")
expect = pytest.importorskip("playwright.sync_api").expect
expect.set_options(timeout=30_000)
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
POLLING = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"


@dataclass(frozen=True)
class Server:
    """A running `ekc explore`."""

    url: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    @property
    def cookie(self) -> str:
        return f"ekc_explore_{self.port}={self.token}"

    def request(self, path: str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
        """One request, with exactly these headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest("GET", path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{self.port}"} | (headers or {})).items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """`ekc explore` of a small product, started as a user starts it."""
    words = "explore matmul 64 64 64 --target a100 --no-browser --port 0"
    command = [sys.executable, "-m", "ekc", *words.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Server(process.stdout.readline().strip(), process)
        process.kill()


def test_token_opens_the_page_once_and_the_cookie_from_then_on(server: Server) -> None:
    first = server.request(f"/?token={server.token}")
    assert (first.status, first.headers["Location"]) == (303, "/")
    cookie = first.headers["Set-Cookie"]
    assert cookie.startswith(server.cookie)
    assert "HttpOnly" in cookie
    assert "SameSite" in cookie
    page = server.request("/", {"Cookie": server.cookie})
    assert page.status == 200
    assert b"ekc explore" in page.read()


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=wrong", "/_nicegui/x", POLLING, "/docs"])
def test_request_without_the_token_is_refused(server: Server, path: str) -> None:
    for headers in ({}, {"Cookie": "ekc_explore=1"}, {"Cookie": f"ekc_explore_{server.port}=wrong"}):
        answer = server.request(path, headers)
        assert answer.status == 403
        assert b"holds the token" in answer.read()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "example.org"},
        {"Host": "127.0.0.1.example.org"},
        {"Host": ""},
        {"Host": "127.0.0.1:80:80"},
    ],
)
def test_other_origins_and_hosts_are_refused_even_with_the_token(
    server: Server, headers: dict[str, str]
) -> None:
    for path in ("/", f"/?token={server.token}", POLLING):
        assert server.request(path, headers | {"Cookie": server.cookie}).status == 403
    assert connect(server, headers | {"Cookie": server.cookie}) == 403


def test_websocket_needs_the_cookie(server: Server) -> None:
    own = f"http://127.0.0.1:{server.port}"
    assert connect(server, {"Cookie": server.cookie, "Origin": own}) == 101
    assert connect(server, {"Origin": own}) == 403
    assert connect(server, {"Cookie": f"ekc_explore_{server.port}=wrong", "Origin": own}) == 403
    assert connect(server, {"Origin": own}, f"{SOCKET}&token={server.token}") == 403


def connect(server: Server, headers: dict[str, str], path: str = SOCKET) -> int:
    """Status of the handshake of a websocket; 101 where it opens."""
    upgrade = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    return server.request(path, upgrade | headers).status


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from(["host", "origin", "cookie", "x"]), st.text(max_size=30)), max_size=5)
)
def test_no_headers_without_the_token_pass_the_guard(pairs: list[tuple[str, str]]) -> None:
    passed = []

    async def app(scope: object, receive: object, send: object) -> None:
        passed.append(scope)

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    sent: list[dict[str, object]] = []
    headers = [(name.encode(), value.encode("utf-8", "replace")) for name, value in pairs]
    for kind in ("http", "websocket"):
        scope = {"type": kind, "headers": headers, "query_string": b"token=wrong"}
        with pytest.raises(StopIteration):
            TokenGuard(app, "secret", "own")(scope, None, send).send(None)  # type: ignore[arg-type, attr-defined]
    assert not passed
    assert [m.get("status", 403) for m in sent if m["type"] != "http.response.body"] == [403, 403]


def wait_for_figures(page: Page) -> None:
    """Wait until the list is estimated and the present schedule is compiled."""
    headline = page.locator(".headline")
    expect(headline).to_contain_text("legal next steps", timeout=60_000)
    expect(headline).not_to_contain_text("estimating", timeout=60_000)
    expect(page.get_by_text("compiled for a100 (simulated)").first).to_be_visible(timeout=60_000)


def take_text(page: Page, text: str) -> None:
    """Write a step into the free text field."""
    page.locator(".free-text input").fill(text)
    page.locator(".free-text input").press("Enter")


def test_steps_are_taken_refused_undone_and_saved(server: Server, open_page: PageOpener) -> None:
    page = open_page()
    page.goto(server.url)
    wait_for_figures(page)
    assert page.url == f"http://127.0.0.1:{server.port}/"
    program = page.locator("pre.code")
    before = program.inner_text()
    page.locator(".filter input").fill('split("k"')
    # A click while the filtered list replaces the other one would hit a row that is gone.
    rows = page.locator(".steps-table tbody.q-virtual-scroll__content tr")
    expect(rows.filter(has_not_text='split("k"')).to_have_count(0)
    rows.first.click()
    expect(program).to_contain_text("for k.1")
    wait_for_figures(page)
    take_text(page, 'bind("k.0", "block.x")')
    expect(page.locator(".refusal")).to_contain_text(
        "loop k.0 is a reduction, and block.x takes spatial loops"
    )
    take_text(page, 'cache_read("A", "shared", at="k.0", pad=4)')
    expect(program).to_contain_text("stage A[")
    expect(page.locator(".refusal")).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(program).not_to_contain_text("stage A[")
    page.get_by_role("button", name="Redo").click()
    expect(program).to_contain_text("stage A[")
    wait_for_figures(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save Python").click()
    text = Path(download.value.path()).read_text()
    assert "compiled for a100 (simulated)" in text
    values: dict[str, Any] = {}
    exec(text, values)
    assert str(values["schedule"]).splitlines() == [x.rstrip() for x in program.inner_text().splitlines()]
    for _ in range(2):
        page.get_by_role("button", name="Undo").click()
    expect(program).to_have_text(before, use_inner_text=True)


def test_text_typed_while_a_step_runs_stays(server: Server, open_page: PageOpener) -> None:
    page = open_page()
    page.goto(server.url)
    wait_for_figures(page)
    field, program = page.locator(".free-text input"), page.locator("pre.code")
    server.process.send_signal(signal.SIGSTOP)
    try:
        take_text(page, 'split("k", (32,))')
        field.fill('cache_read("A"')
    finally:
        server.process.send_signal(signal.SIGCONT)
    expect(program).to_contain_text("for k.1")
    wait_for_figures(page)
    expect(field).to_have_value('cache_read("A"')
    # The server has the text too: it takes what is completed.
    field.press_sequentially(', "shared", at="k.0")')
    field.press("Enter")
    expect(program).to_contain_text("stage A[")
    expect(field).to_have_value("")
    # A refused text stays, to be corrected.
    take_text(page, 'split("k", (3,))')
    expect(page.locator(".refusal")).to_be_visible()
    expect(field).to_have_value('split("k", (3,))')
    field.fill("")
    for _ in range(2):
        page.get_by_role("button", name="Undo").click()
    expect(program).not_to_contain_text("for k.1")


def test_redo_is_off_where_another_step_made_it_illegal(server: Server, open_page: PageOpener) -> None:
    page = open_page()
    page.goto(server.url)
    wait_for_figures(page)
    redo, undo = (page.get_by_role("button", name=name, exact=True) for name in ("Redo", "Undo"))
    program = page.locator("pre.code")
    take_text(page, 'split("k", (16,))')
    expect(program).to_contain_text("k.1 in 16")
    undo.click()
    expect(redo).to_be_enabled()
    take_text(page, 'split("k", (8,))')
    expect(program).to_contain_text("k.1 in 8")
    expect(redo).to_be_disabled()
    redo.hover(force=True)
    expect(page.locator(".redo-reason")).to_contain_text("no loop 'k'")
    page.get_by_role("tab", name="Path").click()
    expect(page.locator(".move.undone").first).to_contain_text("cannot be redone here: ")
    page.locator(".move.undone").get_by_role("button", name="forget").first.click()
    page.get_by_role("tab", name="Program").click()
    undo.click()
    expect(redo).to_be_enabled()
    redo.hover()
    page.wait_for_timeout(500)
    expect(page.locator(".redo-reason")).to_be_hidden()
    redo.click()
    expect(program).to_contain_text("k.1 in 8")
    undo.click()
    expect(program).not_to_contain_text("k.1 in")


def test_filter_finds_steps_that_are_not_the_best_of_their_row(server: Server, open_page: PageOpener) -> None:
    page = open_page()
    page.goto(server.url)
    wait_for_figures(page)
    step = page.locator(".steps-table tbody td:first-child .step")
    page.locator(".filter input").fill('UNROLL("k')
    expect(page.locator(".headline")).to_contain_text("1 shown")
    best = step.inner_text()
    for factor in (2, 4, 8):
        page.locator(".filter input").fill(f'unroll("k", factor={factor})')
        expect(step).to_have_text(f'unroll("k", factor={factor})')
        expect(page.locator(".headline")).to_contain_text("1 shown")
    page.locator(".filter input").fill("unroll")
    expect(step).to_have_text(best)
    page.locator(".filter input").fill("no such step")
    expect(page.locator(".headline")).to_contain_text("0 shown")


def test_every_tab_shows_its_content(server: Server, open_page: PageOpener) -> None:
    page = open_page(width=800, dark=True)
    page.goto(server.url)
    wait_for_figures(page)
    for tab, content in {
        "Pictures": ".picture svg",
        "CUDA": "text=__global__",
        "Counts": "text=passes through shared banks",
        "Roofline": ".figure .main-svg >> nth=0",
        "Path": '.move >> text=split("i", (16,))',
        "Space": ".figure .main-svg >> nth=0",
        "Tuner": "text=Let the tuner finish",
        "Program": "pre.code",
    }.items():
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(content).first).to_be_visible(timeout=60_000)
    for width in (800, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "simulated" in page.locator(".q-badge").inner_text()


@pytest.mark.slow
def test_tuner_begins_at_the_present_schedule_and_shows_its_winner(
    server: Server, open_page: PageOpener
) -> None:
    page = open_page()
    page.goto(server.url)
    wait_for_figures(page)
    page.get_by_role("tab", name="Tuner").click()
    page.locator(".trials").click()
    page.get_by_role("option", name="16", exact=True).click()
    page.get_by_role("button", name="Let the tuner finish").click()
    page.get_by_role("button", name="Go to the winner").click(timeout=120_000)
    page.get_by_role("tab", name="Path").click()
    expect(page.locator(".move.present")).to_contain_text("winner of the tuner")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".move.present")).not_to_contain_text("winner of the tuner")


def test_ctrl_c_ends_the_server_cleanly(server: Server) -> None:
    """The last test with this server."""
    server.process.send_signal(signal.SIGINT)
    _, error = server.process.communicate(timeout=30)
    assert server.process.returncode == 0
    assert error.splitlines()[-1] == "ekc explore: stopped"
    assert "Traceback" not in error


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nicegui", None)
    with pytest.raises(InvalidInput, match=r"pip install 'ekc\[explore\]'") as problem:
        ekc.explore(ekc.matmul(8, 8, 8), target="a100")
    assert "\n" not in str(problem.value)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="3 is no operator and no schedule"):
        ekc.explore(3)
    with pytest.raises(InvalidInput, match="70000, at most 65535"):
        ekc.explore(ekc.matmul(8, 8, 8), target="a100", port=70000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match="cannot be used"):
            ekc.explore(ekc.matmul(8, 8, 8), target="a100", port=port)
