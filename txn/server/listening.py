"""Listening sockets for servers of any kind."""

from __future__ import annotations

import socket

from txn.errors import InvalidRequestError


def listen(bind: str, port: int) -> socket.socket:
    """Return a listening socket for the port; 0 picks a free one."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        return socket.create_server((bind, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        message = "cannot listen"
        raise InvalidRequestError(message, bind=bind, port=port, cause=str(error)) from error
