"""Wikipedia dumps: pages of XML, wikitext to prose, and both as a source of `prepare`."""

import bz2
import io
import random
import re
import time

import pytest
from test_prepare import config_of, read_rows, segments_of

from mlm_jax.prepare import prepare, sources
from mlm_jax.prepare.sources import Fields, parts
from mlm_jax.prepare.wiki import dump, pages, prose
from mlm_jax.prepare.wiki.scan import OWN
from mlm_jax.tokenizer import Tokenizer

SITE = """<siteinfo><sitename>W</sitename><dbname>xxwiki</dbname><namespaces>
<namespace key="-2" case="first-letter">Medium</namespace><namespace key="0" case="first-letter" />
<namespace key="1" case="first-letter">Diskussion</namespace><namespace key="6" case="first-letter">Datei</namespace>
<namespace key="14" case="first-letter">Kategorie</namespace></namespaces></siteinfo>"""
MARKUP = ["{|", "|}", "||", "colspan", "<ref", "</ref>", "[[", "]]", "{{", "}}", "''"]


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def page(id: int, text: str, title: str = "", namespace: int | None = 0, inside: str = "") -> str:
    ns = "" if namespace is None else f"<ns>{namespace}</ns>"
    return (
        f"<page>\n<title>{title or f'Page {id}'}</title>{ns}<id>{id}</id>{inside}\n"
        f"<revision><id>9{id}</id><contributor><username>u</username><id>7</id></contributor>"
        f'<model>wikitext</model><text xml:space="preserve">{escaped(text)}</text></revision>\n</page>\n'
    )


def export(*inside: str, version: str = "0.10", head: str = SITE, encoding: str = "utf-8") -> bytes:
    root = f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-{version}/" version="{version}" xml:lang="xx">\n'
    declared = f'<?xml version="1.0" encoding="{encoding}"?>\n' if encoding != "utf-8" else ""
    return (declared + root + head + "\n" + "".join(inside) + "</mediawiki>\n").encode(encoding)


def read(data: bytes) -> list[dump.Page]:
    return list(pages(io.BytesIO(data)))


# Pages


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "koi8-r"])
@pytest.mark.parametrize("version", ["0.3", "0.10", "0.11"])
def test_encodings_and_schema_versions(encoding, version):
    word = "слово" if encoding == "koi8-r" else "naïveté"
    found = read(export(page(3, f"{word} & <b>so on</b>"), version=version, encoding=encoding))
    assert [(one.id, one.title, one.namespace, one.text) for one in found] == [
        ("3", "Page 3", 0, f"{word} & <b>so on</b>")
    ]
    assert found[0].site.name == "xxwiki" and "datei" in found[0].site.namespaces[dump.FILE]


def test_what_is_no_article_is_told_by_reason():
    found = read(
        export(
            page(1, "text"),
            page(2, "#REDIRECT [[Page 1]]"),
            page(3, "  #redirect:[[Page 1]] {{R from move}}"),
            page(4, "#WEITERLEITUNG [[Page 1]]"),
            page(5, "#перенаправление[[Page 1]]\n[[Kategorie:X]]"),
            page(6, "anything", inside='<redirect title="Page 1" />'),
            page(7, "#First [[item]] of a list.\n#Second"),
            page(8, "talk", namespace=1),
            page(9, "talk", title="Diskussion:Page 1", namespace=None),
            page(10, "text", title="Star: Trek", namespace=None),
            page(11, "a {}", title="Page.css").replace("<model>wikitext", "<model>css"),
        )
    )
    assert [one.problem for one in found] == [
        "", *["redirect"] * 5, "", *["another namespace"] * 2, "", "no wikitext"
    ]  # fmt: skip
    assert all(bool(one.problem) == (one.text == "") for one in found)


def test_the_last_of_several_revisions_counts():
    one = page(1, "old").replace("</revision>", "</revision><revision><text>new</text></revision>")
    # other slots of a revision, as of schema 0.11, are no text of the page
    slot = "<content><role>main2</role><text>other</text></content></revision>"
    assert [found.text for found in read(export(one.replace("new</text></revision>", f"new</text>{slot}")))] == ["new"]


def test_tags_with_a_prefix():
    data = re.sub(r"<(/?)(\w)", r"<\1mw:\2", export(page(1, "text")).decode())
    data = data.replace("xmlns=", "xmlns:mw=").encode()
    assert [(one.id, one.text) for one in read(data)] == [("1", "text")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_broken_xml_costs_the_page_it_lies_in(encoding, monkeypatch):
    monkeypatch.setattr(dump, "BLOCK_BYTES", 100)  # an error and the next page in other blocks
    bad = page(2, "text").replace("text</text>", "text \x01 & <b> </text>")
    text = export(page(1, "one"), bad, page(3, "three"), page(4, "<>").replace("&lt;", "<"), page(5, "five"))
    found = read(text.decode().encode(encoding))
    assert [(one.id, one.damage) for one in found] == [("1", False), ("", True), ("3", False), ("", True), ("5", False)]
    lines = text.decode().split("\n")
    for one in found:
        if not one.damage:
            assert lines[one.line - 1] == "<page>" and f"<id>{one.id}</id>" in lines[one.line]
    assert "<b>" in lines[found[1].line - 1] or "text \x01" in lines[found[1].line - 1]


def test_a_file_that_breaks_off():
    data = export(page(1, "one"), page(2, "two"), page(3, "three"))
    found = read(data[: data.index(b"three")])
    assert [one.id for one in found] == ["1", "2", ""] and found[-1].damage
    assert found[-1].problem == dump.CUT_OFF
    assert read(b"")[0].problem == dump.CUT_OFF


def test_what_is_no_export():
    (found,) = read(b"<html><body><page><title>x</title></page></body></html>")
    assert found.problem == "no MediaWiki export, but <html>" and found.damage
    (found,) = read(b'<?xml version="1.0" encoding="utf-7"?><mediawiki></mediawiki>')
    assert found.problem.startswith("broken XML (") and found.damage


def test_a_page_that_is_too_long_is_no_page(monkeypatch):
    monkeypatch.setattr(dump, "MOST_CHARACTERS", 1000)
    found = read(export(page(1, "a" * 1001), page(2, "b" * 1000)))
    assert [(len(one.text), bool(one.problem)) for one in found] == [(0, True), (1000, False)]


# Prose


@pytest.mark.parametrize(
    "wikitext, expected",
    [
        ("{{p {{9}} q}}tail", "tail"),
        ("{{Infobox|a={{b|c}}\n|d=[[x]]\n}}\ntail", "tail"),
        ("tail {{open rest [[link|text]]", "tail open rest text"),
        ("The lake is {{convert|40|km|mi}} long.", "The lake is 40 km long."),
        (
            "A<ref name=x/> b<ref>c {{cite|t=[[d]]}}</ref> e.\n{|\n!colspan=\"2\"|h\n|-\n|1||2\n|}\nF [[G|g]] '''h'''.",
            "A b e.\nF g h.",
        ),
    ],
)
def test_nested_templates_tables_and_references(wikitext, expected):
    assert prose(wikitext) == expected


@pytest.mark.parametrize(
    "wikitext, expected",
    [
        # links
        ("[[a]]s, [[b|c]], [[d (e)|d]], [[:f:G|h]], [http://x.y i j], [//x.y k].", "as, c, d, h, i j, k."),
        ("Text.[http://x.y]\n[[Category:A]]\n[[de:Eine Seite]]\n[[zh-min-nan:A]]", "Text."),
        ("[[File:A.jpg|thumb|A [[b|caption]] with {{x|y}}.]]Text [[Image:c.png]]here.", "Text here."),
        ("[[Bestand:A.jpg|thumb|in a language that no head tells]]Text.", "Text."),
        ("A [[Star Trek: Voyager|series]] and [[2001: A Space Odyssey]].", "A series and 2001: A Space Odyssey."),
        ("[[File:a.jpg|thumb|a [http://x.y b]]] Text.", "Text."),
        # bold, italics, and the apostrophes beside them
        ("''a'' '''b''' '''''c''''' L'''Humanité'' d'''''e'''''.", "a b c L'Humanité de."),
        # tags, entities, switches
        ("x<br/>y<p>z<!-- z --> H<sub>2</sub>O, 10<sup>6</sup> and 20<sup>th</sup>.", "x y\nz H2O, 10⁶ and 20th."),
        ("a&nbsp;b &amp; &lt;b&gt; &#8211; <stdio.h> __NOTOC____BEZ_OBSAHU__", "a b & <b> – <stdio.h>"),
        ("<nowiki>'''a''' [[b]]</nowiki> c", "a b c"),
        ("A<!-- never\nclosed", "A"),
        ("One line\nand the next.\n\nAnother.\n天气\n很好。", "One line and the next.\nAnother. 天气很好。"),
        # tables
        ("A.\n{|\n|a\n{|\n|b\n|}\n|c\n|}\nB.\n<table><tr><td>x<table></table></td></tr></table>C.", "A.\nB.\nC."),
        ("A.\n{{table begin}}\n|-\n! x !! y\n|a||b\n{{end}}\nB.", "A.\nB."),
        ("A.\n{|\n|never closed\n|-\n|b\n\nB.", "A.\nB."),
        # references that nothing closes last to the end of the line
        ("A.<ref>{{cite|x}} never closed\nB.<ref name=b>c</ref> D.", "A. B. D."),
        # templates
        (
            "{{lang|fr|mot}} {{nowrap|1 {{frac|1|2}}}} {{lang-ru|слово}} 1{{ndash}}2 {{USS|A|B-1}}",
            "mot 1 1/2 слово 1–2 USS A (B-1)",
        ),
        (
            "{{convert|5|ft|6|in|m}}, {{convert|3|-|4|sqmi}}, {{val|1.2|e=6|ul=km}}.",
            "5 ft 6 in, 3–4 sq mi, 1.2×10⁶ km.",
        ),
        ("Born {{birth date|1950|1|2|df=y}}, {{as of|2010|5|lc=y}}.", "Born 2 January 1950, as of May 2010."),
        ("{{quote|One. \n\n[[Two]].|who}}", "One.\nTwo."),
        ("-{zh-cn:one;zh-tw:other}- -{H|zh:x}-two", "one two"),
        # marks of editors are attached to a word or follow a sentence; where a value was, the sentence goes
        ("Said{{mark}} so.{{mark}} Or so. {{mark}} Then {{citation needed}} done.", "Said so. Or so. Then done."),
        ("Kept. It is {{value|40}} long. Kept too.", "Kept. Kept too."),
        ("{{value}} is what it is. Kept.", "Kept."),
        # parentheses lose the part with the hole, or all
        ("X (say {{IPA|x}}; born 1950, {{y}}) and Y ({{lang|ru|}}; {{z}}) is (so).", "X (born 1950) and Y is (so)."),
        ("X [{{IPA|x}}] is ({{y}}؛ z). The letter ⟨{{IPA|a}}⟩. Kept.", "X is (z). Kept."),
        (
            "Le {{date|14|juillet|1990}}, au {{s-|XIX}} et au {{s|I}}.",
            "Le 14 juillet 1990, au XIXe siècle et au Ier siècle.",
        ),
        ("X {{IPAc-en|x}} (from {{y}}) is.", "X is."),
        # formulas
        (
            "If <math>x \\le \\alpha</math> then. If <math>\\frac{a}{b}</math> then.\n:<math>x^2</math>",
            "If x ≤ α then.",
        ),
    ],
)
def test_markup(wikitext, expected):
    assert prose(wikitext) == expected


@pytest.mark.parametrize(
    "wikitext, expected",
    [
        (
            "'''K-On!!''' is a series.\n\nThe band [[!!!]] is \"Help!!\" so.",
            'K-On!! is a series.\nThe band !!! is "Help!!" so.',
        ),
        ("!!! is a [[band|group]].", "!!! is a group."),
        ("Kept. The code <code>a || b</code> is lazy. Kept too.", "Kept. Kept too."),
        ("Kept. Wide cells have colspan=2 there. Kept too.", "Kept. Kept too."),
        ("Kept. One |()| two.", "Kept."),
        ("A.\n! x !! y\n| One. || Two.\n\nB.", "A.\nB."),
    ],
)
def test_signs_of_tables_in_prose(wikitext, expected):
    """Exclamation marks are text; what looks like a cell costs its sentence, not the paragraph."""
    assert prose(wikitext) == expected


@pytest.mark.parametrize(
    "wikitext, expected",
    [
        ("He {{sic|are}} here.", "He are here."),
        (
            "The '''{{sic|compl|ain}}''' {{sic|?|Irrega|rdless}} {{sic|hide=y|reson}}.",
            "The complain Irregardless reson.",
        ),
        ("He are{{sic}} here {{Sic|nolink=y}}, so.", "He are here, so."),
        ("{{typo|hel|lo}} {{linktext|藻|類}} {{shy|inter|national}} in{{shy}}ter.", "hello 藻類 international inter."),
        ("Un {{refnec|passage|date=mai 2010}} de plus{{refnec|date=mai 2010}}.", "Un passage de plus."),
        ("Dit {{citation|un mot}}. {{citation|title=A|url=http://x.y}} Fin.", "Dit “un mot”. Fin."),
        ("From {{LSJ|a/th|ἄτη}} and so{{LSJ|a/th|ἄτη|ref}} on.", "From ἄτη and so on."),
        # apostrophes on both sides of what vanishes
        ("The '''{{efn|x}}''' ''<ref>x</ref>'' '''''{{efn|x}}''''' end.", "The end."),
        ("''A''{{sfn|x}}''B'' ''C''<ref name=x/>''D'' ''E''{{'}}s.", "AB CD E's."),
    ],
)
def test_marks_that_show_their_arguments(wikitext, expected):
    assert prose(wikitext) == expected


def test_sections():
    """A section without prose vanishes, and its heading; so do those of sources, by title."""
    sentence = "This is a sentence which is long enough to be one."
    text = f"""Lead.
== Kept == <!-- c -->
=== Below ===
{sentence}
* [[item]]
== Links ==
* [[One thing]]
* [http://x.y Another], a site
== Things ==
* Short
* [[Thing]]: this item of a list has a sentence, and more than a few words.
== References ==
{sentence}
=== Notes of these ===
{sentence}
== Empty ==
{{{{Navbox}}}}"""
    assert prose(text).split("\n") == [
        "Lead.", "Kept", "Below", sentence, "item", "Things",
        "Thing: this item of a list has a sentence, and more than a few words.",
    ]  # fmt: skip
    assert prose("'''X''' may be:\n* [[X (a)]], a thing\n* [[X (b)]]") == ""


def test_names_of_namespaces_are_those_of_the_wiki():
    (found,) = read(export(page(1, "[[Datei:a b|x]][[Kategorie:c|d]][[Andere:e|f]].")))
    assert prose(found.text, found.site) == "f."


PIECES = """
    {{ }} {{{ }}} [[ ]] [ ] {| |} | || ! !! '' ''' ''''' <ref> </ref> <ref <!-- --> <nowiki> </nowiki> <math> </math>
    <table> </table> <div> <br> == = * : # ; &amp; &#0; &#xD800; File:a.jpg Category:b http://x.y convert|1|km nowrap|
    lang|fr|mot cite|web x word Sentence. ( ) ; , {{!}} colspan=2 <poem> </poem> 1= val|1|e= as|of -{ }- zh-cn:a;
    __TOC__ 天气 。
"""


def test_mangled_wikitext_gives_text_without_markup():
    draw = random.Random(0)
    pieces = [*PIECES.split(), "\n", "\n\n", "\n{|", "\n|}", " ", "\x00", "\u202e", "\ud800", "\ue000"]
    for _ in range(400):
        text = "".join(draw.choices(pieces, k=draw.choice((5, 20, 80))))
        found = prose(text)
        assert not [sign for sign in MARKUP if sign in found] and not OWN.search(found), text


@pytest.mark.parametrize(
    "text",
    [
        "{{a|",
        "[[a|",
        "{|\n",
        "<ref>a ",
        "[http://a ",
        "{{[[{|<ref>",
        "{{nowrap|",
        "{{[[}}]]",
        "(",
        "a ''b '''c ",
        "<!--",
    ],
)
def test_time_grows_with_the_text_alone(text):
    """What nothing closes, 10,000 times: a parser that tries each of them anew needs minutes."""
    start = time.process_time()
    prose(text * 10_000)
    assert time.process_time() - start < 5


def test_deep_nesting():
    assert prose("One. {{convert|" + "1|-|" * 20_000 + "1|km}} so. Two.") == "One. Two."
    for opening, closing in (("{{nowrap|", "}}"), ("[[a|", "]]"), ("{{x|", "}}"), ("{|\n", "\n|}"), ("(", ")")):
        assert prose(f"Before. {opening * 2000}deep{closing * 2000}\nAfter.").endswith("After.")
    assert prose("{{nowrap|" * 10 + "deep" + "}}" * 10) == "deep"


def test_mangled_files_give_pages_or_reasons():
    data = export(*(page(i, f"Text of page {i} & more.") for i in range(20)))
    draw = random.Random(0)
    for _ in range(100):
        mangled = bytearray(data)
        for _ in range(draw.randint(1, 5)):
            mangled[draw.randrange(len(mangled))] = draw.randrange(256)
        found = read(bytes(mangled[: draw.randint(0, 2 * len(mangled))]))
        assert all(one.text or one.problem for one in found)
        assert sum(not one.damage for one in found) <= 20


# As a source


def dump_of(folder, *inside: str, name: str = "a.xml.bz2") -> str:
    path = folder / name
    data = export(*inside)
    half = len(data) // 2
    path.write_bytes(bz2.compress(data[:half]) + bz2.compress(data[half:]) if name.endswith("2") else data)
    return str(path)


def test_a_dump_as_a_corpus(tmp_path, monkeypatch):
    """Several streams in one file; counts by reason; the same rows wherever the dump is cut."""
    articles = [page(i, f"The '''number''' {i} is [[less]] than {{{{nowrap|{i + 1}}}}}. " * 5) for i in range(40)]
    others = [page(100, "#REDIRECT [[Page 1]]"), page(101, "talk", namespace=1), page(102, ""), page(103, "{{stub}}")]
    path = dump_of(tmp_path, *articles, *others)
    manifest = prepare(config_of(path), tmp_path / "rows", progress=False)
    counts = manifest["corpora"][0]["counts"]
    assert (counts["read"], counts["kept"]) == (44, 40)
    assert counts["dropped"] == {"redirect": 1, "another namespace": 1, "empty": 2}
    tokenizer = Tokenizer.load(tmp_path / "rows/tokenizer")
    texts = [
        tokenizer.decode(s) for split in ("train", "eval") for s in segments_of(read_rows(tmp_path / "rows", split))
    ]
    assert any("The number 7 is less than 8." in text for text in texts)
    monkeypatch.setattr(parts, "UNIT_BYTES", 2000)
    prepare(config_of(path), tmp_path / "cut", progress=False)
    for shard in (tmp_path / "rows").rglob("*.array_record"):
        assert shard.read_bytes() == (tmp_path / "cut" / shard.relative_to(tmp_path / "rows")).read_bytes()


def test_names_of_dumps(tmp_path):
    names = ["a.xml", "a.xml.bz2", "a-pages-articles1.xml-p1p41242.bz2", "b.xml-p2p3"]
    for name in [*names, "a-pages-articles-multistream-index.txt.bz2", "a-multistream-index12.txt-p1p2.bz2", "a.xmlx"]:
        (tmp_path / name).write_bytes(b"")
    found = sources.find_files(str(tmp_path))
    assert sorted(file.name for file in found) == sorted(names) and {file.kind for file in found} == {"wiki"}


def test_documents_are_named_by_wiki_and_page(tmp_path, monkeypatch):
    path = dump_of(tmp_path, page(5, "One page of text."), page(6, "Another page."), name="later.xml")
    for unit_bytes in (parts.UNIT_BYTES, 1):
        monkeypatch.setattr(parts, "UNIT_BYTES", unit_bytes)
        units = list(sources.units(sources.find_files(path), Fields()))
        assert len(units) == (2 if unit_bytes == 1 else 1)
        found = [document for unit in units for document in sources.documents(unit, Fields())]
        assert [(one.id, one.text) for one in found] == [
            ("xxwiki:5", "One page of text."), ("xxwiki:6", "Another page.")
        ]  # fmt: skip
        assert [one.place for one in found] == [f"{path}:6", f"{path}:10"]


def test_damage_is_counted_with_its_place(tmp_path):
    data = export(page(1, "Some words of text."), page(2, "Others."), page(3, "Lost."), page(4, "Lost."))
    (tmp_path / "cut.xml").write_bytes(data[: data.index(b"Lost.")].replace(b"Others.", b"&"))
    (tmp_path / "page.xml").write_bytes(b"<html/>")
    manifest = prepare(config_of(tmp_path, holdout=0.0), tmp_path / "rows", progress=False)
    counts = manifest["corpora"][0]["counts"]
    assert counts["kept"] == 1
    assert counts["dropped"] == {
        "cut.xml:12: broken XML (not well-formed (invalid token))": 1,
        "cut.xml:16: the file breaks off, the rest is lost": 1,
        "page.xml:1: no MediaWiki export, but <html>": 1,
    }
