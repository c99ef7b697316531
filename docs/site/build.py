"""Build the documentation as a site: `python docs/site/build.py [FOLDER]`, build/ by default.

The site has the pages of docs/, README and its like, the API from docstrings, the commands from
typer, and the files outside of docs/ that pages link to. All are written first, as Markdown, so
that the generator (Zensical) needs no code of ours."""

from __future__ import annotations

import ast
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOCS = ROOT / "docs"
TOP = {
    "index.md": "README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": ".github/CONTRIBUTING.md",
    "security.md": ".github/SECURITY.md",
}
"""The pages that stand outside of docs/."""
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?:#([\w-]+))?(?=\))")
API = {
    "transactions": ("txn",),
    "stores": ("txn.stores", "txn.stores.base", "txn.clock", "txn.events"),
    "observing": ("txn.metrics", "txn.tracing"),
    "locks": ("txn.locks", "txn.locks.spark", "txn.locks.hive.sql", "txn.locks.hive.model"),
    "leases": ("txn.leases", "txn.leases.service"),
    "spark": ("txn.spark", "txn.spark.codecs", "txn.spark.mapping", "txn.spark.reader"),
    "testing": ("txn.testing.faulty", "txn.testing.counting", "txn.pytest_plugin"),
    "cluster": ("txn.cluster.cluster", "txn.cluster.settings"),
    "recovery": ("recovery", "recovery.spark"),
}
"""The pages of the API, and the modules whose public names each has."""


def main(folder: Path = ROOT / "build") -> int:
    """Write the pages into the folder, build the site from them beside, return the exit code."""
    for name in ("pages", "site"):
        shutil.rmtree(folder / name, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.py", "*.pyc", "*.toml")
    shutil.copytree(DOCS, folder / "pages", ignore=ignored)
    for name, text in list_pages():
        path = folder / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lead_links(name, text))
    for name in ("zensical.toml", "docstrings.py"):
        shutil.copy(HERE / name, folder)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    # In the project's folder, where mkdocstrings finds our modules.
    return subprocess.run(
        [*command, "--config-file", folder / "zensical.toml"], cwd=ROOT, check=False
    ).returncode


def list_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every page."""
    for path in DOCS.rglob("*.md"):
        yield path.relative_to(DOCS).as_posix(), path.read_text()
    for name, source in TOP.items():
        yield name, (ROOT / source).read_text()
    for name, modules in API.items():
        yield f"api/{name}.md", write_api(name, modules)
    yield "commands.md", describe_commands()
    yield "decisions/index.md", write_contents(DOCS / "decisions")
    for path in linked_sources():
        yield name_source(path), show_source(path)


def lead_links(name: str, text: str) -> str:
    """Let links that leave docs/ lead to the site's page for their target."""
    written_in = ROOT / TOP.get(name, f"docs/{name}")
    here = posixpath.dirname(name)

    def lead(found: re.Match[str]) -> str:
        target = find_target(written_in, found[1])
        if target is None:
            return found[0]
        anchor = f"#{found[2]}" if found[2] else ""
        return posixpath.relpath(page_of(target), here or ".") + anchor

    return LINK.sub(lead, text)


# ------------------------------------------------------------------------------ generated pages


def write_contents(folder: Path) -> str:
    """Return a page that has the title of each page of a folder."""
    titles = {
        page.name: page.read_text().partition("\n")[0].strip("# ") for page in folder.glob("*.md")
    }
    lines = [f"- [{title}]({name})" for name, title in sorted(titles.items())]
    return "\n".join([f"# {folder.name.capitalize()}", "", *lines, ""])


def write_api(name: str, modules: tuple[str, ...]) -> str:
    """Return a page with the public names of the modules."""
    lines = [f"# {name.capitalize()}"]
    for module in modules:
        lines += ["", f"`{module}`: {ast.get_docstring(parse(module))}"]
        for public in sorted(list_public(module), key=lambda name: not name.islower()):
            lines += ["", f"::: {module}.{public}"]
    return "\n".join([*lines, ""])


def list_public(module: str) -> list[str]:
    """Return what `__all__` says, or else the classes and functions of the module's own."""
    body = parse(module).body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    kinds = ast.ClassDef | ast.FunctionDef
    return [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


@cache
def parse(module: str) -> ast.Module:
    """Return the tree of a module of ours; it is not imported, since drivers may be missing."""
    path = ROOT.joinpath(*module.split("."))
    return ast.parse(
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    )


@cache
def describe_commands() -> str:
    """Return what typer knows of the command `txn`, as it is now."""
    command = [sys.executable, "-m", "typer", "recovery.commands", "utils", "docs", "--name", "txn"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return said.stdout.replace("# `txn`", "# Commands", 1)


# ------------------------------------------------------------------------------- outside of docs/


def find_target(written_in: Path, link: str) -> Path | None:
    """Return the file or folder of this project that a link leads to; None: it is none, or is a
    page's own business."""
    target = Path(posixpath.normpath(written_in.parent / link))
    is_elsewhere = not target.is_relative_to(DOCS) or not written_in.is_relative_to(DOCS)
    return target if target.exists() and (is_elsewhere or target.is_dir()) else None


def page_of(target: Path) -> str:
    """Return the site's page for a file or folder."""
    named = target.relative_to(ROOT).as_posix()
    for page, source in TOP.items():
        if named == source:
            return page
    if target.is_relative_to(DOCS):
        inside = target.relative_to(DOCS).as_posix()
        return f"{inside}/index.md" if target.is_dir() else inside
    return name_source(target)


def name_source(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def linked_sources() -> set[Path]:
    """Return what pages link to outside of docs/ that is no page of its own."""
    pages = [*(ROOT / source for source in TOP.values()), *DOCS.rglob("*.md")]
    links = ((page, found[1]) for page in pages for found in LINK.finditer(page.read_text()))
    targets = {find_target(page, link) for page, link in links}
    return {
        target
        for target in targets
        if target is not None and page_of(target) == name_source(target)
    }


def show_source(path: Path) -> str:
    """Return a page with a file, or with what the modules of a folder say of themselves."""
    title = f"---\nsearch:\n  exclude: true\n---\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        modules = sorted(path.glob("*.py"))
        texts = [(each.name, ast.get_docstring(ast.parse(each.read_text()))) for each in modules]
        return title + "\n".join(f"- `{name}`: {text or ''}" for name, text in texts).replace(
            "\n\n", " "
        )
    return title + "\n".join(list_parts(path.read_text(), path.suffix == ".py"))


def list_parts(text: str, is_python: bool) -> Iterator[str]:
    """Yield the text, with a section for each function, so that links to tests have an anchor."""
    lines = text.splitlines()
    functions = [
        (min(each.lineno, *(d.lineno for d in each.decorator_list), each.lineno), each.name)
        for each in (ast.parse(text).body if is_python else ())
        if isinstance(each, ast.FunctionDef)
    ]
    begins = [(1, ""), *functions, (len(lines) + 1, "")]
    for (start, name), (stop, _) in pairwise(begins):
        code = "\n".join(lines[start - 1 : stop - 1]).strip("\n")
        yield f"\n## {name}\n" if name else ""
        yield f"~~~~~~ {'python' if is_python else 'text'}\n{code}\n~~~~~~"


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
