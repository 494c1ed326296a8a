"""Sentence ends of many paragraphs at once, against the rule written out sign by sign."""

import random
import re

from mlm_jax.prepare.documents import paragraphs_of
from mlm_jax.prepare.sentences import ABBREVIATIONS, BEFORE_NUMBERS, CLOSERS, OPENERS, SPACED, UNSPACED, sentence_ends

RUN = re.compile(f"[{re.escape(SPACED + UNSPACED)}]+[{re.escape(CLOSERS)}]*")


def by_rule(text: str) -> list[int]:
    ends, start = [], 0
    for match in RUN.finditer(text):
        sign, end = match.span()
        if end == len(text):
            break
        if text[end] == " ":
            following = text[end + 1]
            if following in OPENERS:
                following = text[end + 2 : end + 3]
            if following.islower() or not after_word(text, start, sign, following):
                continue
        elif text[sign] not in UNSPACED:
            continue
        ends.append(end)
        start = end + (text[end] == " ")
    return ends


def after_word(text: str, start: int, sign: int, following: str) -> bool:
    if text[sign] != "." or text[sign + 1] == ".":
        return True
    before = text[start:sign]
    word = before.rpartition(" ")[2].lstrip(OPENERS)
    if word.isdigit():
        return " " in before
    if len(word) < 2:
        return word == "I" or not word.isalpha()
    if word.lower() in BEFORE_NUMBERS:
        return not following.isdigit()
    return word.lower() not in ABBREVIATIONS and not (word[1] == "." and word.replace(".", "").isalpha())


WORDS = ["Mr", "No", "vol", "1", "42", "a", "I", "U.S", "e.g", "the", "Messrs", "approximately", "Fig", "x", "3.14"]
WORDS += ["(A", '"No', "[1", "Army", "é", "Ünder", "—", "“Mr", "¿Que", "messrs.", "à", "electroencephalography", "²"]
SIGNS = [*".!?…。", "...", ".)", '."', "?!", ". ", "", ",", "..", "。)", "。”", "!”", "⁉", ".”"]


def test_many_paragraphs_at_once():
    draw = random.Random(0)
    texts = []
    for _ in range(4000):
        text = " ".join(draw.choice(WORDS) + draw.choice(SIGNS) for _ in range(draw.randint(1, 8)))
        texts += paragraphs_of(text if draw.random() < 0.6 else text.encode("ascii", "ignore").decode())
    owners, ends = sentence_ends(texts)
    found = [[] for _ in texts]
    for owner, end in zip(owners.tolist(), ends.tolist()):
        found[owner].append(end)
    assert found == [by_rule(text) for text in texts]
    assert sum(map(len, found)) > 2000 and any(text.isascii() for text in texts)


def test_each_paragraph_alone():
    for text in ["", ".", "A", "No.", "I. A", "I.", "。", "。a", "...", "1. A. B", "Mr. X", "a. ", "(a.) B"]:
        for paragraph in paragraphs_of(text):
            assert sentence_ends([paragraph])[1].tolist() == by_rule(paragraph)
    assert sentence_ends([])[0].tolist() == []
