r"""Bytes as text: UTF-8 where that is printable, else `\xNN`; a backslash is `\\`.

Whatever is stored goes through `show_text` before a terminal, a page or a log gets it. Escaped text
is unambiguous, and commands accept what they print.
"""

from __future__ import annotations

import re

from txn.errors import InvalidRequestError

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(\\)|.?)", re.DOTALL)


def show_text(text: str) -> str:
    r"""Return a text as one line in which nothing is hidden: each letter that a terminal obeys, or
    that reorders or hides others, is `\xNN`. Backslashes stay, so to show it twice is harmless."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _show_bytes(letter) for letter in text)


def escape(value: bytes) -> str:
    """Return the bytes as printable text, which `unescape` turns back into the same bytes."""
    return show_text(value.decode("utf-8", "surrogateescape").replace("\\", r"\\"))


def unescape(text: str) -> bytes:
    """Return the bytes of an escaped text; raise InvalidRequestError for an unknown escape."""

    def replacement(match: re.Match[bytes]) -> bytes:
        if match[1] is not None:
            return bytes([int(match[1], 16)])
        if match[2] is not None:
            return b"\\"
        raise InvalidRequestError(r"a backslash must be \\ or \xNN", text=text)

    try:
        return _ESCAPE.sub(replacement, text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError("not text that UTF-8 can write", text=ascii(text)) from error


def _show_bytes(letter: str) -> str:
    of_bytes = "surrogateescape" if "\udc80" <= letter <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", of_bytes))
