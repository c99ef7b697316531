"""Requests without a browser, so that a test can leave out or make up whatever a browser sends."""

import http.client
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
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

    @property
    def words(self) -> str:
        """What a page shows: its text, in one line and without its tags."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.body)).split())


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


def wait_for(url: str, pattern: str) -> Answer:
    """Return a page once its words have something of this pattern."""
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(pattern, (answer := ask(url)).words):
        assert time.monotonic() < deadline, answer.words
        time.sleep(0.01)
    return answer
