"""The page of hand-made runs: numbers known by hand, hostile and damaged files, and that it needs nothing else."""

import html.parser
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from mlm_jax import report
from mlm_jax.report import draw, guesses, page, pictures, read, thin

DAMAGE = "could not be read"
EVIL = "<script>alert('x')</script>&\""


def step(number, **more):
    keys = {"train/loss": 8.0 / number, "train/grad_norm": 1.0, "learning_rate": 0.01 * number, "mask/rate": 0.15}
    return {"step": number, "epoch": number / 4, **keys, "train/mlm/accuracy": 0.1, **more}


def evaluation(number, name="pydoc", **more):
    values = {"loss": 3.5, "accuracy": 0.375, "unigram_loss": 6.25, "perplexity": 33.12, "targets": 1234, **more}
    return {"step": number, **{f"eval/{name}/{key}": value for key, value in values.items()}}


def sample(best, tokens=("▁The", "▁cat", "s", "▁sleep", "."), name="pydoc"):
    """The second and third tokens are hidden; best: the guesses for the second."""
    masked = [{"place": 1, "target": tokens[1], "guesses": best}, {"place": 2, "target": tokens[2], "guesses": best}]
    return {"set": name, "tokens": list(tokens), "masked": masked}


START = {
    "time": "2026-11-30T13:00:00+00:00",
    "step": 0,
    "command": "python -m mlm_jax.train --config=configs/tiny.py",
    "versions": {"python": "3.11.7", "jax": "0.10.2"},
    "platform": "cpu",
    "device_kind": "cpu",
    "devices": 1,
    "processes": 1,
    "mesh": {"data": 1, "fsdp": 1, "tensor": 1},
}
SPLITS = {"train": {"rows": 1500, "tokens": 90000}, "eval": {"rows": 20, "tokens": 1200}}
MANIFEST = {
    "row_length": 64,
    "tokenizer": {"vocab_size": 4096},
    "corpora": [{"source": "builtin:pydoc", "counts": {"kept": 77, "bytes": 250000}, "splits": SPLITS}],
}
STEPS = [
    step(1, **{"time/step": None, "throughput/tokens_per_second": None, "throughput/mfu": None, "time/goodput": 0.0}),
    step(2, **{"time/step": 0.5, "throughput/tokens_per_second": 1000, "throughput/mfu": 0.1, "time/goodput": 0.7}),
    step(3, **{"time/step": 60.0, "throughput/tokens_per_second": 3000, "throughput/mfu": 0.3, "time/goodput": 0.9}),
    step(4, **{"time/step": 0.25, "throughput/tokens_per_second": 2000, "throughput/mfu": 0.2, "time/goodput": 0.8}),
]


def write(folder, metrics=None, samples=None, starts=None, config=None, manifest=None):
    """A run's folder of those files that are given, and the text of its page."""
    folder.mkdir(exist_ok=True)
    lines = {"metrics.jsonl": metrics, "samples.jsonl": samples, "starts.jsonl": starts}
    for name, records in lines.items():
        if records is not None:
            (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    for name, value in {"config.json": config, "rows/manifest.json": manifest}.items():
        if value is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(value))
    return report.write(folder).read_text(encoding="utf-8")


FILES = {
    "metrics": [*STEPS[:2], evaluation(2, loss=5.0), *STEPS[2:], evaluation(4)],
    "samples": [
        {"step": 2, "samples": [sample([["▁the", 0.25], ["▁cat", 0.125]])]},
        {"step": 4, "samples": [sample([["▁cat", 0.75], ["s", 0.004]])]},
    ],
    "starts": [START, {**START, "step": 2}],
    "config": {"steps": 10, "seed": 3},
    "manifest": MANIFEST,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("runs") / "first-run", **FILES)


class Elements(html.parser.HTMLParser):
    """Checks that every element is closed in order, and gathers elements and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data.strip())


def words(text):
    return " ".join(filter(None, Elements(text).words))


def tiles(text):
    found = re.findall(r'<dt>(.*?)</dt><dd class="big">(.*?)</dd><dd class="small">(.*?)</dd>', text)
    return {name: (value, more) for name, value, more in found}


def test_headline_by_hand(whole):
    assert tiles(whole) == {
        "steps": ("4", "of 10 · 1.00 epochs"),
        "evaluation loss, pydoc": ("3.500", "unigram 6.250"),
        "accuracy, pydoc": ("37.5%", "perplexity 33.1"),  # e^3.5
        "tokens a second": ("2.00k", "median, 20.0% MFU"),
        "goodput": ("80.0%", "useful share of all time"),
        "time in steps": ("01:01", "0.5 s a step"),  # 60.75 s
    }
    assert "40% of the planned steps" in whole and DAMAGE not in whole


def test_update_sizes_leave_out_what_did_not_move(tmp_path):
    sizes = [{"layers": 0.01, "embeddings": 0.0}, {"layers": 0.0, "embeddings": 0.0}, {"layers": 0.03, "head": 0.002}]
    lines = [step(i, **{f"update/{part}": size for part, size in row.items()}) for i, row in enumerate(sizes, 1)]
    text = write(tmp_path / "run", lines)
    assert "Update sizes" in text and "set-1" in text
    drawn = pictures.updates(read.read(tmp_path / "run")).lines
    assert [(line.label, line.x.tolist(), line.y.round(6).tolist()) for line in drawn] == [
        ("layers", [1, 3], [0.01, 0.03]),
        ("head", [3], [0.002]),
    ]


def test_all_parts_are_there(whole):
    titles = re.findall("<h2>(.*?)</h2>", whole)
    assert titles == ["Curves", "Guesses on held-out texts", "Data", "Environment", "Starts", "Command", "Config"]
    pictures = re.findall("<figcaption>(.*?)<", whole)
    assert pictures == [
        *("Loss", "Accuracy", "Learning rate", "Mask rate", "Gradient norm"),
        *("Tokens per second", "Model FLOP utilisation", "Step time", "Where the time goes"),
    ]
    text = words(whole)
    assert "builtin:pydoc 77 250k 1,500 90,000 20 1,200" in text
    assert "jax 0.10.2" in text and START["command"] in text and '"seed": 3' in text
    assert "2 2026-11-30 13:00:00 UTC 2 1 × cpu, 1 process data 1 × fsdp 1 × tensor 1" in text
    assert "4 3.500 6.250 – 33.12 37.5% 1,234" in text and "2 5.000 6.250" in text  # evaluations as numbers


def test_guesses_stand_beside_the_truth(whole):
    text = words(whole)
    assert "The 1 2 sleep." in text
    assert "# hidden step 2 step 4" in text
    assert "1 cat ✗ the 25% truth is no. 2, 12% ✓ cat 75%" in text
    assert "2 - s ✗ the 25% ✗ cat 75% truth is no. 2, <1%" in text
    assert "right 0 of 2 1 of 2" in text


def test_the_page_needs_nothing_from_elsewhere(whole):
    elements = Elements(whole).elements
    assert not {tag for tag, _ in elements} & {"script", "link", "img", "iframe", "image", "object", "foreignobject"}
    for _, attributes in elements:
        assert "src" not in attributes and not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith("#")
    assert "http:" not in whole and "https:" not in whole and "@import" not in whole
    assert not re.findall(r"url\((?!#)", whole)
    policy = next(attributes["content"] for _, attributes in elements if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'")


def test_every_text_is_escaped(tmp_path):
    texts = [sample([[EVIL, 0.5], ["▁" + EVIL, 0.25]], tokens=[EVIL] * 5, name=EVIL)]
    start = {**START, "command": EVIL, "versions": {EVIL: EVIL}, "device_kind": EVIL, "mesh": {EVIL: 1}, "time": EVIL}
    corpus = {**MANIFEST["corpora"][0], "source": EVIL}
    text = write(
        tmp_path / "<script>run",
        [step(1), evaluation(1, EVIL), evaluation(1, EVIL, loss_decile_1=1.0)],
        [{"step": 1, "samples": texts}],
        [start, {**start, "versions": {EVIL: "2"}, "command": EVIL + EVIL}],
        {"steps": EVIL, EVIL: EVIL},
        {**MANIFEST, "corpora": [corpus]},
    )
    assert "script" not in {tag for tag, _ in Elements(text).elements} and "<script" not in text
    assert text.count("&lt;script&gt;") > 20 and DAMAGE not in text


@pytest.mark.parametrize("only", [None, *FILES])
def test_missing_files_leave_their_part_out(tmp_path, only):
    text = write(tmp_path / "run", **({only: FILES[only]} if only else {}))
    assert "<h1>run</h1>" in text and DAMAGE not in text and Elements(text)
    assert ("Curves" in text) == (only == "metrics") and ("Data</h2>" in text) == (only == "manifest")


def test_torn_and_foreign_lines_are_passed_over(tmp_path):
    folder = tmp_path / "run"
    write(folder, **FILES)
    torn = b'[1]\n"step"\n\xff\xfe\n{"train/loss": 5}\n{"step": "x", "train/loss": 1}\n{"step": 5, "train/lo'
    for name in ("metrics.jsonl", "samples.jsonl", "starts.jsonl"):
        with open(folder / name, "ab") as file:
            file.write(torn if name == "metrics.jsonl" else torn[:9] + b'{"step": ')
    (folder / "rows" / "manifest.json").write_text('{"corpora": [')
    text = report.write(folder).read_text()
    assert tiles(text)["steps"] == ("4", "of 10 · 1.00 epochs") and DAMAGE not in text and "Data</h2>" not in text


def test_a_part_of_another_form_does_not_take_the_page_with_it(tmp_path):
    files = {**FILES, "manifest": {"corpora": [{"source": "x"}]}, "samples": [{"step": 1, "samples": [{"set": "x"}]}]}
    text = write(tmp_path / "run", **files)
    assert text.count(DAMAGE) == 2 and "Curves" in text and Elements(text)


def test_values_that_are_no_numbers(tmp_path):
    bad = {"train/grad_norm": "high", "learning_rate": 10**400, "mask/rate": None, "throughput/mfu": [1]}
    lines = '{"step": 3, "train/loss": NaN, "learning_rate": Infinity}\n'
    folder = tmp_path / "run"
    write(folder, [step(1, **bad), step(2), evaluation(2, loss=None, unigram_loss=None)])
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(lines)
    text = report.write(folder).read_text()
    assert DAMAGE not in text and tiles(text)["steps"][0] == "3"
    columns, curves = read.read_metrics(folder / "metrics.jsonl")
    np.testing.assert_array_equal(columns["step"], [1, 2, 3])
    np.testing.assert_array_equal(columns["learning_rate"], [np.nan, 0.02, np.nan])
    assert "loss" not in curves["pydoc"] and read.last(curves["pydoc"]["accuracy"]) == 0.375


def test_a_run_of_one_step(tmp_path):
    text = write(tmp_path / "run", [step(1), evaluation(1)], config={"steps": 1})
    assert "finished" in text and DAMAGE not in text and "Loss" in text
    assert write(tmp_path / "run", [step(1)]).count("<svg") == 6  # the loss twice; accuracy, rates, gradient norm


def test_half_a_surrogate_pair_is_no_error(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "starts.jsonl").write_text('{"step": 0, "command": "a \\ud800 b"}\n')
    assert "a ? b" in report.write(folder).read_text(encoding="utf-8")


def test_a_step_that_was_done_again_counts_once(tmp_path):
    folder = tmp_path / "run"
    write(folder, [step(1), step(2), step(3), evaluation(2), step(2, **{"train/loss": 7.0}), evaluation(2, loss=1.0)])
    columns, curves = read.read_metrics(folder / "metrics.jsonl")
    np.testing.assert_array_equal(columns["train/loss"], [8.0, 7.0, 8 / 3])
    assert curves["pydoc"]["loss"][1].tolist() == [1.0]


def test_deciles_may_be_absent(tmp_path):
    text = write(tmp_path / "run", [step(1), evaluation(1, loss_decile_1=1.0, loss_decile_10=4.0)])
    assert "pydoc, at step 1<" in text
    bars = re.findall(r"width:([\d.]+)%", text.split("</style>")[1])
    assert bars == ["25.0", "100.0"] and "1, most frequent" in text and "10, rarest" in text
    assert ">5</span>" not in text


def test_step_times_and_waiting_by_hand(tmp_path):
    lines = [step(i, **{"time/step": i / 100, "time/input_wait": i / 1000}) for i in range(1, 101)]
    text = write(tmp_path / "run", lines)
    assert "p50 0.505, p90 0.901, p99 0.99, most 1." in text  # linear between the ranks
    assert "10.00% of the steps" in text


def test_set_names_in_any_script_and_more_sets_than_colours(tmp_path):
    names = ["红楼梦", "قرآن", *(f"set{i}" for i in range(9))]
    text = write(tmp_path / "run", [step(1), *(evaluation(1, name, loss_decile_3=2.0) for name in names)])
    assert all(name in text for name in names) and DAMAGE not in text


def test_a_long_run_is_bounded(tmp_path, monkeypatch):
    lines = [step(i, **{"time/step": 0.5, "time/input_wait": 0.01}) for i in range(1, 20001)]
    lines += [evaluation(i * 10, loss_decile_1=1.0) for i in range(1, 2001)]
    folder = tmp_path / "run"
    assert len(write(folder, lines)) < 400_000
    monkeypatch.setattr(read, "LARGEST", (folder / "metrics.jsonl").stat().st_size / 3.5)
    run = read.read(folder)
    assert run.every == 4 and len(run.steps["step"]) == 5000 and page.steps_done(run) == 20000
    text = report.write(folder).read_text()
    assert tiles(text)["time in steps"][0] == "2:46:40" and "one step in 4 " in text
    assert len(run.evaluations["pydoc"]["loss"][0]) == 2000


def test_samples_are_spread_over_the_run():
    items = [{"step": i} for i in range(1000)]
    kept = [item["step"] for item in read.spread(iter(items), 64)]
    assert kept[0] == 0 and kept[-1] == 999 and 32 <= len(kept) <= 65 and len(set(np.diff(kept[:-1]))) == 1
    assert read.spread(iter(items[:1]), 64) == items[:1] and read.spread(iter([]), 64) == []
    assert read.evenly(list(range(9)), 3) == [0, 4, 8] and read.evenly([], 3) == [] and read.evenly([5], 3) == [5]


def test_samples_of_other_texts_before_leave_cells_empty(tmp_path):
    lines = [{"step": 1, "samples": [sample([["a", 0.5]], name="old")]}, *FILES["samples"]]
    text = words(write(tmp_path / "run", samples=lines))
    assert "1 cat – ✗ the 25%" in text and DAMAGE not in text


def test_smoothing_against_a_loop():
    y = np.random.default_rng(0).normal(size=100)
    half = 5
    expected = [y[max(0, i - half) : min(i + half, 2 * i, 99) + 1].mean() for i in range(100)]
    np.testing.assert_allclose(thin.smooth(y, 0.1), expected, atol=1e-12)


def test_no_spike_is_lost():
    x, y = np.arange(50000.0), np.zeros(50000)
    y[12345], y[40001] = 9.0, -9.0
    few_x, few_y = thin.envelope(x, y, 100)
    assert len(few_x) <= 100 and (np.diff(few_x) > 0).all()
    assert few_x[few_y == 9.0] == [12345] and few_x[few_y == -9.0] == [40001]
    assert thin.pick(5, 100).tolist() == [0, 1, 2, 3, 4] and thin.pick(0).tolist() == []
    assert [len(run) for run in thin.runs(100, most=4)] == [25] * 4 and len(thin.runs(5)) == 1 and thin.runs(0) == []


@pytest.mark.parametrize(
    "token, shown",
    [
        ("▁cat", "cat"),
        ("ing", "-ing"),
        ("▁", "space"),
        (",", ","),
        ("猫", "猫"),
        ("ة", "-ة"),
        ("\u064e", "\u25cc\u064e"),
        ("[SEP]", "[SEP]"),
    ],
)
def test_pieces_as_they_are_read(token, shown):
    assert "".join(Elements(str(guesses.piece(token))).words) == shown


def test_numbers_on_axes():
    shown = [draw.compact(value) for value in (0.0, 0.003, 1e-5, 1500.0, 20000.0, 2.5e6, 1e9)]
    assert shown == ["0", "0.003", "1e-5", "1,500", "20k", "2.5M", "1G"]


def test_colours_are_the_style_sheets(whole):
    used = set(re.findall(r"var\(--([\w-]+)\)", whole.split("</style>")[1]))
    assert {"ink", "grid", "train", "set-0"} <= used - {"c"} <= set(draw.COLORS)
    assert "#0a0b" not in whole
    for name in draw.COLORS:
        assert len(re.findall(f"--{name}:", whole)) == 2  # light and dark


def test_the_old_page_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    before = write(tmp_path / "run", **FILES)

    def fails(run):
        raise MemoryError

    monkeypatch.setattr(page, "html_of", fails)
    with pytest.raises(MemoryError):
        report.write(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").read_text() == before
    assert not list((tmp_path / "run").glob("*.partial"))


def test_jax_is_not_needed(tmp_path):
    write(tmp_path / "run", **FILES)
    program = (
        "import sys; sys.modules['jax'] = sys.modules['flax'] = None\n"
        f"from mlm_jax import report; print(report.write({str(tmp_path / 'run')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(tmp_path / "run" / "report.html"), done.stderr


def test_memory_and_rewinds_have_their_place(tmp_path):
    memory = {"memory/peak_bytes": 12e9, "memory/limit_bytes": 16e9, "memory/host_bytes": 3e9}
    line = {"time": "2026-11-30T13:00:00+00:00", "step": 516, "to": 400, "loss": 9.25, "usual": 4.5}
    skipped = [line | {"rows": [[0, 300, 1500], [1, 0, 34]]}, {"step": 3}]
    (tmp_path / "skipped.jsonl").write_text("".join(json.dumps(one) + "\n" for one in skipped) + '{"torn')
    page = write(tmp_path, metrics=[step(1), step(100, **memory), step(200, **memory)])
    assert "A device has 16.0 GB." in page and "most on a device" in page
    cells = ["2026-11-30 13:00:00 UTC", "516", "400", "9.25", "4.5", "1,234"]
    assert "".join(f"<td>{cell}</td>" for cell in cells) in page
    assert "Rewinds" not in write(tmp_path / "plain", metrics=[step(1)])
