"""Whether a server is up: does its port answer, and does a gateway reach the cluster.

A gateway is asked for something that only an initialized master can tell, in one message of the
binary protocol of Thrift, written out by hand: nothing is installed for it, and no client is kept.
"""

from __future__ import annotations

import json
import socket
import struct
from urllib.error import HTTPError
from urllib.request import urlopen

TIMEOUT_S = 3

_CALL, _REPLY = 0x80010001, 0x80010002
_QUESTIONS = {"thrift1": "getTableNames", "thrift2": "listNamespaceDescriptors"}
_LIVE_NODES = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
_SUCCESS_LIST = b"\x0f\x00\x00"


def port_answers(port: int) -> bool:
    """Return whether something accepts connections there."""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S):
            return True
    except OSError:
        return False


def gateway_answers(kind: str, port: int) -> bool:
    """Return whether a gateway, "thrift1" or "thrift2", gets an answer from the master."""
    name = _QUESTIONS[kind].encode()
    head = struct.pack(">II", _CALL, len(name)) + name
    answer = struct.pack(">II", _REPLY, len(name)) + name
    sequence = struct.pack(">I", 1)
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(head + sequence + b"\0")
            expected = answer + sequence + _SUCCESS_LIST
            return _receive(connection, len(expected)) == expected
    except OSError:
        return False


def data_node_is_known(namenode_http_port: int) -> bool:
    """Return whether HDFS can take data: its name node has heard of a data node."""
    url = f"http://127.0.0.1:{namenode_http_port}/{_LIVE_NODES}"
    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            beans = json.load(answer)["beans"]
    except HTTPError as error:
        error.close()  # it is an answer, with a connection and a file
        return False
    except (OSError, ValueError):
        return False
    return any(bean.get("NumLiveDataNodes", 0) > 0 for bean in beans)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (part := connection.recv(size - len(received))):
        received += part
    return received
