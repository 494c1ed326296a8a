"""One pass over wikitext that leaves only what a parser can read fast: whole links and the templates that are rendered.

Comments, extension tags (references, galleries, code) and tables go; a template that is not rendered leaves a HOLE, a
formula that cannot be read as text a FORMULA, so that later steps can tell what once stood there. Brackets that nothing
closes, or that close nothing, go without what they enclose. All of it takes time in proportion to the text, whatever
the text.
"""

import re
from collections.abc import Callable

HOLE, FORMULA, SOUND = "\ue000", "\ue001", "\ue002"  # SOUND: how a word is pronounced
BREAK = "\ue003"  # a newline inside of a link or template
NOTHING = "\ue004"  # what vanished between apostrophes: keeps those before it from those after it
OWN = re.compile("[\ue000-\ue004]")
VANISHED = re.compile(f"{NOTHING}+")
DEEPEST = 20  # links and templates inside of one another that are kept

INVISIBLE_TAGS = "ref references indicator includeonly templatestyles templatedata section maplink"
FORMULA_TAGS = "math chem ce"
OTHER_TAGS = """
    gallery timeline imagemap pre syntaxhighlight source score graph chart mapframe hiero categorytree inputbox
    dynamicpagelist phonos
"""
KEPT_TAGS = "nowiki poem"
TAGS = [*INVISIBLE_TAGS.split(), *FORMULA_TAGS.split(), *OTHER_TAGS.split(), *KEPT_TAGS.split()]
OPENER = re.compile(rf"<(?:!--|({'|'.join(TAGS)})\b([^<>]*)>)", re.IGNORECASE)
CLOSERS = {tag: re.compile(rf"</{tag}\s*>", re.IGNORECASE) for tag in TAGS}
REOPENED = re.compile(r"<ref\b[^<>]*(?<!/)>", re.IGNORECASE)
SPECIAL = re.compile(r"[\[\]{}|'<*#:;=_]")

VARIANT = re.compile(r"-\{([^{}]*)\}-")  # Chinese, Serbian and others: `-{zh-cn:one;zh-tw:other}-`
VARIANT_NAME = re.compile(r"\s*[a-z]{2,3}(?:-[a-z]+)?\s*:")


def without_extensions(text: str) -> str:
    """Text without comments and extension tags; of `nowiki` and `poem` the content stays."""
    kept, at, closers = [], 0, {}
    while opener := OPENER.search(text, at):
        kept.append(text[at : opener.start()])
        at, tag = opener.end(), (opener[1] or "").lower()
        if not tag:
            at = _after_comment(text, opener.start(), at)
        elif opener[2].endswith("/"):
            kept.append(NOTHING)
        elif closer := _closer(text, tag, at, closers):
            kept.append(_extension(tag, text[at : closer.start()]))
            at = closer.end()
        elif tag == "ref":  # nothing closes it: it lasts to the end of its line
            at = text.find("\n", at) if "\n" in text[at : at + 10_000] else at
    kept.append(text[at:])
    return settled("".join(kept))


def settled(text: str) -> str:
    """Text with NOTHING only where it parts apostrophes."""

    def kept(match: re.Match) -> str:
        parts = text[match.start() - 1 : match.start()] == "'" and text.startswith("'", match.end())
        return NOTHING if parts else ""

    return VANISHED.sub(kept, text) if NOTHING in text else text


def _after_comment(text: str, start: int, at: int) -> int:
    """Where the text goes on; a comment that stands alone in its line takes the line with it."""
    end = text.find("-->", at)
    if end < 0:
        return len(text)
    end += 3
    before = text[max(0, start - 80) : start].rstrip(" \t")
    following = end
    while following < len(text) and text[following] in " \t":
        following += 1
    alone = before.endswith("\n") and text[following : following + 1] == "\n"
    return following + 1 if alone else end


def _closer(text: str, tag: str, at: int, known: dict[str, re.Match | None]) -> re.Match | None:
    """What closes a tag that was opened before `at`. known: the next closers, so that none is looked for twice."""
    if tag not in known or (known[tag] and known[tag].start() < at):
        known[tag] = CLOSERS[tag].search(text, at)
    closer = known[tag]
    if closer and tag == "ref" and REOPENED.search(text, at, closer.start()):
        return None
    return closer


def _extension(tag: str, content: str) -> str:
    if tag == "nowiki":
        return SPECIAL.sub(lambda sign: f"&#{ord(sign[0])};", content)
    if tag == "poem":
        return content.replace("\n", "\n:")
    if tag in FORMULA_TAGS:
        return formula(content)
    return NOTHING if tag in INVISIBLE_TAGS else HOLE


TEX_SPACE = re.compile(r"\\[,;:! ]|\\q?quad\b|~")
TEX_STYLE = re.compile(r"\\(?:mathrm|mathbf|mathit|mathbb|mathcal|text|textrm|operatorname|boldsymbol|displaystyle)\b")
TEX_SIGNS = dict(
    times="×", cdot="·", pm="±", le="≤", leq="≤", ge="≥", geq="≥", ne="≠", neq="≠", approx="≈", infty="∞", to="→",
    rightarrow="→", alpha="α", beta="β", gamma="γ", delta="δ", epsilon="ε", varepsilon="ε", zeta="ζ", eta="η",
    theta="θ", iota="ι", kappa="κ", lambda_="λ", mu="μ", nu="ν", xi="ξ", pi="π", rho="ρ", sigma="σ", tau="τ",
    upsilon="υ", phi="φ", varphi="φ", chi="χ", psi="ψ", omega="ω", Gamma="Γ", Delta="Δ", Theta="Θ", Lambda="Λ",
    Pi="Π", Sigma="Σ", Phi="Φ", Psi="Ψ", Omega="Ω",
)  # fmt: skip
TEX_SIGN = re.compile(r"\\([A-Za-z]+)")
READABLE = re.compile(r"[\w +\-−=<>(),.;:/'|×·±≤≥≠≈∞→!%°]{1,40}")


def formula(tex: str) -> str:
    """A short formula without fractions, powers and the like as text; else the sign for one."""
    tex = TEX_STYLE.sub("", TEX_SPACE.sub(" ", tex))
    tex = TEX_SIGN.sub(lambda name: TEX_SIGNS.get(name[1], TEX_SIGNS.get(f"{name[1]}_", name[0])), tex)
    tex = " ".join(tex.replace("{", "").replace("}", "").split())
    plain = READABLE.fullmatch(tex) and "_" not in tex and "||" not in tex
    return tex.replace("<", "&lt;").replace("|", "&#124;") if plain else FORMULA


def first_variant(match: re.Match) -> str:
    """Of the forms for several variants of a language the first one; settings for the whole page are no text."""
    flags, bar, content = match[1].rpartition("|")
    if bar and set(flags.upper()) & set("HT-"):
        return ""
    forms = content.split(";")
    return VARIANT_NAME.sub("", forms[0]) if VARIANT_NAME.match(forms[0]) else content


TEMPLATE, PARAMETER, LINK, URL, TABLE, PAGE = "template", "parameter", "link", "url", "table", "page"
TOKEN = re.compile(
    r"""
      (?P<open> \{{2,} )
    | (?P<close> \}{2,} )
    | (?P<link> \[\[ (?!\[[^\[]) )
    | (?P<url> \[ (?= (?:https?:|ftps?:|ircs?:|gopher:)?// | mailto: ) )
    | (?P<end> \]+ )
    | (?P<table> (?: ^ [ \t:*#;]* | (?<=\}\}) ) \{\| | <table\b [^<>]* > )
    | (?P<untable> ^ [ \t]* \|\} (?: (?=\}\}) | (?!\}) ) | </table \s* > )
    """,
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
AFTER_TABLE = re.compile(
    rf"\n[ \t{NOTHING}]*\n(?![ \t{NOTHING}]*[|!\n])|\n(?==)"
)  # where one that nothing closes probably ends


class _Frame:
    """An open bracket and what stands in it so far."""

    __slots__ = ("height", "kind", "line", "parts")

    def __init__(self, kind: str, line: int):
        self.kind, self.line, self.parts, self.height = kind, line, [], 0


class Brackets:
    """Reads brackets with a stack. template, link: what stands for a whole one, given its content."""

    def __init__(self, template: Callable[[str], str], link: Callable[[str], str]):
        self.template, self.link = template, link

    def __call__(self, text: str) -> str:
        self.frames = [_Frame(PAGE, 0)]
        self.open: dict[str, list[int]] = {kind: [] for kind in (TEMPLATE, PARAMETER, LINK, URL, TABLE)}
        at = line = 0
        while token := TOKEN.search(text, at):
            start = token.start()
            self.frames[-1].parts.append(text[at:start])
            line = max(line, text.rfind("\n", at, start) + 1)
            at = token.end()
            sort, size = token.lastgroup, at - start
            if sort == "open":
                self._push(PARAMETER if size == 3 else TEMPLATE, line, 1 if size < 4 else size // 2)
            elif sort == "close":
                self._close_braces(size)
            elif sort == "link":
                self._push(LINK, line)
            elif sort == "url":
                self._push(URL, line)
            elif sort == "end":
                self._close_square(size, line)
            elif sort == "table":
                self._push(TABLE, line)
            elif self.open[TABLE]:
                self._close(TABLE)
            else:
                at = start + token[0].find("|") + 1 if "|" in token[0] else at
        self.frames[-1].parts.append(text[at:])
        return "".join(part for frame in self.frames for part in _rest(frame))

    def _push(self, kind: str, line: int, times: int = 1) -> None:
        for _ in range(times):
            self.open[kind].append(len(self.frames))
            self.frames.append(_Frame(kind, line))

    def _close(self, kind: str) -> None:
        """Closes the innermost bracket of a kind; what is still open inside of it loses its brackets."""
        place = self.open[kind][-1]
        frame = self.frames[place]
        for inner in self.frames[place + 1 :]:
            frame.parts += _rest(inner)
            frame.height = max(frame.height, inner.height)
        for other in self.frames[place:]:
            self.open[other.kind].pop()
        del self.frames[place:]
        outer = self.frames[-1]
        height = frame.height + 1
        if kind == TABLE:
            outer.parts.append("\n\n")
            return
        content = "".join(frame.parts)
        if kind == PARAMETER or height > DEEPEST:
            result = HOLE
        elif kind == TEMPLATE:
            result = self.template(content)
        else:
            result = self.link(content) if kind == LINK else f"[{content}]"
        if result.startswith(("{{", "[")):
            outer.height = max(outer.height, height)
            result = result.replace("\n", BREAK)
        outer.parts.append(result)

    def _close_braces(self, size: int) -> None:
        while size >= 2 and (self.open[TEMPLATE] or self.open[PARAMETER]):
            template = (self.open[TEMPLATE] or [0])[-1]
            parameter = (self.open[PARAMETER] or [0])[-1]
            if parameter > template:
                self._close(PARAMETER)
                size -= 3
            else:
                self._close(TEMPLATE)
                size -= 2

    def _close_square(self, size: int, line: int) -> None:
        left = size
        while left:
            urls, links = self.open[URL], self.open[LINK]
            top = self.frames[-1]
            if urls and self.frames[urls[-1]].line == line and (not links or urls[-1] > links[-1]):
                self._close(URL)
                left -= 1
            elif (left >= 2 and links and (top.kind == LINK or self.frames[links[-1]].line == line)) or (
                left >= 2 and links and top.kind == URL
            ):
                self._close(LINK)
                left -= 2
            else:
                break
        if left == 1 and size == 1:
            self.frames[-1].parts.append("]")


def _rest(frame: _Frame) -> list[str]:
    """The content of a bracket that nothing closes."""
    if frame.kind != TABLE:
        return frame.parts
    text = "".join(frame.parts)
    end = AFTER_TABLE.search(text)
    return ["\n\n", text[end.end() :] if end else ""]
