"""Wikipedia's XML dumps as a format of sources: the reading process finds pages, the workers make prose of them."""

import json
import re
from collections.abc import Iterator

from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.sources.needs import needed
from mlm_jax.prepare.sources.parts import Document, Fields, File, Piece, Unit
from mlm_jax.prepare.wiki.dump import Page, Site, pages
from mlm_jax.prepare.wiki.wikitext import prose

RANGE = re.compile(r"(?<=\.xml)-p\d+p\d+$")  # of pages, in the names of dumps of several files
INDEX = re.compile(r"-multistream-index\d*\.txt")  # where each page lies in a dump: no text


def without_range(name: str) -> str:
    """`a1.xml` of `a1.xml-p1p41242`."""
    return RANGE.sub("", name)


def cut(file: File, fields: Fields) -> Iterator[Piece]:
    """Parts of whole pages: a line of JSON for the wiki, then one for each page."""
    needed("mwparserfromhell", file.path)
    with file.open() as handle:
        kept: list[bytes] = []
        size, first, damage = 0, 1, {}
        for page in pages(handle):
            if page.damage:  # counted by kind, with the place of the first one
                page.problem = damage.setdefault(page.problem, f"{file.name}:{page.line}: {page.problem}")
            if not kept:
                kept, size, first = [_site_line(page.site)], 0, page.line
            kept.append(_page_line(page))
            size += len(kept[-1])
            if size >= parts.UNIT_BYTES:
                yield Piece(first, b"\n".join(kept))
                kept = []
        if kept:
            yield Piece(first, b"\n".join(kept))


def _site_line(site: Site) -> bytes:
    return json.dumps([site.name, list(site.namespaces.items())]).encode()


def _page_line(page: Page) -> bytes:
    values = [page.line, page.id or page.title, page.problem, page.text]
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")


def read(unit: Unit, fields: Fields) -> Iterator[Document]:
    """The articles of a unit as prose, named by wiki and page, such as `enwiki:12`, whatever the file and the day."""
    site_line, *page_lines = unit.data.split(b"\n")
    name, namespaces = json.loads(site_line)
    site = Site(name, {key: tuple(names) for key, names in namespaces})
    for line in page_lines:
        number, id, problem, text = json.loads(line)
        document = f"{name or unit.file.name}:{id}"
        yield Document(document, "" if problem else prose(text, site), f"{unit.file.path}:{number}", problem)
