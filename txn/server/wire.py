"""Parse Thrift requests from untrusted bytes: framed or not, binary or compact.

The Cython protocols of thriftpy2 trust every length that they read; this reader trusts none. It
checks each length against the rest of the message, and takes memory only as the bytes arrive.
Values are read as the interface declares them; a field or element of another type is skipped, as in
Thrift. `Malformed` means that the position in the stream is lost. A request that was read may be
refused, and is answered. The first bytes of a connection determine its protocol for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, ClassVar, NamedTuple

from thriftpy2.thrift import TApplicationException, TMessageType, TPayload, TType

from txn.server.options import Limits

# The memory of what is read, besides its bytes: of a field, element or entry, and of a struct.
ITEM_BYTES, STRUCT_BYTES, STRUCT_FIELD_BYTES = 64, 144, 8
OWED_BYTES = 4096
PORTION = 65_536
LENGTH = Struct(">i")
COMPACT = 0x82
VERSION = 0x8001
I8, I16, I32, I64 = (Struct(f">{code}") for code in "bhiq")
WIDTHS = {TType.BYTE: I8, TType.I16: I16, TType.I32: I32, TType.I64: I64}
STRING_FIELD = Struct(">Bhi")
DOUBLE, DOUBLE_LITTLE = Struct(">d"), Struct("<d")
COMPACT_TYPES = (
    *(TType.STOP, TType.BOOL, TType.BOOL, TType.BYTE, TType.I16, TType.I32, TType.I64),
    *(TType.DOUBLE, TType.STRING, TType.LIST, TType.SET, TType.MAP, TType.STRUCT),
)
_WIRE = {TType.BINARY: TType.STRING}  # the wire types of thriftpy2's own types
_SKIPPED = {TType.STRING: TType.BINARY}  # how to skip a type that the interface does not have


class Malformed(Exception):
    """The rest of this stream cannot be parsed."""


class _Unknown(TPayload):
    """A struct that the interface does not have; all its fields are skipped."""

    thrift_spec: ClassVar[dict[int, Any]] = {}


class WireCall(NamedTuple):
    """A request; arguments: if the method is known; refused: the answer, if it is."""

    name: str
    kind: int
    sequence: int
    arguments: TPayload | None
    refused: TApplicationException | None = None


class Source:
    """The bytes of one connection that have arrived; `at` is the read position.

    receive: returns up to so many further bytes, b"" at the end of the stream.
    charge: called before memory is taken, or soon after if it is little; it may refuse by raising.
    owed: the bytes that are not charged yet.
    """

    __slots__ = ("_charge", "_receive", "at", "data", "end", "items", "limits", "owed")

    def __init__(
        self, receive: Callable[[int], bytes], charge: Callable[[int], None], limits: Limits
    ) -> None:
        self._receive = receive
        self._charge = charge
        self.limits = limits
        self.data = bytearray()
        self.at = 0
        self.begin()

    def begin(self) -> None:
        del self.data[: self.at]
        self.at = self.items = self.owed = 0
        self.end = self.limits.message_bytes

    def arrives(self) -> bool:
        """Wait for the first bytes of a message; return False at the end of the stream."""
        if not self.data:
            self.data += self._receive(PORTION)
        return bool(self.data)

    def fetch(self, size: int) -> int:
        """Wait for so many bytes and read them; return their position."""
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
        at = self.fetch(size)
        taken = bytes(self.data[at : at + size])
        if self.at > PORTION:
            self.forget()
        return taken

    def forget(self) -> None:
        """Drop the bytes that were read: what was made of them takes their place."""
        del self.data[: self.at]
        self.end -= self.at
        self.at = 0

    def peek(self, size: int) -> bytes:
        self.at = at = self.fetch(size)
        return bytes(self.data[at : at + size])

    def frame(self) -> None:
        """Wait for a whole frame; the message must be inside it."""
        (size,) = LENGTH.unpack_from(self.data, self.fetch(4))
        if not 0 < size <= self.limits.message_bytes:
            raise Malformed(f"frame is too long bytes={size} limit={self.limits.message_bytes}")
        self.end = self.at + size
        self.at = self.fetch(size)

    def count(self, size: int) -> int:
        """Count so many items, each of which needs at least one more byte."""
        if size < 0 or self.at + size > self.end:
            raise Malformed(f"more elements than bytes elements={size}")
        self.items += size
        if self.items > self.limits.items:
            raise Malformed(f"too many items limit={self.limits.items}")
        self.owed += size * ITEM_BYTES
        if self.owed > OWED_BYTES:
            self.pay()
        return size

    def pay(self) -> None:
        """Charge what is owed, which is many small sizes together."""
        owed, self.owed = self.owed, 0
        self._charge(owed)


class WireReader:
    """Reads an interface's values from a source, in the binary protocol."""

    __slots__ = ("_refused", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self._refused: TApplicationException | None = None

    def head(self) -> tuple[str, int, int]:
        """Return a message's method, kind and number, with or without a version before them."""
        first = self.integer(TType.I32)
        if first >= 0:
            name, kind = self.name(first), self.integer(TType.BYTE)
        elif first >> 16 & 0xFFFF == VERSION:
            name, kind = self.name(self.length()), first & 0xFF
        else:
            raise Malformed(f"unknown version of the protocol first={first & 0xFFFFFFFF:08x}")
        return name, kind, self.integer(TType.I32)

    def field(self, last: int) -> tuple[int, int]:
        """Return the next field's type and number; the previous one had the number `last`."""
        source = self.source
        wire = source.data[source.fetch(1)]
        if wire == TType.STOP:
            return wire, 0
        source.count(1)
        return wire, I16.unpack_from(source.data, source.fetch(2))[0]

    def strings(self, made: TPayload) -> int:
        """Read a struct's leading byte strings that have arrived, the most common case, in one
        call; return the last one's number."""
        source = self.source
        data, at, number, items = source.data, source.at, 0, source.items
        limit, known, values = min(len(data), source.end), made.thrift_spec, made.__dict__
        most = source.limits.items
        while at + 7 <= limit and source.items <= most:
            wire, following, size = STRING_FIELD.unpack_from(data, at)
            field = known.get(following)
            if wire != TType.STRING or field is None or field[0] != TType.BINARY:
                break
            if not 0 <= size <= limit - at - 7:
                break
            number, begin = following, at + 7
            at = begin + size
            values[field[1]] = bytes(data[begin:at])
            source.items += 1
        source.owed += (source.items - items) * ITEM_BYTES
        source.at = at
        if at > PORTION:
            source.forget()
        source.count(0)
        return number

    def integer(self, kind: int) -> int:
        form = WIDTHS[kind]
        source = self.source
        number: int = form.unpack_from(source.data, source.fetch(form.size))[0]
        return number

    def boolean(self) -> bool:
        return self.source.data[self.source.fetch(1)] != 0

    def double(self) -> float:
        number: float = DOUBLE.unpack_from(self.source.data, self.source.fetch(8))[0]
        return number

    def length(self) -> int:
        return self.integer(TType.I32)

    def elements(self) -> tuple[int, int]:
        wire = self.source.data[self.source.fetch(1)]
        return wire, self.source.count(self.length())

    def entries(self) -> tuple[int, int, int]:
        at = self.source.fetch(2)
        key, value = self.source.data[at], self.source.data[at + 1]
        return key, value, self.source.count(self.length())

    def call(self, methods: Mapping[str, type[TPayload]]) -> WireCall:
        """Read a message: a method's arguments, or the reason why it cannot be called."""
        self._refused = None
        name, kind, sequence = self.head()
        method = methods.get(name)
        arguments: TPayload | None = None
        if method is None:
            self._skip(TType.STRUCT, self.source.limits.depth)
            self._refuse(TApplicationException.UNKNOWN_METHOD, f"Invalid method name: '{name}'")
        else:
            arguments = self.struct(method, self.source.limits.depth)
        if kind not in (TMessageType.CALL, TMessageType.ONEWAY):
            self._refuse(TApplicationException.INVALID_MESSAGE_TYPE, f"message type {kind}")
        return WireCall(name, kind, sequence, arguments, self._refused)

    def struct(self, kind: Any, depth: int) -> TPayload:
        """Read a struct; refuse the message if a required field is missing."""
        made: TPayload = kind()
        fields, values = made.thrift_spec, made.__dict__
        self.source.owed += STRUCT_BYTES + STRUCT_FIELD_BYTES * len(fields)
        if self.source.owed > OWED_BYTES:
            self.source.pay()
        wire, number = self.field(self.strings(made))
        while wire != TType.STOP:
            known = fields.get(number)
            if known is None or _WIRE.get(known[0], known[0]) != wire:
                self._skip(wire, depth - 1)
            else:
                spec = known[2] if len(known) > 3 else None
                values[known[1]] = self._value(known[0], spec, depth - 1)
            wire, number = self.field(number)
        for known in fields.values():
            if known[-1] and values[known[1]] is None:
                message = f"Required field '{known[1]}' was not present! Struct: {kind.__name__}"
                self._refuse(TApplicationException.PROTOCOL_ERROR, message)
        return made

    def _value(self, kind: int, spec: Any, depth: int) -> Any:
        """Read a value of this wire type. spec: the interface's types in it, if any."""
        match kind:
            case TType.BINARY:
                return self.source.take(self.length())
            case TType.STRUCT | TType.LIST | TType.SET | TType.MAP if depth <= 0:
                raise Malformed(f"nested too deeply limit={self.source.limits.depth}")
            case TType.STRUCT:
                return self.struct(spec or _Unknown, depth)
            case TType.LIST | TType.SET:
                return self._list(spec, depth)
            case TType.MAP:
                return self._map(spec, depth)
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
        wire, size = self.elements()
        kind, inner = _split_type(spec)
        if _WIRE.get(kind, kind) == wire:
            return [self._value(kind, inner, depth - 1) for _ in range(size)]
        for _ in range(size):
            self._skip(wire, depth - 1)
        return []

    def _map(self, spec: Any, depth: int) -> dict[Any, Any]:
        wire_key, wire_value, size = self.entries()
        (key, key_spec), (value, value_spec) = map(_split_type, spec or (None, None))
        if (_WIRE.get(key, key), _WIRE.get(value, value)) == (wire_key, wire_value):
            return {
                self._value(key, key_spec, depth - 1): self._value(value, value_spec, depth - 1)
                for _ in range(size)
            }
        for _ in range(size):
            self._skip(wire_key, depth - 1)
            self._skip(wire_value, depth - 1)
        return {}

    def _skip(self, wire: int, depth: int) -> None:
        if wire == TType.BINARY:  # thriftpy2's own, never on the wire
            raise Malformed(f"unknown type type={wire}")
        self._value(_SKIPPED.get(wire, wire), None, depth)

    def _refuse(self, kind: int, message: str) -> None:
        self._refused = self._refused or TApplicationException(kind, message)

    def name(self, size: int) -> str:
        if not 0 <= size <= 256:
            raise Malformed(f"not a method's name bytes={size}")
        return self.source.take(size).decode(errors="replace")


def _split_type(spec: Any) -> tuple[Any, Any]:
    return spec if isinstance(spec, tuple) else (spec, None)


class Compact(WireReader):
    """The same in the compact protocol."""

    __slots__ = ("_truth",)

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._truth: bool | None = None  # a field's truth value is in its type

    def head(self) -> tuple[str, int, int]:
        protocol, version = self.source.take(2)
        if protocol != COMPACT or version & 0x1F != 1:
            raise Malformed(f"unknown version of the protocol first={protocol:02x}{version:02x}")
        sequence = self._varint(32)
        return self.name(self._varint(32)), version >> 5, sequence

    def field(self, last: int) -> tuple[int, int]:
        source = self.source
        first = source.data[source.fetch(1)]
        wire = _compact_type(first & 15)
        if wire == TType.STOP:
            return wire, 0
        source.count(1)
        self._truth = first & 15 == 1 if wire == TType.BOOL else None
        return wire, last + (first >> 4) if first >> 4 else self.integer(TType.I16)

    def strings(self, made: TPayload) -> int:
        return 0

    def integer(self, kind: int) -> int:
        if kind == TType.BYTE:
            number: int = I8.unpack_from(self.source.data, self.source.fetch(1))[0]
            return number
        folded = self._varint(WIDTHS[kind].size * 8)
        return folded >> 1 ^ -(folded & 1)

    def boolean(self) -> bool:
        truth, self._truth = self._truth, None
        return self.source.data[self.source.fetch(1)] == 1 if truth is None else truth

    def double(self) -> float:
        number: float = DOUBLE_LITTLE.unpack_from(self.source.data, self.source.fetch(8))[0]
        return number

    def length(self) -> int:
        return self._varint(32)

    def elements(self) -> tuple[int, int]:
        first = self.source.data[self.source.fetch(1)]
        size = first >> 4 if first >> 4 != 15 else self._varint(32)
        return _compact_type(first & 15), self.source.count(size)

    def entries(self) -> tuple[int, int, int]:
        size = self.source.count(self._varint(32))
        if not size:
            return TType.STOP, TType.STOP, 0
        both = self.source.data[self.source.fetch(1)]
        return _compact_type(both >> 4), _compact_type(both & 15), size

    def _varint(self, bits: int) -> int:
        source, number = self.source, 0
        for shift in range(0, bits, 7):
            byte = source.data[source.fetch(1)]
            number |= (byte & 127) << shift
            if byte < 128:
                return number & (1 << bits) - 1
        raise Malformed("a number is too long")


def open_reader(source: Source) -> tuple[WireReader, bool]:
    """Return the reader for a connection's first bytes, and whether it uses frames."""
    start = source.peek(2)
    if start[0] == COMPACT:
        return Compact(source), False
    if start[0] & 0x80:
        return WireReader(source), False
    start = source.peek(5)
    if start[4] == COMPACT:
        return Compact(source), True
    if start[4] & 0x80 or start[4] == 0:
        return WireReader(source), True
    return WireReader(source), False  # no version: the length of the name, then the name


def _compact_type(nibble: int) -> int:
    if nibble >= len(COMPACT_TYPES):
        raise Malformed(f"unknown type type={nibble}")
    return COMPACT_TYPES[nibble]
