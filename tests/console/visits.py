"""Requests without a browser, so that a test can leave out or make up whatever a browser sends."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """What a console has answered; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def cookie(self) -> str:
        """The cookie that it sets, as the next request sends it."""
        return self.headers["set-cookie"].partition(";")[0]


def ask(
    url: str,
    method: str = "GET",
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request; nothing is followed."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    body, sent = None, dict(headers or {})
    if form is not None:
        body = urlencode(form)
        sent = {"Content-Type": "application/x-www-form-urlencoded"} | sent
    try:
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read().decode())
    finally:
        connection.close()


def post(url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
    """Send a form as a browser does from a page of the same site."""
    return ask(url, "POST", form, {"Sec-Fetch-Site": "same-origin"} | dict(headers or {}))
