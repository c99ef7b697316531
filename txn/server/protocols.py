"""How the values of a request are spelt: the binary protocol and the compact one.

Which of them a connection speaks, and whether in frames, is told by its first bytes; it stays so.
"""

from __future__ import annotations

from struct import Struct

from thriftpy2.thrift import TPayload, TType

from txn.server.wire import Malformed, Source, WireReader

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


class Binary(WireReader):
    """The binary protocol, with or without the version before a message. Of what there is
    most, strings at the beginning of a struct, it reads all that have arrived in one call."""

    __slots__ = ()

    def head(self) -> tuple[str, int, int]:
        first = self.integer(TType.I32)
        if first >= 0:
            name, kind = self.name(first), self.integer(TType.BYTE)
        elif first >> 16 & 0xFFFF == VERSION:
            name, kind = self.name(self.length()), first & 0xFF
        else:
            raise Malformed(f"unknown version of the protocol first={first & 0xFFFFFFFF:08x}")
        return name, kind, self.integer(TType.I32)

    def field(self, last: int) -> tuple[int, int]:
        source = self.source
        wire = source.data[source.fetch(1)]
        if wire == TType.STOP:
            return wire, 0
        source.count(1)
        return wire, I16.unpack_from(source.data, source.fetch(2))[0]

    def strings(self, made: TPayload) -> int:
        source = self.source
        data, at, number = source.data, source.at, 0
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
        source.at = at
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


class Compact(WireReader):
    """The compact protocol."""

    __slots__ = ("_truth",)

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._truth: bool | None = None  # a field's truth value is in its type

    def head(self) -> tuple[str, int, int]:
        protocol, version = self.source.take(2)
        if protocol != COMPACT or version & 0x1F != 1:
            raise Malformed(f"unknown version of the protocol first={protocol:02x}{version:02x}")
        sequence = self._number(32)
        return self.name(self._number(32)), version >> 5, sequence

    def field(self, last: int) -> tuple[int, int]:
        source = self.source
        first = source.data[source.fetch(1)]
        wire = _compact_type(first & 15)
        if wire == TType.STOP:
            return wire, 0
        source.count(1)
        self._truth = first & 15 == 1 if wire == TType.BOOL else None
        return wire, last + (first >> 4) if first >> 4 else self.integer(TType.I16)

    def integer(self, kind: int) -> int:
        if kind == TType.BYTE:
            number: int = I8.unpack_from(self.source.data, self.source.fetch(1))[0]
            return number
        folded = self._number(WIDTHS[kind].size * 8)
        return folded >> 1 ^ -(folded & 1)

    def boolean(self) -> bool:
        truth, self._truth = self._truth, None
        return self.source.data[self.source.fetch(1)] == 1 if truth is None else truth

    def double(self) -> float:
        number: float = DOUBLE_LITTLE.unpack_from(self.source.data, self.source.fetch(8))[0]
        return number

    def length(self) -> int:
        return self._number(32)

    def elements(self) -> tuple[int, int]:
        first = self.source.data[self.source.fetch(1)]
        size = first >> 4 if first >> 4 != 15 else self._number(32)
        return _compact_type(first & 15), self.source.count(size)

    def entries(self) -> tuple[int, int, int]:
        size = self.source.count(self._number(32))
        if not size:
            return TType.STOP, TType.STOP, 0
        both = self.source.data[self.source.fetch(1)]
        return _compact_type(both >> 4), _compact_type(both & 15), size

    def _number(self, bits: int) -> int:
        """Return a number of seven bits a byte."""
        source, number = self.source, 0
        for shift in range(0, bits, 7):
            byte = source.data[source.fetch(1)]
            number |= (byte & 127) << shift
            if byte < 128:
                return number & (1 << bits) - 1
        raise Malformed("a number is too long")


def open_reader(source: Source) -> tuple[WireReader, bool]:
    """Tell by the first bytes of a connection how it is spoken on it, and whether in frames."""
    start = source.peek(2)
    if start[0] == COMPACT:
        return Compact(source), False
    if start[0] & 0x80:
        return Binary(source), False
    start = source.peek(5)
    if start[4] == COMPACT:
        return Compact(source), True
    if start[4] & 0x80 or start[4] == 0:
        return Binary(source), True
    return Binary(source), False  # without a version: the length of the name, then the name


def _compact_type(nibble: int) -> int:
    if nibble >= len(COMPACT_TYPES):
        raise Malformed(f"unknown type type={nibble}")
    return COMPACT_TYPES[nibble]
