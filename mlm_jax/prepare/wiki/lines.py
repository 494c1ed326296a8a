"""Rendered lines to paragraphs: what a hole costs, which parentheses go, and which sections hold prose."""

import dataclasses
import re
import unicodedata

from mlm_jax.prepare.sentences import CLOSERS, SPACED, UNSPACED, sentence_ends
from mlm_jax.prepare.wiki.scan import FORMULA, HOLE, SOUND
from mlm_jax.text import IDEOGRAPHS

HOLES = re.compile(f"[{HOLE}{FORMULA}{SOUND}]")
AROUND_HOLE = re.compile(f" *{HOLE}(?: *{HOLE})* *")
BEFORE_CONTENT = "/#&~"  # what stands before a value, a name, a quotation; and by category:
OPENING = ("Ps", "Pi", "Pd", "Sc", "Sm")  # brackets, quotation marks, dashes, signs of currencies, of mathematics
QUOTES = "\"'“‘«„"
INNERMOST = re.compile(r"[(（\[][^()（）\[\]]*[)）\]]")
SEPARATOR = re.compile(r"([;,，；、؛،])")
# bounds: time grows with the text alone
EMPTY = re.compile(r"\s[(（][\s;,，；、؛،:]{,20}[)）]|[（][\s;,，；、:]{,20}[）]|(?<![\w\])])\([\s;,:]{,20}\)|\s\[\]")
AFTER_OPENING = re.compile(r"([(（])[\s;,，；、]+")
BEFORE_CLOSING = re.compile(r"[\s;,，；、]{1,20}([)）])")
SPACE_BEFORE_SIGN = re.compile(r" +(?=[,.;](?: |$))")
REPEATED = re.compile(r"([,;，；、]) ?(?=[,;，；、])|, ?(?=[.](?: |$))")
MARKUP = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|'{2,}|</?(?:ref\w*|(?:nowiki|noinclude|onlyinclude)\b)[^<>]*>?")
OF_TABLES = re.compile(r"\|\||(?:colspan|rowspan|cellpadding|cellspacing|bgcolor)\s*=", re.IGNORECASE)


def mended(line: str) -> str:
    """A line without holes: marks of editors go without a trace, a value that is missing takes its sentence with it.

    Whether it was a mark or a value is told by its place: marks are attached to the word before them, or stand before
    the first or after the last word of a sentence. How a word is pronounced can always be left out.
    """
    if HOLE in line:
        line = AROUND_HOLE.sub(_judged, line).strip()
    for _ in range(3):  # parentheses within one another
        if not HOLES.search(line):
            break
        line = INNERMOST.sub(_without_parts, line)
    line = line.replace(SOUND, "")
    if HOLES.search(line):
        line = _without_sentences(" ".join(line.split()), HOLES)
    line = " ".join(MARKUP.sub(" ", line).split())  # no sign of markup comes about by what goes
    if "(" in line or "（" in line or "[]" in line:
        line = MARKUP.sub(" ", EMPTY.sub("", BEFORE_CLOSING.sub(r"\1", AFTER_OPENING.sub(r"\1", line))))
    line = " ".join(SPACE_BEFORE_SIGN.sub("", REPEATED.sub(r"\1", line)).split())
    return _without_sentences(line, OF_TABLES) if OF_TABLES.search(line) else line


def _judged(match: re.Match) -> str:
    """What stands for a hole and the spaces around it: nothing where it was a mark, else a FORMULA."""
    line, found = match.string, match[0]
    before, after = line[: match.start()][-1:], line[match.end() : match.end() + 1]
    next_letter = line[match.end() + 1 : match.end() + 2] if after and after in QUOTES else after
    begins = not after or found[-1] != " " or not (next_letter.islower() or next_letter in ",;:.)")
    space = " " if found[0] == " " or found[-1] == " " else ""
    if not before:
        return "" if begins else f"{FORMULA} "
    if found[0] != " " and before not in BEFORE_CONTENT and unicodedata.category(before) not in OPENING:
        return space  # attached to a word or a sign
    if found[0] == " " and before in ".!?\"”»)'…" and begins:
        return space
    return f"{' ' if found[0] == ' ' else ''}{FORMULA}{' ' if found[-1] == ' ' else ''}"


def _without_parts(match: re.Match) -> str:
    """Parentheses without those of their parts, between commas or semicolons, that have a hole."""
    if not HOLES.search(match[0]):
        return match[0]
    opening, *parts, closing = match[0][0], *SEPARATOR.split(match[0][1:-1]), match[0][-1]
    kept = ""
    for at in range(0, len(parts), 2):
        if not HOLES.search(parts[at]):
            kept += (parts[at - 1] if kept and at else "") + parts[at]
    return f"{opening}{kept.strip()}{closing}"


def _without_sentences(line: str, sign: re.Pattern) -> str:
    """A line without the sentences in which a sign is found."""
    start, kept = 0, []
    for end in [*sentence_ends([line])[1].tolist(), len(line)]:
        if not sign.search(line, start, end):
            kept.append(line[start:end])
        start = end
    return "".join(kept).strip()


@dataclasses.dataclass
class Line:
    """A paragraph, an item of a list (of links alone, or not), or a heading (level above 0)."""

    text: str
    item: bool = False
    links: bool = False
    level: int = 0


# Titles of sections that hold sources and pointers; elsewhere the structure tells.
LEFTOVERS = frozenset(
    title.strip()
    for title in """
    references|notes|footnotes|citations|sources|works cited|bibliography|further reading|external links|see also
    notes and references|references and notes|external references|general references|notes and citations|gallery
    footnotes and references|references and further reading|sources and further reading|further information
    einzelnachweise|weblinks|literatur|siehe auch|anmerkungen|quellen|belege
    références|notes et références|voir aussi|liens externes|bibliographie|articles connexes|annexes|liens internes
    referencias|véase también|enlaces externos|bibliografía|notas|notas y referencias
    note|collegamenti esterni|voci correlate|bibliografia|altri progetti
    referências|ver também|ligações externas|zie ook|externe links|referenties|bronnen
    примечания|ссылки|литература|см. также|источники|бележки|източници|външни препратки|вижте също|литература
    przypisy|linki zewnętrzne|zobacz też|посилання|примітки|див. також|джерела|література
    se även|referenser|externa länkar|källor|kaynakça|ayrıca bakınız|dış bağlantılar
    脚注|注釈|出典|参考文献|関連項目|外部リンク|参考资料|参考資料|参见|參見|外部链接|外部連結|注释|延伸阅读|相关条目
    각주|같이 보기|외부 링크|참고 문헌|مراجع|انظر أيضا|وصلات خارجية|המשך קריאה|קישורים חיצוניים|הערות שוליים|ראו גם
    """.replace("\n", "|").split("|")
    if title.strip()
)
PROSE, PROSE_ITEM = 40, 60  # letters of a paragraph, of an item, that make it prose
DENSE = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in IDEOGRAPHS)}ぁ-ヿ가-힣]")
SENTENCE_SIGN = re.compile(f"[{SPACED}{UNSPACED}]")


def paragraphs(lines: list[Line]) -> list[str]:
    """Texts of the lines without the sections that hold no prose; a heading stays where anything below it does."""
    kept: list[str] = []
    pending: list[Line] = []  # headings that nothing followed yet
    skipped = 0  # level of a section of sources, with all its subsections
    for heading, body in _sections(lines):
        if heading:
            if skipped and heading.level > skipped:
                continue
            skipped = heading.level if heading.text.strip(" :").lower() in LEFTOVERS else 0
            if skipped:
                continue
            pending = [other for other in pending if other.level < heading.level] + [heading]
        prose = [line for line in body if _is_prose(line)]
        if prose:  # a list stays whole beside a paragraph only
            whole = not all(line.item for line in prose)
            kept += [line.text for line in pending + (body if whole else prose)]
            pending = []
        elif not heading:  # what stands before the first heading needs no length
            kept += [line.text for line in body if not line.item and line.text[-1] not in ":："]
    return kept


def _sections(lines: list[Line]) -> list[tuple[Line | None, list[Line]]]:
    found: list[tuple[Line | None, list[Line]]] = [(None, [])]
    for line in lines:
        if line.level:
            found.append((line, []))
        else:
            found[-1][1].append(line)
    return found


def _is_prose(line: Line) -> bool:
    """Whether a line has a sentence: long enough, with a sign that ends one; paragraphs need no sign if longer."""
    if line.links or not line.text:
        return False
    size = len(line.text)
    if size < 3 * PROSE:
        size += 2 * len(DENSE.findall(line.text))
    ended = bool(SENTENCE_SIGN.match(line.text.rstrip(CLOSERS)[-1:]))
    if line.item:
        return size >= PROSE_ITEM and ended
    return line.text[-1] not in ":：" and size >= PROSE and (bool(SENTENCE_SIGN.search(line.text)) or size >= 3 * PROSE)
