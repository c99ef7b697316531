"""Thrift requests out of bytes that nobody vouches for: framed or not, binary or compact.

The Cython protocols of thriftpy2 believe every length that they read; this reader believes none. It
checks each against what is left of the message, and takes memory only as the bytes arrive. Values
are read as the interface says; a field or element of another type is skipped, as Thrift does.
`Malformed`: the place in the stream is lost. `Refused`: the message was read, and may be answered.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, NamedTuple

from thriftpy2.thrift import TApplicationException, TMessageType, TPayload, TType

from txn.server.options import Limits

ITEM_BYTES = 256  # what an element takes in memory, a small struct or so
PORTION = 65_536
LONGEST_NAME = 256
LENGTH = Struct(">i")
WIRE = {TType.BINARY: TType.STRING}  # how a type of thriftpy2's own is told


class Malformed(Exception):
    """What follows in this stream cannot be understood."""


class RequestRefused(Exception):
    """A request that cannot be carried out; `kind` is one of TApplicationException's."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class WireCall(NamedTuple):
    """A request: method, kind of message, its number, and the arguments, or why there are none."""

    name: str
    kind: int
    sequence: int
    arguments: TPayload | RequestRefused


class Source:
    """The bytes of one connection, as far as they have arrived; `at` is how far they are read.

    receive: returns the next bytes, at most so many, b"" at the end of the stream.
    charge: is told of memory before it is taken, and may refuse by raising.
    """

    __slots__ = ("_charge", "_receive", "at", "data", "end", "items", "limits")

    def __init__(
        self, receive: Callable[[int], bytes], charge: Callable[[int], None], limits: Limits
    ) -> None:
        self._receive = receive
        self._charge = charge
        self.items = 0
        self.limits = limits
        self.data = bytearray()
        self.at = 0
        self.end = limits.message_bytes

    def begin(self) -> None:
        """Forget the message before."""
        del self.data[: self.at]
        self.at = self.items = 0
        self.end = self.limits.message_bytes

    def arrives(self) -> bool:
        """Wait for the first bytes of a message; False at the end of the stream."""
        if not self.data:
            self.data += self._receive(PORTION)
        return bool(self.data)

    def fetch(self, size: int) -> int:
        """Make sure that so many bytes have arrived, and read them; return where they begin."""
        at = self.at
        stop = at + size
        if stop > self.end or size < 0:
            raise Malformed(f"longer than the message may be bytes={size}")
        while len(self.data) < stop:
            more = self._receive(PORTION)
            if not more:
                raise Malformed("the stream ended within a message")
            self._charge(len(more))
            self.data += more
        self.at = stop
        return at

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        at = self.fetch(size)
        return bytes(self.data[at : at + size])

    def peek(self, size: int) -> bytes:
        """Return the next bytes without reading them."""
        self.at = at = self.fetch(size)
        return bytes(self.data[at : at + size])

    def frame(self) -> None:
        """Wait for a whole frame; the message must be in it."""
        (size,) = LENGTH.unpack_from(self.data, self.fetch(4))
        if not 0 < size <= self.limits.message_bytes:
            raise Malformed(f"frame is too long bytes={size} limit={self.limits.message_bytes}")
        self.end = self.at + size
        self.at = self.fetch(size)

    def count(self, size: int) -> int:
        """Take note of so many items, each of which has at least a byte to come."""
        if size < 0 or self.at + size > self.end:
            raise Malformed(f"more elements than bytes elements={size}")
        self.items += size
        if self.items > self.limits.items:
            raise Malformed(f"too many items limit={self.limits.items}")
        if size > 16:
            self._charge(size * ITEM_BYTES)
        return size


class WireReader:
    """Values of an interface from a source; a protocol says how each is spelt."""

    __slots__ = ("_refused", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self._refused: RequestRefused | None = None

    @abstractmethod
    def head(self) -> tuple[str, int, int]:
        """Return a message's method, kind and number."""

    @abstractmethod
    def field(self, last: int) -> tuple[int, int]:
        """Return the next field's type and number; the one before had the number `last`."""

    @abstractmethod
    def integer(self, kind: int) -> int:
        """Return a whole number of this type."""

    @abstractmethod
    def boolean(self) -> bool:
        """Return a truth value."""

    @abstractmethod
    def double(self) -> float:
        """Return a floating point number."""

    @abstractmethod
    def length(self) -> int:
        """Return the number of bytes of the string that follows."""

    def strings(self, made: TPayload) -> int:
        """Read strings of bytes that a struct may begin with; return the number of the last."""
        return 0

    @abstractmethod
    def elements(self) -> tuple[int, int]:
        """Return the type of a list's elements, and how many there are."""

    @abstractmethod
    def entries(self) -> tuple[int, int, int]:
        """Return the types of a map's keys and values, and how many there are."""

    def call(self, methods: Mapping[str, type[TPayload]]) -> WireCall:
        """Read a message: a method's arguments, or why it cannot be called."""
        self._refused = None
        name, kind, sequence = self.head()
        method = methods.get(name)
        arguments: TPayload | None = None
        if method is None:
            self.skip(TType.STRUCT, self.source.limits.depth)
            self._refuse(TApplicationException.UNKNOWN_METHOD, f"Invalid method name: '{name}'")
        else:
            arguments = self.struct(method, self.source.limits.depth)
        if kind not in (TMessageType.CALL, TMessageType.ONEWAY):
            self._refuse(TApplicationException.INVALID_MESSAGE_TYPE, f"message type {kind}")
        if self._refused is not None or arguments is None:
            return WireCall(name, kind, sequence, self._refused or RequestRefused(0, name))
        return WireCall(name, kind, sequence, arguments)

    def struct(self, kind: Any, depth: int) -> TPayload:
        """Read a struct; the message is refused where it lacks a required field."""
        if depth <= 0:
            raise Malformed(f"nested too deeply limit={self.source.limits.depth}")
        made: TPayload = kind()
        fields, values = made.thrift_spec, made.__dict__
        wire, number = self.field(self.strings(made))
        while wire != TType.STOP:
            known = fields.get(number)
            if known is None or WIRE.get(known[0], known[0]) != wire:
                self.skip(wire, depth - 1)
            else:
                spec = known[2] if len(known) > 3 else None
                values[known[1]] = self.value(known[0], spec, depth - 1)
            wire, number = self.field(number)
        for known in fields.values():
            if known[-1] and values[known[1]] is None:
                message = f"Required field '{known[1]}' was not present! Struct: {kind.__name__}"
                self._refuse(TApplicationException.PROTOCOL_ERROR, message)
        return made

    def value(self, kind: int, spec: Any, depth: int) -> Any:
        """Read a value whose type on the wire is the interface's."""
        match kind:
            case TType.BINARY:
                return self.source.take(self.length())
            case TType.STRUCT:
                return self.struct(spec, depth)
            case TType.LIST | TType.SET:
                return self._list(spec, depth)
            case TType.MAP:
                return self._map(spec, depth)
            case _:
                return self._scalar(kind)

    def _scalar(self, kind: int) -> Any:
        match kind:
            case TType.I64 | TType.I32 | TType.I16 | TType.BYTE:
                return self.integer(kind)
            case TType.STRING:
                return self.source.take(self.length()).decode(errors="replace")
            case TType.BOOL:
                return self.boolean()
            case TType.DOUBLE:
                return self.double()
            case _:
                raise Malformed(f"unknown type type={kind}")

    def _list(self, spec: Any, depth: int) -> list[Any]:
        self._check(depth)
        wire, size = self.elements()
        kind, inner = _split_type(spec)
        if WIRE.get(kind, kind) != wire:
            for _ in range(size):
                self.skip(wire, depth - 1)
            return []
        return [self.value(kind, inner, depth - 1) for _ in range(size)]

    def _map(self, spec: Any, depth: int) -> dict[Any, Any]:
        self._check(depth)
        wire_key, wire_value, size = self.entries()
        (key, key_spec), (value, value_spec) = map(_split_type, spec)
        if (WIRE.get(key, key), WIRE.get(value, value)) != (wire_key, wire_value):
            for _ in range(size):
                self.skip(wire_key, depth - 1)
                self.skip(wire_value, depth - 1)
            return {}
        return {
            self.value(key, key_spec, depth - 1): self.value(value, value_spec, depth - 1)
            for _ in range(size)
        }

    def skip(self, wire: int, depth: int) -> None:
        """Read a value of any type and forget it."""
        match wire:
            case TType.STRING:
                self.source.fetch(self.length())
            case TType.STRUCT:
                self._check(depth)
                wire, number = self.field(0)
                while wire != TType.STOP:
                    self.skip(wire, depth - 1)
                    wire, number = self.field(number)
            case TType.LIST | TType.SET:
                self._check(depth)
                wire, size = self.elements()
                for _ in range(size):
                    self.skip(wire, depth - 1)
            case TType.MAP:
                self._check(depth)
                wire_key, wire_value, size = self.entries()
                for _ in range(size):
                    self.skip(wire_key, depth - 1)
                    self.skip(wire_value, depth - 1)
            case _:
                self._scalar(wire)

    def _check(self, depth: int) -> None:
        if depth <= 0:
            raise Malformed(f"nested too deeply limit={self.source.limits.depth}")

    def _refuse(self, kind: int, message: str) -> None:
        self._refused = self._refused or RequestRefused(kind, message)

    def name(self, size: int) -> str:
        """Read the name of a method."""
        if not 0 <= size <= LONGEST_NAME:
            raise Malformed(f"not a method's name bytes={size}")
        return self.source.take(size).decode(errors="replace")


def _split_type(spec: Any) -> tuple[int, Any]:
    return (spec[0], spec[1]) if isinstance(spec, tuple) else (spec, None)
