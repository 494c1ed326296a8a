"""Pages of a MediaWiki XML export, read as a stream in constant memory, whatever its schema version and encoding.

Of a page with several revisions (dumps of whole histories) the last one counts. Broken XML costs the page in which it
lies, or all that follows where no further page begins.
"""

import dataclasses
import io
import re
from collections.abc import Iterator
from xml.parsers import expat

BLOCK_BYTES = 1 << 18
MOST_CHARACTERS = 4 << 20  # of a page: twice what MediaWiki accepts
FILE, CATEGORY, MEDIA = 6, 14, -2  # keys of namespaces that every wiki has
ENGLISH = {MEDIA: ("media",), FILE: ("file", "image"), CATEGORY: ("category",)}
# `#REDIRECT [[Target]]`, or a word of another language in its place and nothing else in the line
REDIRECT = re.compile(
    r"\s*#(?:redirect\b[^\n]*?\[\[|\w+[ \t]*:?[ \t]*\[\[[^\]\n]+\]\][ \t]*(?:\n|\{\{|$))", re.IGNORECASE
)

NOT_TEXT, NOT_AN_ARTICLE, IS_REDIRECT = "no wikitext", "another namespace", "redirect"
TOO_LONG = f"longer than {MOST_CHARACTERS:,} characters"
BROKEN, CUT_OFF = "broken XML", "the file breaks off, the rest is lost"


@dataclasses.dataclass
class Site:
    """The wiki of a dump, as its head says."""

    name: str = ""  # such as enwiki
    # lower-case names by key, English ones included
    namespaces: dict[int, tuple[str, ...]] = dataclasses.field(default_factory=lambda: dict(ENGLISH))

    def add(self, key: int, name: str) -> None:
        if name:
            self.namespaces[key] = (*self.namespaces.get(key, ()), name.lower())

    def namespace_of(self, title: str) -> int:
        """By the prefix of a title: old dumps do not say it otherwise."""
        prefix, colon, _ = title.partition(":")
        found = [key for key, names in self.namespaces.items() if colon and prefix.strip().lower() in names]
        return found[0] if found else 0


@dataclasses.dataclass
class Page:
    """One page, or the reason why there is none."""

    site: Site
    line: int  # of the file, where it begins
    id: str = ""
    title: str = ""
    namespace: int | None = None
    text: str = ""
    problem: str = ""
    damage: bool = False  # whether the problem is one of the file


def pages(handle: io.BufferedIOBase) -> Iterator[Page]:
    """All pages, in order; those that are no articles have no text but a `problem`."""
    reader, rest = _Reader(), b""
    while block := rest or handle.read(BLOCK_BYTES):
        rest = b""
        try:
            reader.feed(block)
        except expat.ExpatError as error:
            yield from reader.take()
            yield reader.problem(f"{BROKEN} ({expat.ErrorString(error.code)})")
            rest = reader.skip(block, handle)
            if not rest:
                return
        except (LookupError, ValueError) as error:  # an encoding that Python or expat does not know
            yield reader.problem(f"{BROKEN} ({error})")
            return
        yield from reader.take()
        if reader.foreign:
            yield reader.problem(f"no MediaWiki export, but <{reader.foreign}>")
            return
    try:
        reader.end()
    except expat.ExpatError:
        yield reader.problem(CUT_OFF)


class _Reader:
    """Feeds expat and collects what it finds."""

    def __init__(self) -> None:
        self.site, self.found, self.foreign = Site(), [], ""
        self.encoding, self.line_before = "utf-8", 0
        self._begin(None)

    def _begin(self, encoding: str | None) -> None:
        self.path: list[str] = []
        self.page: Page | None = None
        self.redirect, self.model, self.key = False, "", 0
        self.parts: list[str] = []
        self.size = self.fed = 0
        parser = self.parser = expat.ParserCreate(encoding)
        parser.buffer_text, parser.buffer_size = True, 1 << 16
        parser.XmlDeclHandler = self._declared
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._stop

    def feed(self, block: bytes) -> None:
        if not self.fed and block[:2] in (b"\xff\xfe", b"\xfe\xff"):
            self.encoding = "utf-16le" if block[:1] == b"\xff" else "utf-16be"
        self.block_start = self.fed
        self.fed += len(block)
        self.parser.Parse(block, False)

    def end(self) -> None:
        self.parser.Parse(b"", True)

    def take(self) -> list[Page]:
        found, self.found = self.found, []
        return found

    def problem(self, reason: str) -> Page:
        return Page(self.site, self.line_before + self.parser.CurrentLineNumber, problem=reason, damage=True)

    def skip(self, block: bytes, handle: io.BufferedIOBase) -> bytes:
        """After an error: what begins with the next page, with a parser ready for it; empty where none follows."""
        sign, newline = "<page>".encode(self.encoding), "\n".encode(self.encoding)
        line = self.line_before + self.parser.ErrorLineNumber - 1
        block = block[max(0, self.parser.ErrorByteIndex - self.block_start) :]
        while (at := block.find(sign)) < 0:
            line += block[: len(block) - len(sign) + 1].count(newline)
            more = handle.read(BLOCK_BYTES)
            if not more:
                return b""
            block = block[-len(sign) + 1 :] + more
        self.line_before = line + block[:at].count(newline)
        self._begin(self.encoding)
        self.feed("<mediawiki>".encode(self.encoding))
        return block[at:]

    def _declared(self, version: str, encoding: str | None, standalone: int) -> None:
        if encoding and not encoding.lower().startswith("utf-16"):
            self.encoding = encoding

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        tag = tag.rpartition(":")[2]
        self.path.append(tag)
        depth = len(self.path)
        if depth == 1 and tag != "mediawiki":
            self.foreign = self.foreign or tag
        elif depth == 2 and tag == "page":
            self.page = Page(self.site, self.line_before + self.parser.CurrentLineNumber)
            self.redirect = False
        elif depth == 3 and tag == "redirect" and self.page:
            self.redirect = True
        elif depth == 3 and tag == "revision" and self.page:
            self.model, self.page.text, self.page.problem = "", "", ""
        elif tag == "namespace":
            self.key = attributes.get("key", "")
        if tag in _WANTED and tuple(self.path[1:]) in _PATHS:
            self.parts, self.size = [], 0
            self.parser.CharacterDataHandler = self._characters

    def _characters(self, text: str) -> None:
        self.size += len(text)
        if self.size <= MOST_CHARACTERS:
            self.parts.append(text)

    def _stop(self, tag: str) -> None:
        path = tuple(self.path[1:])
        self.path.pop()
        if path in _PATHS:
            self.parser.CharacterDataHandler = None
            self._value(path[-1], "".join(self.parts))
            self.parts = []
        elif path == ("page",):
            self.found.append(_judged(self.page, self.redirect, self.model))
            self.page = None

    def _value(self, tag: str, value: str) -> None:
        if tag == "dbname":
            self.site.name = value.strip()
        elif tag == "namespace":
            self.site.add(_number(self.key), value.strip())
        elif tag == "ns":
            self.page.namespace = _number(value)
        elif tag == "model":
            self.model = value.strip()
        elif tag == "text":
            too_long = self.size > MOST_CHARACTERS
            self.page.text, self.page.problem = ("", TOO_LONG) if too_long else (value, "")
        else:
            setattr(self.page, tag, value.strip())


_PATHS = {
    ("siteinfo", "dbname"),
    ("siteinfo", "namespaces", "namespace"),
    *(("page", tag) for tag in ("title", "ns", "id")),
    *(("page", "revision", tag) for tag in ("model", "text")),
}
_WANTED = {path[-1] for path in _PATHS}


def _number(text: str) -> int:
    """0, the namespace of articles, for what is no number."""
    return int(text) if re.fullmatch(r"\s*-?\d{1,9}\s*", text) else 0


def _judged(page: Page, redirect: bool, model: str) -> Page:
    """The page, with its problem and without its text if it is no article."""
    if page.namespace is None:
        page.namespace = page.site.namespace_of(page.title)
    if redirect or REDIRECT.match(page.text):
        page.problem = IS_REDIRECT
    elif page.namespace:
        page.problem = NOT_AN_ARTICLE
    elif model not in ("", "wikitext"):
        page.problem = NOT_TEXT
    if page.problem:
        page.text = ""
    return page
