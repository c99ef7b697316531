"""A real browser for tests: Debian's Chromium, driven by Playwright.

It is the one on PATH, or else Debian's package unpacked into a cache, with a font. It can reach
this machine alone, and a page that asks anything of another fails its test, as does one that the
browser complains about.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

from tests.packages import fetch_package, library_path
from txn.host.java import cache_folder

PACKAGE = "chromium"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
UNPACKED = Path("usr/lib/chromium/chromium")
HERE, NAMED = "127.0.0.1", "console.test"
"""This machine, and a name of it that the browser trusts no more than that of any other."""
ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {NAMED} {HERE}, MAP * ~NOTFOUND, EXCLUDE {HERE}",
)
FONTS = """<?xml version="1.0"?>
<fontconfig>
<dir>{root}/usr/share/fonts</dir>
<dir>/usr/share/fonts</dir>
<cachedir>{root}/fontconfig</cachedir>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


def find_chromium() -> tuple[Path, dict[str, str]]:
    """Return the program and the variables that it needs, fetched first where there is none.

    Raises PackageError where it is not to be had.
    """
    for name in PROGRAMS:
        if found := shutil.which(name):
            return Path(found), {}
    root = cache_folder() / PACKAGE
    if not root.exists():
        fetch_package(PACKAGE, root, lambda unpacked: (unpacked / UNPACKED).exists())
    fonts = root / "fonts.conf"
    fonts.write_text(FONTS.format(root=root))
    return root / UNPACKED, {**library_path(root), "FONTCONFIG_FILE": str(fonts)}


@contextmanager
def run_browser() -> Iterator[Browser]:
    """Run the browser, without a window; PackageError where there is none."""
    program, variables = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=ARGUMENTS,
            chromium_sandbox=False,  # it sees our own pages, and root and many machines have none
            env={**os.environ, **variables},
        )
        try:
            yield browser
        finally:
            browser.close()


def find_violations(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the accessibility of a page."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


class Complaints:
    """What is wrong with a page that no person would see: errors on the browser's console, among
    them what the page's policy forbids, scripts that fail, and requests to other machines."""

    def __init__(self, page: Page, allowed: Sequence[str]) -> None:
        self._allowed = allowed
        self.found: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", self._take_error)
        page.on("request", self._see)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(f"{message.type}: {message.text}")

    def _take_error(self, error: Error) -> None:
        self._note(f"a script failed: {error}")

    def _see(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.hostname not in (HERE, NAMED):
            self._note(f"asked another machine: {request.url}")

    def _note(self, words: str) -> None:
        if not any(each in words for each in self._allowed):
            self.found.append(words)
