"""What `inspect` says of a folder of rows: counts beside a slow count by hand, and every kind of damage by its name."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_prepare import write_json_lines

from mlm_jax import records
from mlm_jax.cli.inspect import main
from mlm_jax.config import Config, ConfigError, DataConfig, TokenizerConfig
from mlm_jax.inspection import counts, inspect, page, rules, terminal
from mlm_jax.inspection.shards import open_shard
from mlm_jax.prepare import prepare
from mlm_jax.records import NO_SEGMENT, Layout

IDS = counts.Ids(size=20, pad=0, unk=1, cls=2, sep=3, mask=4)
LAYOUT = Layout(12, 3, "uint16")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A run's folder with rows of two corpora, of which one has a document that is dropped."""
    workdir = tmp_path_factory.mktemp("run")
    one, two = write_json_lines(workdir / "one.jsonl", 60), write_json_lines(workdir / "two.jsonl", 20, start=100)
    two.write_text(two.read_text() + '{"id": "bad"}\n')
    data = DataConfig(
        sources=(str(one), str(two)), pack_groups=2, holdout=0.1, max_segments=8, workers=1, collocations=20,
        collocation_count=2,
    )  # fmt: skip
    config = Config(row_length=64, data=data, tokenizer=TokenizerConfig(vocab_size=300))
    prepare(config, workdir / "rows", progress=False)
    (workdir / "config.json").write_text(json.dumps({"data": {"weights": [3, 1]}}))
    return workdir


def copy_of(rows: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(rows / "rows", tmp_path / "rows"))


def row_of(*segments: list[int], labels: tuple = (), **fields) -> bytes:
    """A row of segments, each given with its CLS and SEP; every token of text begins a word."""
    tokens = [i for segment in segments for i in segment]
    firsts = np.cumsum([0, *map(len, segments)])[:-1]
    flags = [0 if i in (2, 3) else records.WORD_START for i in tokens]
    for place in fields.pop("second", ()):
        flags[place] |= records.SECOND_OF_PAIR
    raw = records.encode_row(LAYOUT, tokens, flags, firsts, labels or [-1] * len(firsts), pad=0)
    row = np.frombuffer(raw, LAYOUT.record).copy()
    for name, (place, value) in fields.items():
        row[name][0, place] = value
    return row.tobytes()


def broken(*found: bytes) -> dict:
    return {rule: list(of) for rule, of in rules.broken(counts.Block.of(LAYOUT, list(found)), LAYOUT, IDS).items()}


def test_good_rows_break_no_rule():
    pair = row_of([2, 7, 8, 3, 9, 3], [2, 5, 3], labels=(1, -1), second=(4, 5))
    assert broken(row_of([2, 7, 8, 3], [2, 9, 3]), pair, row_of([2, *range(5, 15), 3])) == {}


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("each segment begins with CLS", row_of([5, 7, 3])),
        ("each segment ends with SEP", row_of([2, 7, 8])),
        ("CLS, SEP and MASK stand nowhere else", row_of([2, 7, 4, 3])),
        ("CLS, SEP and MASK stand nowhere else", row_of([2, 7, 3, 8, 3])),  # no part of a pair
        ("no PAD inside a row", row_of([2, 0, 8, 3])),
        ("PAD after a row's end, without flags", row_of([2, 7, 3], tokens=(9, 5))),
        ("PAD after a row's end, without flags", row_of([2, 7, 3], flags=(9, 1))),
        ("ids are below 20", row_of([2, 20, 3])),
        ("segments stand in order", row_of([2, 7, 3], [2, 8, 3], firsts=(1, 0))),
        ("the first segment begins at place 0", row_of([2, 7, 3], firsts=(0, NO_SEGMENT))),
        ("segments begin within the row", row_of([2, 7, 3], firsts=(1, 4))),
        ("each segment begins a word", row_of([2, 7, 3], flags=(1, 0))),
        ("what begins or continues more begins a word", row_of([2, 7, 8, 3], flags=(2, records.SENTENCE_START))),
        ("CLS and SEP bear no flag but that of a pair", row_of([2, 7, 3], flags=(2, 1))),
        ("no unknown flags", row_of([2, 7, 3], flags=(1, 65))),
        ("pair labels are -1, 0 or 1, and -1 where no segment is", row_of([2, 7, 3], labels=(2,))),
        ("pair labels are -1, 0 or 1, and -1 where no segment is", row_of([2, 7, 3], pair_labels=(1, 0))),
        ("a row holds 1 to 12 tokens", records.encode_row(LAYOUT, [], [], [], [], 0)),
    ],
)
def test_each_rule_is_noticed(rule, bad):
    assert broken(row_of([2, 7, 3]), bad).get(rule) == [1]


def test_counts_of_one_row_by_hand():
    """[a b. c] [d] and a pair (e | f g): words of 1 and 2 tokens, sentences, a phrase of two words."""
    start, more = records.WORD_START, 0
    sentence, joins = start | records.SENTENCE_START, start | records.PHRASE_JOIN
    tokens = [2, 5, 6, 7, 3, 2, 8, 3, 9, 9, 3]
    second = records.SECOND_OF_PAIR
    flags = [0, sentence, more, sentence, 0, 0, start, 0, start | second, joins | second, second]
    raw = records.encode_row(LAYOUT, tokens, flags, [0, 5], [-1, 1], 0)
    block = counts.Block.of(LAYOUT, [raw])
    found = {key: value.tolist() for key, value in counts.distributions(block).items()}
    assert found["tokens a row"][11] == 1 and found["segments a row"] == [0, 0, 1]
    assert found["tokens a segment"] == [0, 0, 0, 0, 0, 1, 1]
    assert found["tokens a word"] == [0, 4, 1]
    assert found["words a sentence"] == [0, 3, 1]  # "ab", "c", "d" and "e f", which is a part of the pair
    assert found["tokens a sentence"] == [0, 2, 2]
    assert found["sentences a paragraph"] == [0, 2, 1]
    assert found["words a phrase"] == [0, 3, 1]
    sums = counts.totals(block, IDS)
    assert (sums["tokens"], sums["segments"], sums["ids"].nonzero()[0].tolist()) == (11, 2, [5, 6, 7, 8, 9])
    assert sums["labels"].tolist() == [0, 1] and sums["ids"][9] == 2 and sums["flags"].tolist() == [5, 2, 0, 1]


def test_the_whole_folder(rows):
    findings = inspect(rows / "rows", workers=1)
    manifest = records.read_manifest(rows / "rows")
    assert findings["failures"] == [] and findings["whole"]
    train = findings["corpora"][0]["splits"]["train"]
    lengths, segments = [], []
    for shard in manifest["corpora"][0]["splits"]["train"]["shards"]:
        raw = open_shard(str(rows / "rows" / shard["file"])).read(0, shard["rows"])
        for tokens in records.decode_rows(records.layout_of(manifest), raw)["segments"]:
            lengths.append(np.count_nonzero(tokens))
            segments += [np.count_nonzero(tokens == n) for n in range(1, tokens.max() + 1)]
    of_rows, of_segments = train["distributions"]["tokens a row"], train["distributions"]["tokens a segment"]
    assert (of_rows["mean"], of_rows["largest"]) == (pytest.approx(np.mean(lengths)), max(lengths))
    assert train["fill"] == pytest.approx(np.mean(lengths) / 64)
    assert of_segments["histogram"] == np.bincount(segments).tolist()
    assert of_segments["median"] == np.percentile(segments, 50, method="inverted_cdf")
    assert findings["corpora"][1]["counts"]["dropped"] == {"no text in the field 'text'": 1}
    used = np.array(manifest["unigrams"])[5:]
    vocabulary = findings["vocabulary"]
    assert (vocabulary["used"], vocabulary["ordinary"]) == (np.count_nonzero(used), len(used))
    assert vocabulary["frequent"][0][2] == used.max() and len(vocabulary["counts"]) == vocabulary["used"]
    assert all(sample.startswith("[") for corpus in findings["corpora"] for sample in corpus["samples"])


def test_rows_of_pairs(rows, tmp_path):
    config = Config(row_length=64, data=DataConfig(sources=(str(rows / "one.jsonl"),), pairs="next", workers=1))
    config.tokenizer = TokenizerConfig(path=str(rows / "rows/tokenizer"))
    prepare(config, tmp_path / "rows", progress=False)
    findings = inspect(tmp_path / "rows", workers=1)
    split = findings["corpora"][0]["splits"]["train"]
    assert findings["failures"] == [] and min(split["labels"]) > 0
    follows, other = (f"{count:,}" for count in split["labels"])
    assert f"pairs (next): follows {follows}, of another document {other}; no pair" in terminal.text(findings)


def test_some_rows_evenly_spread(rows):
    findings = inspect(rows / "rows", most_rows=10, workers=1)
    assert (findings["rows_read"], findings["whole"], findings["failures"]) == (10, False, [])
    assert "not checked" in terminal.text(findings)
    assert inspect(rows / "rows", most_rows=10**6, workers=1)["whole"]


def shard_of(folder: Path) -> Path:
    return folder / records.read_manifest(folder)["corpora"][0]["splits"]["train"]["shards"][0]["file"]


def rewrite(path: Path, change) -> None:
    layout, rows = records.layout_of(records.read_manifest(path.parents[1])), open_shard(str(path))
    raw = np.frombuffer(b"".join(rows.read(0, rows.num_records())), layout.record).copy()
    raw = change(raw)
    path.unlink()
    records.write_shard(path, [raw[i : i + 1].tobytes() for i in range(len(raw))])


def other_token(raw):
    raw["tokens"][0, 1] = 7 if raw["tokens"][0, 1] != 7 else 8
    return raw


DAMAGE = {
    "hash of the rows": lambda path: rewrite(path, other_token),
    "number of rows": lambda path: rewrite(path, lambda raw: raw[:-1]),
    "readable": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "no PAD inside a row": lambda path: rewrite(path, lambda raw: (raw["tokens"].__setitem__((0, 1), 0), raw)[1]),
}


@pytest.mark.parametrize("check", DAMAGE)
def test_damage_is_named_with_its_file(rows, tmp_path, capsys, check):
    folder = copy_of(rows, tmp_path)
    shard = shard_of(folder)
    DAMAGE[check](shard)
    assert main([str(folder), "--workers=1"]) == 2
    output = capsys.readouterr()
    assert f"mlm_jax: {shard.relative_to(folder)}: {check}" in output.err and "failed" in output.out


def test_a_missing_shard_a_stray_one_and_another_list(rows, tmp_path):
    folder = copy_of(rows, tmp_path)
    shard = shard_of(folder)
    shard.rename(shard.with_name("9-0000.array_record"))
    (folder / "collocations.tsv").write_text("")
    failures = {(one["file"], one["check"]) for one in inspect(folder, workers=1)["failures"]}
    name = str(shard.relative_to(folder))
    assert failures == {
        (name, "readable"),
        ("train/9-0000.array_record", "files"),
        ("collocations.tsv", "hash of the list"),
    }


def test_a_manifest_with_other_counts(rows, tmp_path):
    folder = copy_of(rows, tmp_path)
    manifest = records.read_manifest(folder)
    manifest["unigrams"][10] += 1
    manifest["corpora"][0]["splits"]["eval"]["tokens"] += 1
    manifest["flags"]["word_starts"] -= 1
    records.write_json(folder / "manifest.json", manifest)
    failures = inspect(folder, workers=1)["failures"]
    assert {one["file"] for one in failures} == {"manifest.json"} and len(failures) == 3
    with pytest.raises(ConfigError, match="is no manifest"):
        inspect(tmp_path)


def test_the_command_line(rows, tmp_path, capsys):
    assert main([str(rows), "--json", f"--html={tmp_path / 'page.html'}"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert [corpus["weight"] for corpus in findings["corpora"]] == [0.75, 0.25]
    written = (tmp_path / "page.html").read_text()
    assert written.endswith("</html>\n") and not re.search(r"src=|<script|<link", written)
    assert written == page.html(findings) and "Frequency by rank" in written
    assert main([f"--workdir={rows}", "--quick"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) < 200  # but for texts, 100
    assert main(["--config=configs/tiny.py", f"--workdir={rows}", "--quick"]) == 0
    assert main([]) == 2 and main([str(rows), "--config=configs/tiny.py"]) == 2
    assert main([str(tmp_path / "nothing")]) == 2


def test_it_starts_without_jax():
    code = "import sys, mlm_jax.cli.inspect, mlm_jax.inspection.page; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
