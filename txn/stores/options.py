"""The parts of a store's URI: its addresses and options. Every option must be known, appear once
and have an allowed value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from txn.errors import InvalidRequestError

Option = Callable[[str, str], str | int]
"""Takes an option's name and text; returns its value or raises InvalidRequestError."""


_ADDRESS = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[^\s:,@%/?#\[\]\\]+)(?::(?P<port>.*))?"
)


def split_uri(uri: object) -> SplitResult:
    """Return the parts of a URI; refuse outer spaces and control characters, which Python drops."""
    try:
        if isinstance(uri, str) and uri == uri.strip() and not re.search(r"[\0-\x1f\x7f]", uri):
            return urlsplit(uri)
    except ValueError as error:
        raise InvalidRequestError("not a URI", given=hide_login(str(uri))) from error
    raise InvalidRequestError("not a URI", given=hide_login(str(uri)))


def parse_address(text: str, usual_port: int) -> tuple[str, int]:
    """Return the host and port of `host`, `host:port` or, for IPv6, `[host]:port`."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise InvalidRequestError("not an address: write host:port, or [IPv6]:port", given=text)
    host, port = found["host"].strip("[]"), found["port"]
    if port is None:
        return host, usual_port
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65_536):
        message = "not an address: not a port, from 1 to 65535"
        raise InvalidRequestError(message, given=port, address=text)
    return host, int(port)


def read_options(parts: SplitResult, known: Mapping[str, Option]) -> dict[str, Any]:
    """Return the values of a URI's options, each of which must be known and valid."""
    if parts.fragment:
        raise InvalidRequestError("it has no fragment", uri=show_uri(parts))
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            raise InvalidRequestError(
                "unknown option", option=name, uri=show_uri(parts), known=sorted(known)
            )
        if name in options:
            raise InvalidRequestError("an option is there twice", option=name)
        options[name] = known[name](name, value)
    return options


def show_uri(parts: SplitResult) -> str:
    """Return a URI as its author wrote it: `geturl` drops an empty host."""
    uri, bare = parts.geturl(), f"{parts.scheme}:/"
    if not parts.netloc and uri.startswith(bare) and not uri.startswith(f"{bare}/"):
        uri = uri.replace(bare, f"{bare}//", 1)
    return hide_login(uri)


def hide_login(uri: str) -> str:
    """Return a URI without its user, password and token, for messages."""
    shown = re.sub(r"//[^/?#]*@", "//***@", uri)
    return re.sub(r"([?&](?:token|password)=)[^&#]*", r"\1***", shown)


def one_of(*values: str) -> Option:
    def read(name: str, value: str) -> str:
        if value not in values:
            raise InvalidRequestError("unknown value", option=name, given=value, known=list(values))
        return value

    return read


def number(name: str, value: str) -> int:
    """Read a positive number below 1,000,000,000."""
    if not (value.isascii() and value.isdecimal()) or len(value) > 9 or not int(value):
        raise InvalidRequestError("not a positive number", option=name, given=value)
    return int(value)


def up_to(limit: int) -> Option:
    """Return an option for a positive number up to the limit."""

    def read(name: str, value: str) -> int:
        if number(name, value) > limit:
            raise InvalidRequestError("too large", option=name, given=value, limit=limit)
        return int(value)

    return read


def file(name: str, value: str) -> str:
    if not Path(value).is_file():
        raise InvalidRequestError("no such file", option=name, given=value)
    return value


def word(name: str, value: str) -> str:
    if not value:
        raise InvalidRequestError("an option has no value", option=name)
    return value
