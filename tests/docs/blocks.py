"""The code of a page, run as its reader runs it: from top to bottom, in one folder.

A Python block with a title is a file of that name; any other is run in the page's own namespace. A
`sh` block is typed into one shell, whose commands must succeed (one of `txn` may end with 1, which
is an answer). A `text` block behind either is what it prints, where `...` stands for anything. A
block below the comment `<!-- not run: why -->` is left out.
"""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
MARK = "end of block"
CHECK = r"""
trap 'code=$? command=$BASH_COMMAND
      case $command in txn*) most=1;; *) most=0;; esac
      [ $code -le $most ] || echo "did not succeed: $command"' ERR
pip() { :; }
"""


@dataclass(frozen=True, slots=True)
class Block:
    """line: where its code begins, from 1."""

    page: Path
    line: int
    language: str
    title: str
    code: str


def list_blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that are run."""
    is_left_out = False
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            title = re.search(r'title="([^"]*)"', rest)
            assert token.map is not None
            if not is_left_out:
                line = token.map[0] + 2
                yield Block(page, line, language, title[1] if title else "", token.content)
        is_left_out = token.type == "html_block" and token.content.startswith("<!-- not run: ")


def list_python(page: Path) -> list[str]:
    """Return a page's Python, for tests that ask more of it than that it can be followed."""
    return [block.code for block in list_blocks(page) if block.language == "python"]


@dataclass
class Reader:
    """Who reads a page and does what it says. names: what its code finds defined. instead: what
    stands on the page, and what is right here, such as a port that is free.
    environment, and begin: what the shell begins with."""

    folder: Path
    names: dict[str, Any] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    begin: str = ""
    printed: str = ""
    shell: subprocess.Popen[str] | None = None

    def follow(self, page: Path) -> int:
        """Do all of a page; return how many blocks that was."""
        blocks = list(list_blocks(page))
        for block in blocks:
            self.do(block)
        return len(blocks)

    def do(self, block: Block) -> None:
        """Do what one block says."""
        code = block.code
        for old, new in self.instead.items():
            code = code.replace(old, new)
        match block.language:
            case "python" if block.title:
                (self.folder / block.title).write_text(code)
            case "python":
                out = io.StringIO()
                with redirect_stdout(out):
                    exec(compile("\n" * (block.line - 1) + code, block.page, "exec"), self.names)
                self.printed = out.getvalue()
            case "sh":
                self.printed = self.type_in(code)
                assert "did not succeed: " not in self.printed, (
                    block.page,
                    block.line,
                    self.printed,
                )
            case "text":
                assert is_as_told(self.printed, code), (block.page, block.line, self.printed)
            case _:
                return

    def type_in(self, code: str) -> str:
        """Have the page's shell do it; return what was printed."""
        self.shell = shell = self.shell or self._open_shell()
        assert shell.stdin is not None and shell.stdout is not None
        print(code, f"echo; echo {MARK}", sep="\n", file=shell.stdin, flush=True)
        lines: list[str] = []
        for line in shell.stdout:
            if line == f"{MARK}\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell has ended: {lines}")

    def _open_shell(self) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with (self.folder / "errors.txt").open("a") as errors:
            shell = subprocess.Popen(
                ["bash"],
                cwd=self.folder,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **self.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        print(CHECK, self.begin, sep="\n", file=shell.stdin, flush=True)
        return shell

    def leave(self) -> None:
        """End the shell, and what it left running."""
        if self.shell is not None:
            os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.communicate()


@contextmanager
def reader(folder: Path, **details: Any) -> Iterator[Reader]:
    """Have somebody in a folder who follows pages."""
    found = Reader(folder, **details)
    try:
        yield found
    finally:
        found.leave()


def is_as_told(printed: str, told: str) -> bool:
    """Whether a page tells what was printed; white space counts as one space."""
    parts = re.split(r"\.{3}(?!\.)", " ".join(told.split()))
    pattern = ".*".join(re.escape(part) for part in parts)
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None
