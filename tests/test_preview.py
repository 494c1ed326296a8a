import json
import re

import numpy as np
from batches import MASK, vocabulary
from test_train import SMALL, text  # noqa: F401  (a fixture)

from mlm_jax import data, preview
from mlm_jax.cli import audit
from mlm_jax.cli import preview as verb
from mlm_jax.config import Config

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the", "▁la", "ke", "▁", "é", "<b>"]


def a_row():
    tokens = np.array([2, 5, 6, 7, 8, 9, 10, 3, 2, 5, 3, 0])
    segments = np.array([1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 0])
    starts = np.array([0, 1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0], bool)
    inputs, selected = tokens.copy(), np.zeros(12, bool)
    for place, stands in ((1, MASK), (3, 10), (9, 5)):
        inputs[place], selected[place] = stands, True
    kinds = preview._kinds(tokens, inputs, selected, np.isin(tokens, vocabulary(40).ordinary) & (segments > 0), MASK)
    pieces = [preview._piece(PIECES, *place) for place in zip(kinds, tokens, inputs)]
    joins = np.isin(np.arange(12), [4, 9])  # the lake é; what stands first in a segment continues nothing
    types = np.isin(np.arange(12), [9, 10])  # a pair, as if [CLS] alone were its first text
    return preview.Row(7, 1, 7, preview._segments(pieces, segments, starts, joins, types), ["", "label 1, random"], 1)


def test_words_and_what_happens_to_each_token():
    shown = preview.terminal([a_row()], color=False).splitlines()
    assert shown[2] == "row 7, visit 1: 2 segments, 1 places empty; 3 of 7 tokens predicted (42.9%): " + (
        "1 masked, 1 random, 1 kept"
    )
    assert shown[3:] == [
        "  1  [CLS] ⟦the⟧ la·⟪ke→<b>⟫‿␣·é <b> [SEP]",
        "  2  [CLS]",
        "     label 1, random: ⟨the⟩ [SEP]",
    ]
    colored = preview.terminal([a_row()], color=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", colored).splitlines()[3] == "  1  [CLS] the la·ke→<b>‿␣·é <b> [SEP]"
    assert "\x1b[30;44mthe\x1b[0m" in colored


def test_the_page_is_escaped_and_needs_nothing_else():
    page = preview.html([a_row()], "Masks", "Unit word.")
    assert "<b>" not in page and "&lt;b&gt;" in page
    assert not re.search(r"https?://|src=|<script|<link", page)
    assert page.count('class="masked"') == 2 and page.count('class="kept"') == 2  # one of each in the legend
    assert page.count('class="phrase"') == 1 and page.count("label 1, random") == 1


def test_the_verb_works_before_any_training(text, tmp_path, capfd):  # noqa: F811
    argv = ["--config=configs/tiny.py", f"--config.data.sources={text}", f"--workdir={tmp_path}", *SMALL]
    page = tmp_path / "preview.html"
    assert verb.main([*argv, "--rows=2", "--visits=2", f"--html={page}"]) == 0
    shown = capfd.readouterr().out
    assert [line[:14] for line in shown.splitlines() if line.startswith("row")] == [
        f"row {row}, visit {visit}" for row in (0, 1) for visit in (0, 1)
    ]
    assert page.read_text().count("<section") == 4
    assert verb.main([*argv, "--first_place=3", "--rows=2"]) == 0
    manifest = json.loads((tmp_path / "rows/manifest.json").read_text())
    read = data.rows_at(manifest, Config(seed=0), data.FIRST, [3, 4])
    named = [line.split(":")[0] for line in capfd.readouterr().out.splitlines() if line.startswith("row")]
    assert named == [f"row {row}, visit {visit}" for row, visit in read]
    again = verb.main([*argv, "--rows=2", "--visits=2"])
    assert again == 0 and capfd.readouterr().out == shown
    for flag, says in [
        ("--first_row=100000", "training rows"),
        ("--rows=0", "rows"),
        ("--config.mask.rate=2", "config.mask.rate"),
        (f"--html={tmp_path}/no/page.html", "cannot be written"),
    ]:
        assert verb.main([*argv, flag]) == 2
        assert says in capfd.readouterr().err


def test_phrases_are_found_marked_shown_and_masked(text, tmp_path, capfd):  # noqa: F811
    # of a thousand sentences "The cat sleeps well.", each noun with its verb, the pairs are what stands together
    argv = ["--config=configs/tiny.py", f"--config.data.sources={text}", f"--workdir={tmp_path}", *SMALL]
    argv += ["--config.data.collocations=4", "--config.data.collocation_longest=2", "--config.mask.unit=phrase"]
    assert verb.main([*argv, "--rows=4", "--config.mask.corruption=(1.0, 0.0, 0.0)"]) == 0
    shown = "\n".join(line for line in capfd.readouterr().out.splitlines() if re.match(r"  \d+  ", line))
    tied = {re.sub("[⟦⟧·]", "", phrase) for phrase in re.findall(r"\S+‿\S+", shown)}
    assert tied == {"cat‿sleeps", "dog‿barks", "bird‿sings", "fish‿swims"}
    assert audit.main([*argv, "--rows=64", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["breaches"] == found["doubts"] == []
