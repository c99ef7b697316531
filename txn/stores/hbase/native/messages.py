"""The message classes of hbase.proto, which is parsed at import.

So there is no generated code, which would tie us to one version of protobuf.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "txn.hbase"

_MESSAGE = re.compile(r"message (\w+) \{([^}]*)\}")
_FIELD = re.compile(r"(optional|required|repeated) (\w+) (\w+) = (\d+);")
_KINDS = descriptor_pb2.FieldDescriptorProto


class Messages:
    def __init__(self, name: str, text: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(_describe(name, text).SerializeToString())
        for message in pool.FindFileByName(name).message_types_by_name.values():
            setattr(self, message.name, message_factory.GetMessageClass(message))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no such message: {name}")


def _describe(name: str, text: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=PACKAGE)
    for message_name, body in _MESSAGE.findall(text):
        message = file.message_type.add(name=message_name)
        for label, kind, field, number in _FIELD.findall(body):
            added = message.field.add(name=field, number=int(number))
            added.label = _KINDS.Label.Value("LABEL_" + label.upper())
            if "TYPE_" + kind.upper() in _KINDS.Type.keys():  # noqa: SIM118  (no mapping)
                added.type = _KINDS.Type.Value("TYPE_" + kind.upper())
            else:
                added.type = _KINDS.Type.Value("TYPE_MESSAGE")
                added.type_name = f".{PACKAGE}.{kind}"
    return file


PB = Messages("hbase.proto", files(__package__).joinpath("hbase.proto").read_text())
