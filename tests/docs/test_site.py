"""The documentation as a site: built once for all of these tests, and then read as it is."""

import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import typer
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, expect

from recovery.commands import app
from tests.console.browser import Complaints, run_browser
from tests.packages import PackageError

ROOT = Path(__file__).parents[2]
FETCHED = {"audio", "embed", "iframe", "img", "link", "script", "source", "video"}
COUNTED = {"li": "list_item_open", "table": "table_open", "tr": "tr_open", "pre": "fence"}
PAGES = [path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [path for name in ("txn", "recovery") for path in sorted((ROOT / name).rglob("*.py"))]


@dataclass
class Html(HTMLParser):
    """What the tests need of a page."""

    ids: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)
    tags: Counter[str] = field(default_factory=Counter)
    is_article: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.is_article |= tag == "article"
        self.ids |= {told[name] or "" for name in ("id", "name") if name in told}
        self.links += [(tag, told[name] or "") for name in ("href", "src") if name in told]
        self.tags[tag] += self.is_article

    def handle_endtag(self, tag: str) -> None:
        self.is_article &= tag != "article"


@dataclass(frozen=True)
class Site:
    folder: Path
    pages: dict[Path, Html]


BUILDER = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/site/build.py"), run_name="build_site"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("docs")
    built = subprocess.run(
        [sys.executable, "-B", ROOT / "docs/site/build.py", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    pages = {path: read_html(path) for path in sorted((folder / "site").rglob("*.html"))}
    return Site(folder / "site", pages)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Without one a test is skipped, which CI does not accept."""
    try:
        with run_browser() as found:
            yield found
    except PackageError as error:
        pytest.skip(f"no Chromium: {error}")


def read_html(path: Path) -> Html:
    page = Html()
    page.feed(path.read_text())
    return page


def test_every_page_is_in_the_navigation(site: Site) -> None:
    home = site.folder / "index.html"
    listed = {(site.folder / urlsplit(link).path).resolve() for _, link in site.pages[home].links}
    pages = {path for path in site.pages if "source" not in path.relative_to(site.folder).parts}
    assert len(pages) > 40
    assert pages - listed - {site.folder / "404.html"} == set()


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Site) -> None:
    dead = []
    for path, page in site.pages.items():
        for _, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":  # its links are absolute
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_there = target.is_file() or (target / "index.html").is_file()
            if parts.fragment and target in site.pages:
                is_there = unquote(parts.fragment) in site.pages[target].ids
            if not is_there:
                dead.append((path.name, link))
    assert dead == []


def test_nothing_that_a_page_shows_is_fetched_from_elsewhere(site: Site) -> None:
    told = {link for page in site.pages.values() for tag, link in page.links if tag in FETCHED}
    for style in site.folder.rglob("*.css"):
        told |= set(re.findall(r"(?:@import |url\()[\"']?([^\"')]+)", style.read_text()))
    assert [link for link in told if re.match(r"(https?:)?//", link)] == []


def test_the_search_works_from_a_folder(site: Site, browser: Browser) -> None:
    page = browser.new_page()
    complaints = Complaints(page, allowed=["asked another machine: file:///"])
    page.goto((site.folder / "api/locks.html").as_uri())
    page.keyboard.press("Control+k")
    page.get_by_placeholder("Search").press_sequentially("isolation", delay=20)
    # The links of the navigation are relative.
    expect(page.locator("a[href^='file:'][href*='/isolation.html']").first).to_be_visible()
    assert complaints.found == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_lists_and_tables_that_a_repository_shows(page: Path, site: Site) -> None:
    tokens = MarkdownIt().enable("table").parse((ROOT / "docs" / page).read_text())
    kinds = Counter(token.type for token in tokens)
    name = page.with_name("index.md") if page.name == "README.md" else page
    shown = site.pages[site.folder / name.with_suffix(".html")].tags
    assert {tag: shown[tag] for tag in COUNTED} == {
        tag: kinds[kind] for tag, kind in COUNTED.items()
    }


def test_every_public_name_has_its_place_in_the_api(site: Site) -> None:
    ids = {
        each for path, page in site.pages.items() if path.parent.name == "api" for each in page.ids
    }
    assert [name for name in PUBLIC if name not in ids] == []


def list_public_names() -> Iterator[str]:
    """Yield the names of each `__all__`, and those of the modules that the API has without one."""
    modules = {module for listed in BUILDER.API.values() for module in listed}
    for path in MODULES:
        if "\n__all__ = [" in path.read_text():
            modules.add(
                ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            )
    for module in sorted(modules):
        yield from (f"{module}.{name}" for name in BUILDER.list_public(module))


PUBLIC = list(list_public_names())


def test_every_command_and_option_is_on_the_page_of_commands(site: Site) -> None:
    text = (site.folder / "commands.html").read_text()
    assert [
        told for told in list_commands("txn", typer.main.get_command(app)) if told not in text
    ] == []


def list_commands(name: str, command: Any) -> Iterator[str]:
    """Yield the names of commands and of options."""
    for each in command.params:
        yield from (option for option in each.opts if option.startswith("--"))
    for short, below in getattr(command, "commands", {}).items():
        yield f"<code>{name} {short}</code>"
        yield from list_commands(f"{name} {short}", below)
