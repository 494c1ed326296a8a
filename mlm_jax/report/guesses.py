"""Samples as HTML: each masked text, and below it what the model guessed for each place as training went on."""

import unicodedata

from mlm_jax.metrics import short
from mlm_jax.report.markup import Html, join, table, tag
from mlm_jax.report.read import evenly, number

COLUMNS = 8  # evaluations shown, spread over the run
SPACE = "\u2581"  # how SentencePiece writes white space
DOTTED_CIRCLE = "\u25cc"  # what a combining mark stands on where it stands alone
CJK = "\u2e80"  # from here on scripts without spaces between words, where no piece needs a sign that it goes on


def samples(lines: list[dict]) -> list[Html]:
    """One article for each text of the latest line of samples.jsonl, with the guesses of earlier lines."""
    lines = [line for line in lines if isinstance(line.get("samples"), list)]
    if not lines:
        return []
    shown = evenly(lines, COLUMNS)
    found = [(number(line.get("step")), {_key(text): text for text in line["samples"]}) for line in shown]
    return [_article(text, [(step, texts.get(_key(text))) for step, texts in found]) for text in lines[-1]["samples"]]


def _key(text: dict) -> tuple:
    return (text["set"], *text["tokens"])


def _article(text: dict, history: list[tuple[float, dict | None]]) -> Html:
    """history: (step, the same text as it was guessed then) in order."""
    numbered = {place["place"]: i for i, place in enumerate(text["masked"], start=1)}
    guesses = [
        (step, {place["place"]: place["guesses"] for place in then["masked"]} if then else {}) for step, then in history
    ]
    rows, hits = [], [0] * len(history)
    for place in text["masked"]:
        target = place["target"]
        cells = [tag("th", numbered[place["place"]], class_="number"), tag("th", piece(target), class_="truth")]
        for i, (_, then) in enumerate(guesses):
            best = then.get(place["place"])
            hits[i] += bool(best and best[0][0] == target)
            cells.append(_cell(best, target))
        rows.append(cells)
    total = [tag("th", class_="number"), tag("th", "right", class_="truth")]
    total += [tag("td", f"{hit} of {len(rows)}", class_="total") for hit in hits]
    head = [
        tag("th", "#", class_="number"),
        tag("th", "hidden", class_="truth"),
        *(f"step {short_step(step)}" for step, _ in history),
    ]
    words = tag("p", masked_text(text["tokens"], numbered), class_="text", dir="auto")
    return tag("article", tag("h3", text["set"]), words, table(head, [*rows, total], "guesses"), class_="sample")


def short_step(step: float) -> str:
    return f"{step:,.0f}" if step < 1e5 else short(step)


def masked_text(tokens: list[str], numbered: dict[int, int]) -> Html:
    """The text as it is read, with a numbered gap for each hidden token."""
    parts = []
    for place, token in enumerate(tokens):
        if place and token.startswith(SPACE):
            parts.append(" ")
        hidden = numbered.get(place)
        parts.append(tag("mark", hidden) if hidden else token.removeprefix(SPACE).replace(SPACE, " "))
    return join(*parts)


def piece(token: str) -> Html:
    """A token alone: white space before it is not shown, but a letter piece that continues a word has a hyphen."""
    shown = token.removeprefix(SPACE).replace(SPACE, " ")
    if not shown.strip():
        return tag("i", "space", class_="faint")
    if unicodedata.category(shown[0]).startswith("M"):
        return tag("bdi", DOTTED_CIRCLE, shown)
    goes_on = shown == token and token[0].isalpha() and token[0] < CJK
    return tag("bdi", tag("i", "-", class_="faint") if goes_on else None, shown)


def _cell(best: list | None, target: str) -> Html:
    """The first guess, whether it is right, and where the truth stands if it is not."""
    if not best:
        return tag("td", "–", class_="faint")
    (first, chance), right = best[0], best[0][0] == target
    place = next((i for i, (token, _) in enumerate(best) if token == target), None)
    named = [(token.replace(SPACE, " ").strip(), probability) for token, probability in best]
    hover = "\n".join(f"{i}. {token}  {100 * probability:.1f}%" for i, (token, probability) in enumerate(named, 1))
    mark = tag("span", "✓" if right else "✗", class_="sign", role="img", aria_label="right" if right else "wrong")
    parts = [mark, " ", piece(first), " ", tag("span", _percent(chance), class_="chance")]
    if place:
        parts.append(tag("div", f"truth is no. {place + 1}, {_percent(best[place][1])}", class_="chance"))
    return tag("td", *parts, class_="right" if right else "wrong", title=hover)


def _percent(chance: float) -> str:
    return f"{100 * chance:.0f}%" if chance >= 0.01 else "<1%"
