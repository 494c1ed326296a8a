"""What a template is read as: few are rendered, by rules of their own; marks of the editors vanish; all else is a hole.

A rule takes the positional arguments (rendered, stripped) and the named ones, and gives the text, or None for a hole.
Names are compared in lower case, with spaces for underscores.
"""

import re
from collections.abc import Callable

Rule = Callable[[list[str], dict[str, str]], "str | None"]

# Notes, sources, marks of the editors, icons, layout: readers see no text where they stand, or a small sign.
INVISIBLE = """
    0|according to whom|anchor|anchors|belege|belege fehlen|better source|better source needed|by whom|cita requerida
    citation needed|clarify|clear|cn|col div end|colbegin|colend|commons category|contradict-inline|coord|dead link
    disambiguation needed|div col|div col end|dn|dubious|efn|efn-la|efn-lr|efn-ua|fact|failed verification
    featured article|flag icon|flagdeco|flagicon|full citation needed|good article|harvc|harvid|hidden sort key|hs
    inconsistent citations|inline citation|internetquelle|isbn|issn|jstor|literatur|main|nfn|note|note label|notetag
    oclc|or|original research inline|page needed|page number|pov statement|primary source inline|quantify|r|ref
    ref label|refbegin|refend|reflist|refn|rp|see also|sfn|sfnb|sfnm|sfnp|sfnref|short description|snf|sortkey|specify
    spoken wikipedia|synthesis inline|toc left|toc right|unreliable source|unreliable source?|update after
    update inline|use american english|use british english|use dmy dates|use mdy dates|vague|verification needed
    verify source|wayback|weasel inline|webarchive|when|where|which|who|why|year needed|источник?|когда|кто|уточнить
    來源請求|来源请求|要出典
"""
INVISIBLE_NAMES = frozenset(name.strip() for line in INVISIBLE.split("\n") for name in line.split("|") if name.strip())
INVISIBLE_STARTS = ("cite ", "harvard cit", "harvnb", "pp-", "#tag:ref", "defaultsort:", "displaytitle:")
SOUNDS = re.compile(r"(?:ipa[\w]*-|respell|pronunciation|audio|listen|aussprache|api$)")
INVISIBLE_ENDS = (" icon", "-stub")


def _first(args: list[str], named: dict[str, str]) -> str | None:
    return args[0] if args else None


def _second(args: list[str], named: dict[str, str]) -> str | None:
    return args[1] if len(args) > 1 else named.get("text") or named.get("texte")


def _last(args: list[str], named: dict[str, str]) -> str | None:
    return args[-1] if len(args) > 1 else None


def _quote(args: list[str], named: dict[str, str]) -> str | None:
    return next((named[name] for name in ("text", "quote", "content", "texte") if named.get(name)), _first(args, named))


def _together(args: list[str], named: dict[str, str]) -> str | None:
    return "".join(args) or None


def _shown(args: list[str], named: dict[str, str]) -> str | None:
    """All arguments as one word: `compl|ain` is `complain`; without any only a mark is left, or no sign at all."""
    return "".join(args[1:] if args[:1] == ["?"] else args)


def _passage(args: list[str], named: dict[str, str]) -> str | None:
    """The passage to which editors object, where the mark has one; a date follows it."""
    return args[0] if args else ""


def _greek(args: list[str], named: dict[str, str]) -> str | None:
    """A word (the first argument is a transcription), or a source if a third argument says so."""
    return "" if len(args) > 2 else args[1] if len(args) > 1 else None


def _words(args: list[str], named: dict[str, str]) -> str | None:
    """All arguments with spaces between them."""
    return " ".join(filter(None, args)) or None


def _around(before: str, after: str = "") -> Rule:
    def rule(args: list[str], named: dict[str, str]) -> str | None:
        return f"{before}{args[0]}{after}" if args and args[0] else None

    return rule


def _apostrophe(args: list[str], named: dict[str, str]) -> str | None:
    """An apostrophe that is none of markup, or single quotation marks around the argument."""
    return f"‘{args[0]}’" if args and args[0] else "'"


def _always(text: str) -> Rule:
    return lambda args, named: text


BETWEEN = {"-": "–", "–": "–", "to": " to ", "and": " and ", "and(-)": " and ", "or": " or ", "by": " by ", "x": " by ",
           "×": " × ", "to(-)": " to ", "+/-": " ± ", "±": " ± ", ",": ", "}  # fmt: skip
UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "sqkm": "km²", "km2": "km²", "m2": "m²", "cm2": "cm²", "m3": "m³", "km3": "km³",
    "cuft": "cu ft", "cumi": "cu mi", "cuin": "cu in", "C": "°C", "F": "°F", "impgal": "imp gal", "usgal": "US gal",
    "acre": "acres", "mile": "miles", "miles": "miles", "foot": "feet", "kn": "knots", "m/s2": "m/s²", "K": "K",
    "C-change": "°C", "F-change": "°F", "hp": "hp", "lbf": "lbf", "/sqmi": "/sq mi", "/km2": "/km²", "/sqkm": "/km²",
    "nmi": "nautical miles", "E6acre": "million acres", "long ton": "long tons",
    "short ton": "short tons", "LT": "long tons", "inch": "inches", "inches": "inches", "metre": "metres",
    "meter": "meters", "kilometre": "kilometres", "pound": "pounds",
}  # fmt: skip
NUMBER = re.compile(r"[+\-−–]?[\d.,/+⁄ ]+(?:e[+-]?\d+)?")


def _convert(args: list[str], named: dict[str, str]) -> str | None:
    """The measure as it was given: `40|km|mi` is `40 km`, `5|ft|6|in|m` is `5 ft 6 in`, `3|-|4|m` is `3–4 m`."""
    if len(args) < 2 or not NUMBER.fullmatch(args[0]):
        return None
    text, at = args[0], 1
    while at + 1 < len(args) and args[at] in BETWEEN and NUMBER.fullmatch(args[at + 1]):
        text += BETWEEN[args[at]] + args[at + 1]
        at += 2
    if at == len(args) or NUMBER.fullmatch(args[at]):
        return None
    text += " " + UNITS.get(args[at], args[at])
    if args[at] in ("ft", "lb", "st", "mi", "yd") and at + 2 < len(args) and NUMBER.fullmatch(args[at + 1]):
        text += f" {args[at + 1]} {UNITS.get(args[at + 2], args[at + 2])}"
    return text


MONTHS = "January February March April May June July August September October November December"


def _date(args: list[str], named: dict[str, str]) -> str | None:
    """`1950|1|2` is `January 2, 1950`, with df=y `2 January 1950`; months by name stay as they are."""
    args = [arg for arg in args if arg]
    if not args:
        return None
    if not args[0].isdecimal() or len(args) < 2:
        return args[0]
    if args[1].isalpha():
        return " ".join(args)
    if not args[1].isdecimal() or not 1 <= int(args[1]) <= 12:
        return None
    month = MONTHS.split()[int(args[1]) - 1]
    if len(args) < 3 or not args[2].isdecimal():
        return f"{month} {args[0]}"
    day = int(args[2])
    return f"{day} {month} {args[0]}" if named.get("df", "no")[:1] in "yY1" else f"{month} {day}, {args[0]}"


def _date_ahead(args: list[str], named: dict[str, str]) -> str | None:
    """The first three arguments as a date: those of another one follow."""
    return _date(args[:3], named)


def _as_of(args: list[str], named: dict[str, str]) -> str | None:
    date = _date(args, named)
    if not date:
        return None
    if named.get("alt"):
        return named["alt"]
    start = "since" if named.get("since") else "as of"
    return f"{start if named.get('lc') else start.capitalize()} {date}"


def _century(args: list[str], named: dict[str, str]) -> str | None:
    """French: `XIX` is `XIXe siècle`."""
    if not args or not re.fullmatch("[IVX]+", args[0]):
        return _first(args, named)
    return args[0] + ("er siècle" if args[0] == "I" else "e siècle")


def _fraction(args: list[str], named: dict[str, str]) -> str | None:
    args = [arg for arg in args if arg]
    if not 1 <= len(args) <= 3:
        return None
    return {1: "1/{}", 2: "{}/{}", 3: "{} {}/{}"}[len(args)].format(*args)


def _value(args: list[str], named: dict[str, str]) -> str | None:
    if not args or not args[0]:
        return None
    number = args[0] + (f" ± {args[1]}" if len(args) > 1 and args[1] else "")
    power = f"×10{superscript(named['e'])}" if named.get("e") else ""
    unit = named.get("ul") or named.get("u")
    return f"{number}{power} {UNITS.get(unit, unit)}" if unit else number + power


def _nihongo(args: list[str], named: dict[str, str]) -> str | None:
    english, others = (args or [""])[0], [arg for arg in args[1:3] if arg]
    if not english:
        return ", ".join(others) or None
    return f"{english} ({', '.join(others)})" if others else english


SHIPS = "USS HMS SS HMAS HMCS MS MV RMS SMS HMNZS INS USNS USCGC"


def _ship(prefix: str) -> Rule:
    """`{{USS|Enterprise|CVN-65}}` is `USS Enterprise (CVN-65)`; a third argument says that a part is hidden."""

    def rule(args: list[str], named: dict[str, str]) -> str | None:
        if not args or not args[0]:
            return None
        number = f" ({args[1]})" if len(args) == 2 and args[1] else ""
        return f"{prefix} {args[0]}{number}"

    return rule


def _years(sign: str) -> Rule:
    return lambda args, named: f"{sign} {'–'.join(filter(None, args))}" if any(args) else None


def _link(args: list[str], named: dict[str, str]) -> str | None:
    """A link to an article that another language has: what is shown of it."""
    return named.get("lt") or _first(args, named)


def _enumeration(args: list[str], named: dict[str, str]) -> str | None:
    return ", ".join(filter(None, args)) or None


SUPERSCRIPTS = str.maketrans("0123456789+-−=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ")
RAISED = re.compile(r"[\d+\-−=()]+")


def superscript(text: str) -> str:
    """Digits and signs as raised ones, since 10 to the 6th is not 106; other text as it is."""
    return text.translate(SUPERSCRIPTS) if RAISED.fullmatch(text.strip()) else text


def _raised(args: list[str], named: dict[str, str]) -> str | None:
    return superscript(args[0]) if args else None


def _power_of_ten(args: list[str], named: dict[str, str]) -> str | None:
    return f"×10{superscript(args[0])}" if args and args[0] else None


QUOTATION_OR_SOURCE = "citation"  # in French the former, in English the latter, whose arguments have names
RULES_BY_NAMES: list[tuple[str, Rule]] = [
    (
        """
        abbr|abbrlink|asiantitle|big|bigger|birth-date|birth-date and age|bold|center|code|comment|country
        death-date|death-date and age|em|end-date|flag|flagcountry|flagu|font|formatnum|hover|italic|italics|kbd|key
        keypress|lang-zxx|large|larger|math|mono|mvar|nobold|nobr|nobreak|noitalic|normal|nowrap|nts
        num|number|overline|plain link|plainlink|resize|roman|rom|ruby|ruby-ja|s-sort|sc|sm|small|small caps
        smallcaps|smaller|sort|start-date|strong|sub|tooltip|tt|u|underline|underlined|uplain|vanchor|var
        visible anchor|chem2
        le|lien|link-de|link-en|link-fr|link-ja|не переведено|не переведено 3|не переведено 5|нп|нп3|нп4|нп5
        ルビ|仮リンク|読み仮名
        """,
        _first,
    ),
    ("lang|color|colour|font color|fontcolor|script|rtl-lang|langue|sort name|tsl|translink", _second),
    ("transl|transliteration", _last),
    ("quote|blockquote|block quote|bquote|cquote|quotation|poemquote|citation bloc|cita|citazione|zitat", _quote),
    ('"|qq|quotes|„', _around("“", "”")),
    ("'", _apostrophe),
    ("single quote|gloss", _around("‘", "’")),
    ("angbr|angle bracket|angbr ipa", _around("⟨", "⟩")),
    ("bracket|brackets", _around("[", "]")),
    ("convert|cvt|unit|unité|unidad", _convert),
    ("s|s-|siècle", _century),
    ("birth date|date|date-|death date|dob|dts|end date|launch date|start date", _date),
    ("birth date and age|bda|death date and age|end date and age|start date and age", _date_ahead),
    ("as of", _as_of),
    ("frac|fraction|sfrac", _fraction),
    ("val", _value),
    ("e", _power_of_ten),
    ("sup|superscript|exp", _raised),
    ("chem|gaps|linktext|not a typo|typo|as written|proper name|chem name|bug workaround", _together),
    ("sic|shy|wbr|zwj|zwnj|zwsp", _shown),
    (
        """
        réf. nécessaire|référence nécessaire|refnec|refsou|référence souhaitée|quand|lequel
        citazione necessaria|senza fonte|нет аи|факт
        """,
        _passage,
    ),
    ("lsj", _greek),
    (QUOTATION_OR_SOURCE, lambda args, named: f"“{args[0]}”" if args and args[0] else ""),
    ("nihongo|nihongo2|nihongo3|nihongo foot", _nihongo),
    *((name.lower(), _ship(name)) for name in SHIPS.split()),
    ("ship", _words),
    ("ill|illm|ill-wd|interlanguage link|interlanguage link multi", _link),
    ("circa|c.|ca.|ca", _years("c.")),
    ("floruit|fl.|fl", _years("fl.")),
    ("reign|r.", _years("r.")),
    ("hlist|comma separated entries|cslist|csl", _enumeration),
    ("дата|fecha", _words),
    (
        "nbsp|space|spaces|nbs|thinsp|thin space|hair space|hairsp|figure space|spc|pad|gap|quad|emsp|ensp|hsp",
        _always(" "),
    ),
    ("ndash|en dash|endash|–", _always("–")),
    ("mdash|em dash|emdash|—", _always("—")),
    ("snd|spnd|spaced ndash|spaced en dash|snds|nsnd|dash|sndash", _always(" – ")),
    ("smd|spaced mdash|spaced em dash", _always(" — ")),
    ("nbhyph|hyphen|nbhyphen", _always("-")),
    ("·|•|dot|middot|bullet|dotsep|bull|int dot|\\", _always(", ")),
    ("pipe|!", _always("&#124;")),
    ("=", _always("=")),
    ("'s", _always("'s")),
    ("' \"|'\"|\" '|\"'", _always("'\"")),
    ("okina|hamza|ayin", _always("ʻ")),
    ("ellipsis|...|hellip", _always("...")),
    ("minus", _always("−")),
    ("times|×", _always("×")),
    ("us$|usd|us dollar", _around("US$")),
    ("a$|aud|au$", _around("A$")),
    ("ca$|cad|c$|can$", _around("CA$")),
    ("gbp|£|pound sterling|gb£", _around("£")),
    ("€|euro|eur", _around("€")),
    ("¥|jpy|jp¥|yen", _around("¥")),
    ("inr|indian rupee|indianrupee|₹|rupee", _around("₹")),
    ("sharp|music sharp", _always("♯")),
    ("flat|music flat", _always("♭")),
    ("bce|bc", _around("", " BC")),
    ("ce|ad", _around("AD ")),
]
RULES: dict[str, Rule] = {
    name.strip(): rule
    for names, rule in RULES_BY_NAMES
    for line in names.split("\n")
    for name in line.split("|")
    if name.strip()
}
LANGUAGE = re.compile(r"lang-[a-z]{2,3}(?:-[\w-]+)?|[a-z]{2}s")  # `{{lang-ru|...}}`, in German `{{enS|...}}`


def name_of(content: str) -> str:
    """The name of a template whose braces hold this, as the rules have it."""
    head = content[:200].partition("|")[0].replace("_", " ").strip()
    name = " ".join(head.split()).lower()
    return name.removeprefix("template:").strip()


def rule_of(name: str) -> Rule | None:
    """How a template is rendered; None: it is not."""
    if name.startswith("formatnum:"):
        return lambda args, named: name.removeprefix("formatnum:")
    return RULES.get(name) or (_first if LANGUAGE.fullmatch(name) else None)


def invisible(name: str) -> bool:
    """Whether readers see no text of it."""
    return name in INVISIBLE_NAMES or name.startswith(INVISIBLE_STARTS) or name.endswith(INVISIBLE_ENDS)
