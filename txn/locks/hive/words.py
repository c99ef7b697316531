"""A word-by-word reader of Hive and Spark statements that sqlglot's grammar does not know.

It uses sqlglot's tokenizer, so names, strings and comments are the same everywhere. Hive and Spark
replace `${x}` before they parse, so texts with a variable are refused. Anything else that is not
understood is an error, which quotes the beginning of the statement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from itertools import islice, pairwise
from typing import Any, ClassVar, NamedTuple, NoReturn

from sqlglot import Token, TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from txn.arguments import check_calls
from txn.errors import InvalidRequestError
from txn.locks.hive.model import BUILT_IN, DATABASE_SETTING, DEFAULT, Constant, ConstantKind, Spec
from txn.locks.hive.settings import HIVE_SETTINGS, from_hive
from txn.locks.model import Path

SHOWN = 60
SESSION_CATALOGS = frozenset({"spark_catalog", "hive"})
# The database of temporary views in Spark; and Spark's formats, whose "tables" are file paths.
TEMPORARY = frozenset({"global_temp"})
FORMATS = frozenset(
    {"avro", "binaryfile", "csv", "delta", "json", "libsvm", "orc", "parquet", "text", "xml"}
)
Args = Mapping[str, Any] | Sequence[Any]

_NAME = re.compile(r"\w+")
_IDENTIFIER = re.compile(r" IDENTIFIER \( '(?: \|\| ')* \)")
_WORD = re.compile(r"[\w`]")
_PLAIN = re.compile(r"[^\\'$\x00-\x1f]*")
_VARIABLE = re.compile(r"\$\{[^}]*\}")
_DEFAULT = re.compile(r"(?<= DEFAULT)(?: (?!,|COMMENT\b)\S+)+")
# The signs for tokens other than plain words; a name in backquotes matches like a name.
_SIGNS = {
    TokenType.IDENTIFIER: "`",
    TokenType.STRING: "'",
    TokenType.RAW_STRING: "'",
    TokenType.HEX_STRING: "0x",
}


class Statements(Spark):
    """Spark's dialect, which includes Hive's. No statement is an opaque command, and each function
    keeps its written name and all of its arguments."""

    class Tokenizer(Spark.Tokenizer):
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(SparkParser):
        ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}  # else `array(x)[0]` loses its x
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parse
            for name, parse in SparkParser.FUNCTION_PARSERS.items()
            if name.lower() in {*BUILT_IN, "try_cast"}
        }


class Word(NamedTuple):
    """A word or a sign. key: in upper case; empty if quoted. start, end: positions in the text."""

    key: str
    text: str
    kind: TokenType
    start: int
    end: int


def refuse_statement(statement: str, reason: str = "not understood", **facts: object) -> NoReturn:
    raise InvalidRequestError(reason, statement=" ".join(statement.split())[:SHOWN], **facts)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a text. Raises InvalidRequestError. A string whose value depends on the
    meaning of a backslash becomes a RAW_STRING, not a constant."""
    if variable := _VARIABLE.search(text):
        refuse_statement(text, "a variable whose value is not known", variable=variable[0])
    try:
        tokens = Statements().tokenize(text)
    except SqlglotError:
        refuse_statement(text)
    for brace, token in pairwise(tokens):
        if brace.token_type is TokenType.L_BRACE and _NAME.fullmatch(token.text):
            refuse_statement(text, "a placeholder whose value is not known", placeholder=token.text)
    if any(each.rstrip("\r").endswith("\\") for token in tokens for each in token.comments):
        refuse_statement(text, "a comment that may go on in the next line")  # as in Spark
    for token in tokens:
        if token.token_type is TokenType.RAW_STRING:
            token.token_type = TokenType.STRING
        elif token.token_type is TokenType.STRING and "\\" in text[token.start : token.end + 1]:
            token.token_type = TokenType.RAW_STRING
    return tokens


@check_calls
def split_statements(sql: str) -> list[str]:
    sql = sql.removeprefix("\ufeff")  # the byte order mark of an editor's file
    found: list[str] = []
    run: list[Token] = []
    for token in [*tokenize(sql), None]:
        if token is not None and token.token_type is not TokenType.SEMICOLON:
            run.append(token)
        elif run:
            found.append(sql[run[0].start : run[-1].end + 1])
            run = []
    return found


@check_calls
def read_statements(sql: str, settings: Mapping[str, str] | None) -> Iterator[WordReader]:
    """Yield the words of each statement, with its settings: those given, and those of earlier SET
    and USE statements. USE, and SET of a setting of locks, are not yielded. Unqualified names
    belong to the settings' database."""
    known = dict(settings or {})
    for statement in split_statements(sql):
        words = WordReader(statement, known.get(DATABASE_SETTING, DEFAULT).lower(), known)
        if words.accept("USE"):
            words.accept_one("DATABASE", "SCHEMA", "NAMESPACE")
            known = {**known, DATABASE_SETTING: words.read_database().parts[0]}
            words.expect_end()
        elif found := _read_setting(statement):
            known = {**known, **found}
            from_hive(found)
        else:
            yield words


def _read_setting(statement: str) -> dict[str, str]:
    words = WordReader(statement, DEFAULT)
    name, _, value = words.read_rest().partition("=") if words.accept("SET") else ("", "", "")
    is_known = name.strip() in {*HIVE_SETTINGS, DATABASE_SETTING}
    return {name.strip(): value.strip()} if is_known else {}


class WordReader:
    """Reads a statement word by word. settings: Hive's, as of this statement."""

    def __init__(
        self, statement: str, database: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.statement = statement
        self.database = database
        self.settings = settings or {}
        self._words = list(_read_words(statement))
        self._next = 0

    @property
    def at_end(self) -> bool:
        return self._next >= len(self._words)

    @property
    def key(self) -> str:
        """The next word in upper case; empty at the end or if quoted."""
        return "" if self.at_end else self._words[self._next].key

    def accept(self, *keys: str) -> bool:
        """Skip these words and return True if they come next."""
        coming = self._words[self._next : self._next + len(keys)]
        found = [word.key for word in coming] == list(keys)
        self._next += len(keys) if found else 0
        return found

    def accept_one(self, *keys: str) -> str:
        """Skip the next word and return it if it is one of these; else return ""."""
        key = self.key
        return key if key in keys and self.accept(key) else ""

    def expect(self, *keys: str) -> None:
        if not self.accept(*keys):
            self.refuse()

    def seek(self, word: int) -> None:
        self._next = word

    def shape(self) -> Shape:
        return make_shape(self._words, self._next)

    def read_rest(self) -> str:
        text = "" if self.at_end else self.statement[self._words[self._next].start :]
        self._next = len(self._words)
        return text

    def expect_end(self) -> None:
        if not self.at_end:
            self.refuse()

    def refuse(self, reason: str = "not understood") -> NoReturn:
        at = None if self.at_end else self._words[self._next].text
        refuse_statement(self.statement, reason, at=at)

    def read_identifier(self) -> str:
        """Read a name without dots; it is put in lower case, as in Hive."""
        if self.at_end:
            self.refuse()
        word = self._words[self._next]
        if word.kind is not TokenType.IDENTIFIER and not _NAME.fullmatch(word.key):
            self.refuse("a name is needed")
        self._next += 1
        return word.text.lower()

    def read_table(self) -> Path:
        parts = [self.read_identifier()]
        while self.accept("."):
            parts.append(self.read_identifier())
        return make_table_path(parts, self.database, self.statement)

    def read_database(self) -> Path:
        name = self.read_identifier()
        if self.accept("."):
            if name not in SESSION_CATALOGS:
                self.refuse("only the session's own catalogue is known")
            name = self.read_identifier()
        return Path((name,))

    def read_partition(self) -> Spec:
        return self.read_columns() if self.accept("PARTITION") else ()

    def read_columns(self) -> Spec:
        """Read `(p=1, q)`; a comparison other than equality determines no value."""
        self.expect("(")
        found: list[tuple[str, Constant | None]] = []
        while not found or self.accept(","):
            found.append((self.read_identifier(), self._read_value()))
        self.expect(")")
        return tuple(found)

    def read_defaults(self) -> list[str]:
        """Return the default values' texts in parameters such as `x INT DEFAULT 1, y INT`."""
        shape, found = self.shape(), []
        for match in _DEFAULT.finditer(shape.text.partition(" )")[0]):
            first, last = shape.words[match.start()], shape.words[match.end()] - 1
            found.append(self.statement[self._words[first].start : self._words[last].end])
        return found

    def _read_value(self) -> Constant | None:
        if self.key in {",", ")"}:
            return None
        is_equality = self.accept_one("=", "==") != ""
        words: list[Word] = []
        while not self.at_end and self.key not in {",", ")"}:
            if self.key == "(":
                self.refuse("a partition has constants")
            words.append(self._words[self._next])
            self._next += 1
        return _read_constant(words) if is_equality else None


def make_table_path(parts: list[str], database: str, statement: str) -> Path:
    refuse = partial(refuse_statement, statement)
    if len(parts) == 3 and parts[0] in SESSION_CATALOGS:
        parts = parts[1:]
    if len(parts) > 2:
        refuse("only the session's own catalogue is known", name=".".join(parts))
    path = Path((database, *parts) if len(parts) == 1 else tuple(parts))
    if path.parts[0] in TEMPORARY:
        refuse("a temporary view: name the tables that it reads", view=str(path))
    if path.parts[0] in FORMATS or any("/" in part for part in parts) or "." in path.parts[0]:
        refuse("files by their path are no table that can be locked", at=str(path))
    return path


def _read_words(statement: str) -> Iterator[Word]:
    for token in tokenize(statement):
        if token.token_type in {*_SIGNS, TokenType.NUMBER}:
            key = token.text if token.token_type is TokenType.NUMBER else ""
            yield Word(key, token.text, token.token_type, token.start, token.end + 1)
            continue
        for part in re.finditer(r"\S+", statement[token.start : token.end + 1]):
            # The tokenizer treats MSCK REPAIR as one word.
            start, end = token.start + part.start(), token.start + part.end()
            yield Word(part[0].upper(), part[0], token.token_type, start, end)


class Shape(NamedTuple):
    """Words as one text: a space before each word or its sign, and `()` for each outermost pair of
    parentheses. words: the number of the word at each position of the text."""

    text: str
    words: Mapping[int, int]


def make_shape(words: Sequence[Word], start: int = 0, *, folded: bool = True) -> Shape:
    """Return the shape of the words from `start` on. folded: write parentheses as `()`."""
    text, at, depth = "", {}, 0
    for number, word in enumerate(words[start:], start):
        closes = folded and depth > 0 and word.key == ")"
        depth -= closes
        if not depth:
            at[len(text)] = number
            text += ")" if closes else f" {_SIGNS.get(word.kind, word.key)}"
        depth += folded and word.key == "("
    at[len(text)] = len(words)
    return Shape(text, at)


Rewrite = tuple[re.Pattern[str], Callable[[Sequence[Word], str], str]]


def replace_words(statement: str, rewrites: Iterable[Rewrite]) -> str:
    """Replace words where the shape of the statement matches a pattern. Each rewrite gets the
    matched words and their text without the first word."""
    for pattern, rewrite in rewrites:
        words = list(_read_words(statement))
        shape = make_shape(words, folded=False)
        for match in reversed(list(pattern.finditer(shape.text))):
            those = words[shape.words[match.start()] : shape.words[match.end()]]
            start, end = those[0].start, those[-1].end
            written = rewrite(those, statement[those[0].end : end])
            statement = f"{statement[:start]} {written} {statement[end:]}"
    return statement


_KINDS: dict[TokenType, ConstantKind] = {
    TokenType.STRING: "string",
    TokenType.NUMBER: "number",
    TokenType.TRUE: "boolean",
    TokenType.FALSE: "boolean",
    TokenType.NULL: "null",
}


def _read_constant(words: list[Word]) -> Constant | None:
    match words:
        case [Word(kind=kind, text=text)] if kind in _KINDS:
            return Constant(_KINDS[kind], text)
        case [Word(key="-"), Word(kind=TokenType.NUMBER, text=text)]:
            return Constant("number", f"-{text}")
        case [Word(key="DATE"), Word(kind=TokenType.STRING, text=text)]:
            return Constant("date", text)
    return None


def bind_values(sql: str, args: Args | None = None) -> str:
    """Replace parameter markers by their values, and IDENTIFIER(..) by the name that it gives.
    args: as in `spark.sql`, by name or in order."""
    if not isinstance(args, Mapping | Sequence | None) or isinstance(args, str | bytes):
        raise InvalidRequestError(f"args are values by name, or in order: given={args!r}")
    if args and not isinstance(args, Mapping) and len(split_statements(sql)) > 1:
        refuse_statement(sql, "values in order are of one statement")
    found, end = "", 0
    for first, last, value in _find_markers(sql, args or {}):
        if (literal := _make_literal(value)) is not None:
            found += sql[end:first] + literal
            end = last
    return replace_words(found + sql[end:], [(_IDENTIFIER, _read_name)])


def _find_markers(text: str, args: Args) -> Iterator[tuple[int, int, Any]]:
    """Yield start, end and value of each marker. A colon directly after a word is none."""
    tokens = tokenize(text)
    values = iter(() if isinstance(args, Mapping) else args)
    for token, following in pairwise([*tokens, None]):
        if token is None:
            return
        if token.token_type is TokenType.PLACEHOLDER:
            yield from ((token.start, token.end + 1, value) for value in islice(values, 1))
        elif token.token_type is TokenType.COLON and following is not None:
            is_marker = following.start == token.end + 1 and not _WORD.match(text[token.start - 1])
            if is_marker and isinstance(args, Mapping) and following.text in args:
                yield token.start, following.end + 1, args[following.text]


def _make_literal(value: Any) -> str | None:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case float() | Decimal():
            return format(Decimal(value), "f") if math.isfinite(value) else None
        case datetime():
            return None
        case date():
            return f"DATE'{value}'"
        case str() if _PLAIN.fullmatch(value):
            return f"'{value}'"
        case str():  # no reader treats this as a constant, but it ends at the right quote
            return "'" + "".join(f"\\u{ord(each):04x}" for each in value) + "'"
    return None


def _read_name(words: Sequence[Word], _: str) -> str:
    text = "".join(word.text for word in words if word.kind is TokenType.STRING)
    if any(word.kind is TokenType.RAW_STRING for word in words):
        refuse_statement(text, "a name whose spelling is not certain")
    names = WordReader(text, "")
    parts = [names.read_identifier()]
    while names.accept("."):
        parts.append(names.read_identifier())
    names.expect_end()
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)
