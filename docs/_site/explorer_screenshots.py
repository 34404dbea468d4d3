"""Take the screenshots of the explorer for docs/how-to/explore.md, light and dark.

    python docs/_site/explorer_screenshots.py

Needs the extra `dev` and Debian's Chromium. It starts `ekc explore`, takes the steps of the page's example
and writes docs/_static/explorer-light.png and explorer-dark.png.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

FOLDER = Path(__file__).parents[1] / "_static"
WORDS = "explore matmul 512 512 512 --target a100 --no-browser"
COMMAND = [sys.executable, "-m", "ekc", *WORDS.split()]
STEPS = (
    'split("k", (16,))',
    'cache_read("A", "shared", at="k.0", pad=4)',
    'cache_read("B", "shared", at="k.0")',
)
MAX_BYTES = 150_000


def take_steps(page: Page) -> None:
    """Go along the example of the page, and wait until all figures are there."""
    field = page.locator(".free-text input")
    for step in STEPS:
        wait(page)
        field.fill(step)
        field.press("Enter")
    wait(page)


def wait(page: Page) -> None:
    """Wait for the list and the figures of the present schedule."""
    expect(page.locator(".headline")).to_contain_text("legal next steps", timeout=60_000)
    expect(page.locator(".headline")).not_to_contain_text("estimating", timeout=60_000)
    expect(page.get_by_text("compiled for a100 (simulated)").first).to_be_visible(timeout=60_000)


def main() -> None:
    """Write both files."""
    server = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        write_pictures(server.stdout.readline().strip())
    finally:
        server.kill()


def write_pictures(url: str) -> None:
    """Write both files from a running server."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for theme in ("light", "dark"):
            context = browser.new_context(viewport={"width": 1280, "height": 600}, color_scheme=theme)
            page = context.new_page()
            page.goto(url)
            wait(page)
            if theme == "light":
                take_steps(page)
            page.get_by_role("tab", name="Pictures").click()
            page.wait_for_timeout(3000)
            path = FOLDER / f"explorer-{theme}.png"
            page.screenshot(path=path)
            assert path.stat().st_size < MAX_BYTES, path
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
