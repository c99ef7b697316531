"""What a codec is, and Arrow's types for those of Spark."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

Cells = Sequence[bytes | None]
"""The cells of a column, None for each absent one."""

_ZONE: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema that Spark wants of record batches, to the letter."""
    return to_arrow_schema(schema, **_ZONE)


class Codec:
    """What the values of a column are in cells. What does not encode or decode is a ValueError, a
    TypeError or one of Arrow's; the caller, who knows the cell, says where. A codec can be pickled.
    """

    name: str
    accepts: ClassVar[tuple[type[DataType], ...]]
    """The types of Spark that it is for; the first is meant where a mapping gives no type."""
    keeps_order: ClassVar[bool] = False
    """Whether bytes are in the order of the values, as Spark compares them."""
    is_text: ClassVar[bool] = False
    """Whether the bytes are text, and may stand beside a separator in a row key."""
    width: int | None = None
    """How many bytes each value has, if that is always the same."""

    def __init__(self, kind: DataType) -> None:
        self.kind = kind
        self.arrow = arrow_schema(StructType([StructField("value", kind)])).field(0).type

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value that is not None."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """Return the value of a cell."""
        raise NotImplementedError

    def encode_array(self, values: pa.Array) -> list[bytes | None]:
        """Return the cells of a column."""
        return self.encode_values(values.to_pylist())

    def encode_values(self, values: Iterable[Any]) -> list[bytes | None]:
        """Return the cells of values, of which None has none."""
        encode = self.encode
        return [None if value is None else encode(value) for value in values]

    def decode_array(self, cells: Cells) -> pa.Array:
        """Return the column of some cells."""
        decode = self.decode
        values = [None if cell is None else decode(cell) for cell in cells]
        return pa.array(values, type=self.arrow)

    def check_value(self, value: Any) -> Any:
        """Return the value as Arrow has it, or raise for one that the column's type cannot hold."""
        return pa.array([value], type=self.arrow)[0].as_py()
