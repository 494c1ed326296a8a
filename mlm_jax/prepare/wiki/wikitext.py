"""Wikitext to prose: `prose(text)`."""

import html
import re

from mlm_jax.prepare.wiki import templates
from mlm_jax.prepare.wiki.dump import CATEGORY, FILE, Site
from mlm_jax.prepare.wiki.lines import Line, mended, paragraphs
from mlm_jax.prepare.wiki.scan import (
    BREAK,
    HOLE,
    NOTHING,
    OWN,
    SOUND,
    VARIANT,
    Brackets,
    first_variant,
    settled,
    without_extensions,
)
from mlm_jax.prepare.wiki.templates import superscript
from mlm_jax.text import is_ideograph

HTML_TAGS = """
    abbr b bdi bdo big blockquote br caption center cite code data dd del dfn div dl dt em font gallery h1 h2 h3
    h4 h5 h6 hr i includeonly ins kbd li link mark math meta noinclude nowiki ol onlyinclude p poem q rb ref
    references rp rt rtc ruby s samp score section small span strike strong sub sup table tbody td th time tr tt u
    ul var wbr
"""
TAG = re.compile(rf"<(/?)({'|'.join(HTML_TAGS.split())})\b([^<>]*)>", re.IGNORECASE)
BLOCK_TAGS = "blockquote caption center dd div dl dt h1 h2 h3 h4 h5 h6 hr li ol p poem table td th tr ul"
BLOCKS = frozenset(BLOCK_TAGS.split())
RAISED = re.compile(r"<sup\b[^<>]*>([^<>\n]*)</sup\s*>", re.IGNORECASE)
READING = re.compile(r"<(rt|rp)\b[^<>]*>[^<>\n]*</\1\s*>", re.IGNORECASE)  # of the characters before it
SWITCH = re.compile(r"__([^\W\d_]+(?:_[^\W\d_]+)*)__")
LANGUAGE_LINK = re.compile(r"(?!(?:doi|rfc|irc|mw|oeis|wmf):)[a-z]{2,3}(?:-[a-z]{2,})*:|simple:")
MEDIA_NAME = re.compile(
    r"[^:|\[\]]+:[^|\[\]]+\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gva]|webm|pdf|djvu|midi?|xcf|flac|wav|mp[34]|stl)\s*(?:\||$)",
    re.IGNORECASE,
)
LINE_OF_LINKS = re.compile(r"(?:\s*\[\[[^\[\]|:]+:[^\[\]]+\]\])+\s*")  # categories, other languages
LINKS = re.compile(r"\[\[[^\[\]]*\]\]|\[[^\[\]]*\]")
PLAIN_LINK = re.compile(r"\[\[([^\[\]{}|&<]+)(?:\|([^\[\]{}|&<]*))?\]\]")  # a quick way for most
BARE_URL = re.compile(r"(?:https?|ftp)://[^\s<>\[\]\"|]+")
QUOTES = re.compile("'{2,}")
LIST_SIGNS = "*#:;"
MOST_ARGUMENTS = 100  # of a template that is rendered: bounds the parser's time


def prose(text: str, site: Site | None = None) -> str:
    """The paragraphs of an article, one a line; empty where it has none.

    site: the wiki, whose names of namespaces tell files and categories from articles.
    """
    site = site or Site()
    files, categories = site.namespaces[FILE], site.namespaces[CATEGORY]
    text = without_extensions(OWN.sub("", text).replace("\r", ""))
    if "-{" in text:
        text = VARIANT.sub(first_variant, text)
    text = SWITCH.sub(lambda name: name[0] if name[1].upper() != name[1] else "", text)
    text = RAISED.sub(lambda tag: superscript(tag[1]), READING.sub("", text))
    text = Brackets(_kept_template, lambda content: _kept_link(content, files, categories))(text)
    text = TAG.sub(_tag, settled(text))
    return "\n".join(paragraphs(_lines(text)))


def _kept_template(content: str) -> str:
    name = templates.name_of(content)
    if name == templates.QUOTATION_OR_SOURCE and "=" in content:
        return NOTHING
    if templates.rule_of(name) and content.count("|") <= MOST_ARGUMENTS:
        return "{{" + content + "}}"
    if templates.SOUNDS.match(name):
        return SOUND
    return NOTHING if templates.invisible(name) else HOLE


def _kept_link(content: str, files: tuple[str, ...], categories: tuple[str, ...]) -> str:
    """A link as it is; nothing for a file, a category, or the same article in another language."""
    target = content[:500].partition("|")[0].strip()
    prefix, colon, _ = target.partition(":")
    if colon and prefix:
        prefix = prefix.strip().replace("_", " ").lower()
        if prefix in files or prefix in categories or MEDIA_NAME.match(content[:500]):
            return ""
        if LANGUAGE_LINK.match(target) and "|" not in content:
            return ""
    return f"[[{content}]]"


def _tag(match: re.Match) -> str:
    closing, tag = match[1], match[2].lower()
    if tag == "q":
        return "”" if closing else "“"
    if tag == "br":
        return "\n"
    return "\n\n" if tag in BLOCKS else ""


def _lines(text: str) -> list[Line]:
    """Paragraphs, items and headings, rendered. Lines of a paragraph stand in one another's wake until an empty one."""
    found: list[Line] = []
    open_paragraph: list[str] = []

    def end_paragraph() -> None:
        if open_paragraph:
            raw = _joined(open_paragraph)
            open_paragraph.clear()
            found.extend(Line(text) for text in _rendered(raw))

    for line in text.split("\n"):
        stripped = line.strip()
        bare = stripped.replace(HOLE, "").strip()
        if not bare or bare.startswith("----") or LINE_OF_LINKS.fullmatch(bare):
            end_paragraph()
        elif bare[0] == "=" and bare[-1] == "=" and len(bare) > 2:
            end_paragraph()
            level = min(len(bare) - len(bare.lstrip("=")), len(bare) - len(bare.rstrip("=")), 6)
            title = " ".join(_rendered(bare[level:-level])) if level * 2 < len(bare) else ""
            found.append(Line(title, level=max(1, level)))
        elif bare[0] in LIST_SIGNS:
            end_paragraph()
            item = stripped.lstrip(LIST_SIGNS + HOLE + " ")
            if bare[0] == ";":
                item = item.replace(" : ", ": ", 1)
            signs = bare[: len(bare) - len(bare.lstrip(LIST_SIGNS))]
            listed = "*" in signs or "#" in signs
            links = listed and not re.search(r"\w", LINKS.sub("", item))
            found.extend(Line(text, listed, links) for text in _rendered(item))
        elif bare[0] == "|" or (bare[0] == "!" and bare[:2] != "!!" and ("|" in bare or "!!" in bare)):
            end_paragraph()  # the rest of a table that a template began
        else:
            open_paragraph.append(stripped)
    end_paragraph()
    return found


def _joined(lines: list[str]) -> str:
    """Lines as one; a space between them, but between ideographs."""
    text = lines[0]
    for line in lines[1:]:
        text += ("" if is_ideograph(text[-1]) and is_ideograph(line[0]) else " ") + line
    return text


def _rendered(raw: str) -> list[str]:
    """The text of a line of markup without its holes: one paragraph or, of a quotation, several; none: all is gone."""
    text = _quotes(raw).replace(NOTHING, "") if "''" in raw else raw.replace(NOTHING, "")
    text = PLAIN_LINK.sub(lambda link: _shown(link[1], link[2] or ""), text)
    text = _inline(text) if "[" in text or "{{" in text else html.unescape(text)
    if "://" in text:
        text = BARE_URL.sub(HOLE, text)
    if "\n" in text or BREAK in text:
        pieces = re.split(rf"(?:{BREAK}\s*){{2,}}|\n", text)
        return [done for piece in pieces if (done := mended(" ".join(piece.replace(BREAK, " ").split())))]
    done = mended(" ".join(text.split()))
    return [done] if done else []


def _quotes(line: str) -> str:
    """Without the apostrophes that stand for bold and italics; where they do not match, one of three is a letter."""
    runs = list(QUOTES.finditer(line))
    sizes = [len(run[0]) for run in runs]
    bold, italic = sum(size in (3, 4) or size >= 5 for size in sizes), sum(size == 2 or size >= 5 for size in sizes)
    extra = -1
    if bold % 2 and italic % 2:
        threes = [index for index, size in enumerate(sizes) if size == 3]
        extra = next((index for index in threes if _after_one_letter(line, runs[index].start())), -1)
        if extra < 0:
            extra = next(
                (index for index in threes if line[runs[index].start() - 1 : runs[index].start()].isalnum()), -1
            )
    kept, at = [], 0
    for index, run in enumerate(runs):
        left = 1 if index == extra or sizes[index] == 4 else max(0, sizes[index] - 5)
        kept += [line[at : run.start()], "'" * left]
        at = run.end()
    return "".join(kept) + line[at:]


def _after_one_letter(line: str, place: int) -> bool:
    return place > 0 and line[place - 1].isalpha() and (place == 1 or line[place - 2] in ' ("“«-')


def _inline(text: str) -> str:
    """Links, templates and entities of a line as text."""
    import mwparserfromhell

    return _text_of(mwparserfromhell.parse(text.replace("<", "&lt;"), skip_style_tags=True))


def _text_of(code) -> str:  # mwparserfromhell.wikicode.Wikicode
    parts = []
    for node in code.nodes:
        kind = type(node).__name__
        if kind == "Text":
            parts.append(node.value)
        elif kind == "HTMLEntity":
            parts.append(html.unescape(str(node)))
        elif kind == "Wikilink":
            parts.append(_link_text(node))
        elif kind == "ExternalLink":
            parts.append(_text_of(node.title) if node.title is not None else "" if node.brackets else HOLE)
        elif kind == "Template":
            parts.append(_template_text(node))
        elif kind == "Argument":
            parts.append(HOLE)
        else:  # a heading, a list's sign: markup that the line was not meant to have
            parts.append(html.unescape(str(node)))
    return "".join(parts)


def _link_text(node) -> str:  # mwparserfromhell.nodes.Wikilink
    target = _text_of(node.title)
    return _shown(target, _text_of(node.text) if node.text is not None else "")


def _shown(target: str, label: str) -> str:
    """What readers see of a link."""
    target = target.strip()
    if label.strip():
        return label
    if target.startswith(("http://", "https://", "//")):  # one bracket too many
        return target.partition(" ")[2]
    return target.removeprefix(":").replace("_", " ")


def _template_text(node) -> str:  # mwparserfromhell.nodes.Template
    name = templates.name_of(str(node.name))
    rule = templates.rule_of(name)
    positional: dict[int, str] = {}
    named: dict[str, str] = {}
    for param in node.params:
        key, value = str(param.name).strip(), _text_of(param.value)
        if not param.showkey or (key.isdecimal() and int(key) < 100):
            positional[int(key)] = value.strip()
        else:
            named[key.lower()] = value.strip()
    args = [positional.get(place, "") for place in range(1, max(positional, default=0) + 1)]
    text = rule(args, named) if rule else None
    return HOLE if text is None else html.unescape(text)
