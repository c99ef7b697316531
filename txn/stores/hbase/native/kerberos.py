"""Kerberos: SASL's mechanism GSSAPI on a new connection, with the library gssapi.

The user's own ticket is used, from `kinit` or a keytab (KRB5_CLIENT_KTNAME). It authenticates and
no more: later data is not wrapped, so secrecy needs TLS. A server that requires wrapping is
refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from txn.errors import InvalidRequestError, NotApplied
from txn.host.extras import require_extra
from txn.stores.hbase.native.target import Target

AUTHENTICATION_ONLY = 1
CHOICE = bytes([AUTHENTICATION_ONLY, 0, 0, 0])  # with buffers of size 0, as nothing is wrapped
TO_SIMPLE = -88  # sent by a server without Kerberos in place of a length
MOST_BYTES = 1 << 20

_NUMBER = struct.Struct(">i")


class Unwelcome(NotApplied):
    """The server or this client rejects the other: check tickets and certificates."""

    retryable = False


Read = Callable[[int], bytes]
Write = Callable[[bytes], None]


def prove_user(target: Target, host: str, read: Read, write: Write) -> str:
    """Authenticate the user to a server and return the user's name.

    Raises InvalidRequestError without the library or the system's Kerberos, and Unwelcome if one
    side rejects the other.
    """
    gssapi = _import_gssapi(target)
    principal, _, realm = target.principal.partition("@")
    service, _, instance = principal.partition("/")
    named = host if instance in {"", "_HOST"} else instance
    flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
    try:
        if realm:
            name = f"{service}/{named}@{realm}"
            server = gssapi.Name(name, gssapi.NameType.kerberos_principal)
        else:
            server = gssapi.Name(f"{service}@{named}", gssapi.NameType.hostbased_service)
        context = gssapi.SecurityContext(name=server, usage="initiate", flags=flags)
        token: bytes = context.step() or b""
        while not context.complete:
            write(_NUMBER.pack(len(token)) + token)
            token = context.step(_read_token(read)) or b""
        write(_NUMBER.pack(len(token)) + token)
        offer = context.unwrap(_read_token(read)).message
        if not offer or not offer[0] & AUTHENTICATION_ONLY:
            raise Unwelcome("the server wants more than authentication: set its protection")
        choice = context.wrap(CHOICE, encrypt=False).message
        write(_NUMBER.pack(len(choice)) + choice)
        return str(context.initiator_name)
    except gssapi.exceptions.GSSError as error:
        tickets = "tickets are those of kinit, or of the keytab that KRB5_CLIENT_KTNAME names"
        raise Unwelcome(f"Kerberos: {error}; {tickets}") from error


def _import_gssapi(target: Target) -> Any:
    try:
        with require_extra("kerberos", target=str(target)):
            import gssapi  # noqa: PLC0415  (it needs the system's Kerberos, which few have)
    except (ImportError, OSError) as error:
        raise InvalidRequestError(
            "gssapi finds no Kerberos on this machine: install it, on Debian libgssapi-krb5-2",
            target=str(target),
            cause=str(error),
        ) from error
    return gssapi


def _read_token(read: Read) -> bytes:
    (status,) = _NUMBER.unpack(read(4))
    if status:
        raise Unwelcome(f"the server refuses: {_read_text(read)}: {_read_text(read)}")
    (size,) = _NUMBER.unpack(read(4))
    if size == TO_SIMPLE:
        raise Unwelcome("the server does not ask for Kerberos: leave out auth=kerberos")
    return read(_check_size(size))


def _read_text(read: Read) -> str:
    (size,) = _NUMBER.unpack(read(4))
    return read(_check_size(size)).decode(errors="replace")


def _check_size(size: int) -> int:
    if not 0 <= size <= MOST_BYTES:
        raise Unwelcome(f"not a token of Kerberos: bytes={size}")
    return size
