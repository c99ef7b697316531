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


HARMLESS = {
    *("auth", "ca", "certificate", "connect_ms", "connections", "key", "max_readers", "mode"),
    *("pool", "principal", "protocol", "registry", "reply_mb", "sync", "timeout_ms", "tls"),
    *("token_file", "transport", "user"),
}
"""The options of URIs whose values may be shown. Any other value may be a secret."""
_SHAPE = re.compile(r"((?:[A-Za-z][\w+.-]*:)?(?://)?)([^/?#]*)(.*)", re.DOTALL)
_LOCAL = ("embedded:///", "file:///", "memory:", "/")
_NO_PORT = re.compile(r":(?!\d*(?:,|$))")
_ADDRESS = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+(%[\w.-]+)?\]|[^\s:,@%/?#\[\]\\]+)(?::(?P<port>.*))?"
)


def split_uri(uri: object) -> SplitResult:
    """Return the parts of a URI; refuse outer spaces and control characters, which Python drops."""
    try:
        if isinstance(uri, str) and uri == uri.strip() and not re.search(r"[\0-\x1f\x7f]", uri):
            parts = urlsplit(uri)
            _check_login(parts, uri)
            return parts
    except InvalidRequestError:
        raise
    except ValueError as error:
        raise InvalidRequestError("not a URI", given=hide_login(str(uri))) from error
    raise InvalidRequestError("not a URI", given=hide_login(str(uri)))


def _check_login(parts: SplitResult, uri: str) -> None:
    """Refuse what may be a password with one of `/?#`, of which later errors would show a part."""
    if uri.startswith(_LOCAL):
        return
    later = parts.path + parts.query.partition("=")[0] + parts.fragment
    hosts = re.sub(r"\[[^]]*\]", "", parts.netloc or parts.path)
    if "@" in later or ("@" in parts.query and _NO_PORT.search(hosts)):
        raise InvalidRequestError(
            "an @ behind the address: write %2F, %3F, %23 and %40 for /, ?, # and @",
            uri=hide_login(uri),
        )


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
                "unknown option",
                option=name if value else "***",
                uri=show_uri(parts),
                known=sorted(known),
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
    """Return a URI without secrets, for messages: without what comes before an `@` as a login does,
    and without the values of options that are not HARMLESS."""
    found = _SHAPE.fullmatch(uri)
    assert found is not None  # any text has this shape
    begin, place, rest = found.groups()
    if "@" in rest and not uri.startswith(_LOCAL):
        return f"{begin}***"
    place = f"***@{place.rpartition('@')[2]}" if "@" in place else place
    path, query, options = rest.partition("#")[0].partition("?")
    shown = "&".join(map(_hide_value, options.split("&"))) if query else ""
    return begin + place + path + query + shown + ("#***" if "#" in rest else "")


def _hide_value(option: str) -> str:
    name, _, value = option.partition("=")
    if name in HARMLESS or not option:
        return option
    return f"{name}=***" if value else "***"


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
