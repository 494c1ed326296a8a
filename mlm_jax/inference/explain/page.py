"""An explanation as a page for any reader, which needs nothing else and runs nothing: choices are radio buttons."""

import math
from collections.abc import Callable, Sequence

import mlm_jax
from mlm_jax.inference.explain.asking import SPACE
from mlm_jax.report.markup import Html, join, tag
from mlm_jax.report.page import document

MOST_BARS = 8
CUT = "The text is longer than the model reads at once: it saw this part, around the gap."
FAINTEST = 0.03  # of the greatest score: below it a word is not shaded
METHODS = {
    "leave-one-out": "Take words away",
    "gradients": "Share out the credit",
    "attention": "Where it looked",
}
STYLE = """
.text.shaded{line-height:2.6}
.word{display:inline-block;position:relative;line-height:1.5;padding:0 3px;border-radius:4px;text-align:center;
 border-bottom:3px solid transparent;background:color-mix(in srgb,var(--c,transparent) var(--s,0%),transparent)}
.word:has(sub){min-width:36px}
.text:not(.shaded) .word{padding:0}
.for{--c:var(--set-0);border-bottom-color:var(--set-0)}
.against{--c:var(--set-5);border-bottom:3px dashed var(--set-5)}
.word sub{position:absolute;left:0;right:0;top:100%;font-size:10px;line-height:1.3;color:var(--ink);
 white-space:nowrap;margin-top:2px}
.edge{color:var(--ink);font-size:12px}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;font-size:13px;margin:14px 0}
.choice{display:flex;flex-wrap:wrap;align-items:baseline;gap:6px;margin:10px 0;border:0;padding:0}
.choice legend{float:left;font-size:13px;color:var(--ink);min-width:52px;padding:0}
.choice label{font-size:14px;border:1px solid var(--line);border-radius:6px;padding:3px 11px;cursor:pointer;
 position:relative;background:var(--card)}
.choice input{position:absolute;opacity:0}
.choice label:has(:checked){border-color:var(--accent);box-shadow:inset 0 0 0 1px var(--accent);font-weight:600}
.choice label:has(:focus-visible){outline:2px solid var(--accent);outline-offset:2px}
.panel{display:none}
@supports not selector(:has(a)){.panel{display:block}.choice{display:none}}
.signed{grid-template-columns:minmax(60px,auto) minmax(0,1fr) minmax(90px,auto);max-width:760px}
.axis{display:grid;grid-template-columns:1fr 1fr}
.axis .bar{background:var(--c)}
.axis .against{grid-column:1;justify-self:end;border:0;
 background:repeating-linear-gradient(135deg,var(--c) 0 5px,color-mix(in srgb,var(--c) 60%,transparent) 5px 8px)}
.axis .for{grid-column:2}
.guess.bars{grid-template-columns:minmax(60px,auto) minmax(0,1fr) 60px;max-width:620px;font-size:14px}
.chosen{font-weight:700}
"""


def html(found: dict, model: str) -> str:
    """The complete page. found: of `explain`; model: the path that it was read from."""
    many = len(found["masks"]) > 1
    parts = [_gap(gap, number, many) for number, gap in enumerate(found["masks"], start=1)]
    rules = "".join(_rules(gap, number) for number, gap in enumerate(found["masks"], start=1))
    return document(
        "Why this word?",
        tag("h1", "Why this word?"),
        tag("p", "A language model was shown a text with a gap, and guessed the word that is missing. This page shows "
            "which of the other words led it to its guess.", class_="note"),
        *parts,
        tag("h2", "How to read this page"),
        *(tag("p", line, class_="note") for line in READING),
        tag("footer", f"Written by mlm_jax {mlm_jax.__version__}, about the model of {model}."),
        style=STYLE + rules,
    )  # fmt: skip


READING = (
    "Scores are in nats, the unit in which chances are multiplied: +0.7 makes the word twice as likely, +2.3 ten "
    "times, and −0.7 half as likely.",
    "The three methods ask different questions, so their answers may differ. Taking a word away tells what the model "
    "would do without it, but two words that say the same can cover for each other. Sharing out the credit always adds "
    "up, but compares with a text in which every word is hidden. Attention tells what the model read, not whether it "
    "spoke for or against its guess.",
    "All of it is about this model, not about the world: a word may count for reasons that no reader would accept.",
)


def _gap(gap: dict, number: int, many: bool) -> Html:
    target = tag("bdi", "“", plain(gap["target"]["token"]), "”")
    best = gap["target"]["id"] == gap["predictions"][0]["id"]
    which = f"gap {number}" if many else "the gap"
    text = _shaded(gap, [None] * len(gap["words"]), lambda score: "")
    cut = None if gap["whole"] else tag("p", CUT, class_="note")
    methods = _choice(f"method-{number}", "", [(key, title) for key, title in METHODS.items()])
    panels = [
        _panel(f"gap-{number} leave-one-out", _leave_one_out(gap)),
        _panel(f"gap-{number} gradients", _gradients(gap)),
        _panel(f"gap-{number} attention", _attention(gap, number)),
    ]
    return tag(
        "section",
        tag("h2", f"The model was asked to fill {which}"),
        tag("div", text, cut, tag("h3", "Its best guesses"), _guesses(gap), class_="sample"),
        tag("h2", "Which words made it say " if best else "Which words speak for or against ", target, "?"),
        methods,
        *panels,
        id=f"gap-{number}",
    )


def plain(token: str) -> str:
    """A token as it is read."""
    return token.replace(SPACE, " ").strip() or "␣"


def _panel(class_: str, *children: Html | None) -> Html:
    return tag("div", *children, class_=f"panel sample {class_}")


def _choice(name: str, title: str, options: Sequence[tuple[str, str]]) -> Html:
    """Radio buttons of which the first one is chosen."""
    labels = [
        tag("label", tag("input", type="radio", name=name, id=f"{name}-{key}", checked="checked" if i == 0 else None),
            text)
        for i, (key, text) in enumerate(options)
    ]  # fmt: skip
    return tag("fieldset", tag("legend", title or "Method"), *labels, class_="choice")


def _rules(gap: dict, number: int) -> str:
    """What each choice shows."""
    shown = [
        f"#gap-{number}:has(#method-{number}-{key}:checked) .panel.{key}" for key in METHODS
    ]  # a panel of this gap alone: sections do not hold one another
    layers, heads = range(1, len(gap["attention"]) + 1), range(1, len(gap["attention"][0]) + 1)
    both = f"#gap-{number}:has(#layer-{number}-"
    shown += [f"{both}all:checked) .layer-all"]
    shown += [
        f"{both}{layer}:checked):has(#head-{number}-{head}:checked) .layer-{layer}.head-{head}"
        for layer in layers
        for head in ["mean", *heads]
    ]
    hidden = f"{both}all:checked) .heads{{display:none}}"
    return ",".join(shown) + "{display:block}" + hidden + "\n"


# ---- the three methods ----


def _guesses(gap: dict) -> Html:
    guesses = gap["predictions"]
    if gap["target"]["id"] not in [guess["id"] for guess in guesses]:
        guesses = [*guesses, gap["target"]]
    most = max(guess["probability"] for guess in guesses)
    cells = []
    for guess in guesses:
        width = f"--c:var(--accent);width:{100 * guess['probability'] / most:.1f}%"
        chosen = "chosen" if guess["id"] == gap["target"]["id"] else None
        cells += [
            tag("bdi", plain(guess["token"]), class_=chosen),
            tag("div", tag("div", class_="bar", style=width)),
            tag("span", percent(guess["probability"]), class_=chosen),
        ]
    return tag("div", *cells, class_="bars guess")


def percent(share: float) -> str:
    """Two digits of a chance."""
    return f"{share:.0%}" if share >= 0.0995 else f"{100 * share:.2g}%"


def signed(score: float) -> str:
    return f"{score:+.2f}".replace("-", "−")


def times(score: float) -> str:
    """What a score does to the chance of the word."""
    factor = math.exp(abs(score))
    size = f"{factor:.1f}" if factor < 9.95 else f"{factor:,.0f}" if factor < 1e6 else f"{factor:.0e}"
    return f"×{size}" if score >= 0 else f"÷{size}"


def _leave_one_out(gap: dict) -> Html:
    scores = gap["leave_one_out"]
    now = gap["target"]["probability"]
    about = (
        "Each word was hidden from the model in turn, and it guessed again. Blue words helped: without them the guess "
        "becomes less likely. Red words stood in its way."
    )
    known = [(abs(score), number) for number, score in enumerate(scores) if score is not None]
    example = None
    if known:
        number = max(known)[1]
        word, left = gap["words"][number]["text"], gap["left"][number]
        example = tag("p", f"Without “{word}” its chance goes from {percent(now)} to {percent(left)}.")
    return join(tag("p", about, class_="note"), _shaded(gap, scores, signed), _legend(), example, _bars(gap, scores))


def _gradients(gap: dict) -> Html:
    found = gap["integrated_gradients"]
    about = (
        "The hidden text is turned into the real one little by little, and every change of the guess on the way is "
        "credited to the word that caused it (integrated gradients)."
    )
    scores = [score if word["kind"] == "word" else None for score, word in zip(found["words"], gap["words"])]
    return join(
        tag("p", about, class_="note"),
        _shaded(gap, scores, signed),
        _legend(),
        _bars(gap, scores),
        tag("p", completeness(found), class_="note"),
    )


def completeness(found: dict) -> str:
    """Whether integrated gradients add up, in a line."""
    verdict = "they add up" if found["complete"] else "NOT COMPLETE: do not rely on single scores"
    return (
        f"Sum of the credit {found['sum']:+.3f} nats; with the text in place of hidden words the model gains "
        f"{found['expected']:+.3f}: off by {found['gap']:.2g} of it, {verdict} ({found['steps']} points of the path)."
    )


def _attention(gap: dict, number: int) -> Html:
    about = (
        "Each layer of the model lets the gap read from every word; the stronger the colour of a word, the more was "
        "read from it. Heads are readers that work side by side."
    )
    layers, heads = len(gap["attention"]), len(gap["attention"][0])
    layer = _choice(
        f"layer-{number}",
        "Layer",
        [("all", "all, followed through"), *((str(i), str(i)) for i in range(1, layers + 1))],
    )
    head = _choice(
        f"head-{number}", "Head", [("mean", "mean of all"), *((str(i), str(i)) for i in range(1, heads + 1))]
    )
    panels = [_read(gap, gap["rollout"], "layer-all", bars=True)]
    for i, rows in enumerate(gap["attention"], start=1):
        mean = [sum(column) / heads for column in zip(*rows)]
        panels += [_read(gap, mean, f"layer-{i} head-mean")]
        panels += [_read(gap, row, f"layer-{i} head-{j}") for j, row in enumerate(rows, start=1)]
    return join(tag("p", about, class_="note"), layer, tag("div", head, class_="heads"), *panels)


def _read(gap: dict, shares: list[float], class_: str, bars: bool = False) -> Html:
    """Shares of what the gap reads, CLS, SEP and the gap itself among them."""
    rest = " [CLS] and [SEP] stand at the ends of every text." if bars else ""
    note = tag("p", "All shares add up to 100%." + rest, class_="note")
    text = _shaded(gap, shares, percent, edges=True)
    return tag("div", text, note, _bars(gap, shares, of_shares=True), class_=f"panel {class_}")


# ---- text and bars ----


def _shaded(gap: dict, scores: Sequence[float | None], show: Callable[[float], str], edges: bool = False) -> Html:
    """The text, each word shaded by its score, with the number below it; edges: CLS and SEP too."""
    most = max((abs(score) for score in scores if score is not None), default=0.0) or 1.0
    parts = []
    for number, (word, score) in enumerate(zip(gap["words"], scores)):
        if word["kind"] in ("cls", "sep") and not edges:
            continue
        own = word["kind"] == "mask" and word["first"] == gap["place"]
        body = tag("mark", "?" if own else "·") if word["kind"] == "mask" else tag("bdi", word["text"])
        kind, style = ["word"] + ["edge"] * (word["kind"] in ("cls", "sep")), None
        if score is not None and abs(score) / most >= FAINTEST:
            kind.append("for" if score > 0 else "against")
            style = f"--s:{5 + 55 * abs(score) / most:.0f}%"
            body = join(body, tag("sub", show(score)))
        parts += [" " if word["space"] or (edges and number) else None]
        parts += [tag("span", body, class_=" ".join(kind), style=style)]
    shaded = any(score is not None for score in scores)
    return tag("p", *parts, class_="text shaded" if shaded else "text", dir="auto")


def _legend() -> Html:
    return tag(
        "div",
        tag("span", tag("span", "blue, + , solid line", class_="word for", style="--s:40%"), " speaks for the guess"),
        tag("span", tag("span", "red, − , dashed line", class_="word against", style="--s:40%"), " speaks against it"),
        tag("span", "the stronger the colour, the more it counts", class_="faint"),
        class_="legend",
    )


def _bars(gap: dict, scores: Sequence[float | None], of_shares: bool = False) -> Html | None:
    """The words that count most, the greatest first."""
    known = [(score, word) for score, word in zip(scores, gap["words"]) if score is not None]
    known = sorted(known, key=lambda pair: -abs(pair[0]))[:MOST_BARS]
    if not known:
        return tag("p", "There is no other word in the text.", class_="note")
    most = abs(known[0][0]) or 1.0
    cells = []
    for score, word in known:
        own = word["kind"] == "mask" and word["first"] == gap["place"]
        named = (
            tag("i", "the gap itself" if own else "another gap", class_="faint")
            if word["kind"] == "mask"
            else word["text"]
        )
        width, kind = f"{100 * abs(score) / most:.1f}%", "for" if score >= 0 else "against"
        bar = tag("div", class_=f"bar {kind}", style=f"width:{width}")
        bar = tag("div", bar) if of_shares else tag("div", bar, class_="axis")
        cells += [
            tag("bdi", named),
            bar,
            tag("span", percent(score) if of_shares else f"{signed(score)}  ({times(score)})"),
        ]
    return tag("div", *cells, class_="bars signed")
