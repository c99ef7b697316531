"""A codec of the user's own, by its import path."""

from __future__ import annotations

import importlib
from typing import Any

from pyspark.sql.types import DataType

from txn.errors import InvalidRequestError
from txn.spark.codecs.base import Codec


class ImportedCodec(Codec):
    """An object of the user's, by its import path: `encode(value) -> bytes`, `decode(bytes)`."""

    def __init__(self, path: str, kind: DataType) -> None:
        super().__init__(kind)
        self.name = self.path = path
        self._load()

    def __reduce__(self) -> tuple[Any, ...]:
        return ImportedCodec, (self.path, self.kind)

    def _load(self) -> None:
        module, _, name = self.path.partition(":")
        try:
            self.inner = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidRequestError(
                "codec cannot be imported", codec=self.path, cause=str(error)
            ) from error
        if not (hasattr(self.inner, "encode") and hasattr(self.inner, "decode")):
            raise InvalidRequestError("codec has no encode or no decode", codec=self.path)

    def encode(self, value: Any) -> bytes:
        data = self.inner.encode(value)
        if not isinstance(data, bytes):
            raise TypeError(f"the codec made no bytes: {type(data).__name__}")
        return data

    def decode(self, data: bytes) -> Any:
        return self.inner.decode(data)
