"""Arguments and fields, which docstrings tell as `name: text` at a line's beginning, as lists."""

from __future__ import annotations

import re

import griffe

ENTRY = re.compile(r"((?:[a-z_]\w*, )*[a-z_]\w*): (?=\S)")


class ListArguments(griffe.Extension):
    """Rewrites the docstrings of functions and classes."""

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Take the names of arguments from the signature."""
        list_entries(func, {each.name for each in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Take the names of fields from what the class has, or its `__init__` takes."""
        begin = cls.members.get("__init__")
        names = (
            {each.name for each in begin.parameters}
            if isinstance(begin, griffe.Function)
            else set()
        )
        list_entries(cls, names | cls.members.keys())


def list_entries(thing: griffe.Object, names: set[str]) -> None:
    """Make an item of each line that begins with one of the names; it ends with its paragraph, or
    where a line does not go on with it."""
    if thing.docstring is None:
        return
    lines: list[str] = []
    is_in_item = False
    for line in thing.docstring.value.splitlines():
        found = ENTRY.match(line)
        if found and set(found[1].split(", ")) <= names:
            lines += [] if is_in_item else [""]
            lines.append(f"- **{found[1]}**: {line[found.end() :]}")
            is_in_item = True
        else:
            is_in_item = is_in_item and bool(line.strip())
            lines.append(f"  {line}" if is_in_item else line)
    thing.docstring.value = "\n".join(lines)
