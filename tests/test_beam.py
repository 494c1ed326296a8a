"""The same rows by Apache Beam as by the local pipeline, byte for byte; nothing here runs where Beam is missing."""

import filecmp
import gzip
import importlib.util
import json
import random
import sys

import pytest

from mlm_jax.cli.prepare import main
from mlm_jax.config import Config, ConfigError, DataConfig, FilterConfig, RunError, TokenizerConfig
from mlm_jax.prepare import beam, prepare
from mlm_jax.prepare.beam import EVERY_HASH, merge_drawn
from mlm_jax.prepare.sampling import Reservoir
from mlm_jax.prepare.sources import parts
from mlm_jax.prepare.training import train_tokenizer

HAS_BEAM = importlib.util.find_spec("apache_beam") is not None
needs_beam = pytest.mark.skipif(not HAS_BEAM, reason="apache_beam is not installed (pip install 'mlm-jax[beam]')")
ignores = pytest.mark.filterwarnings("ignore")  # of the library and what it imports


def write_text(path, seed, documents, bad=""):
    draw = random.Random(seed)
    lines = []
    for i in range(documents):
        words = ["".join(draw.choices("aeioustrn", k=draw.randint(1, 8))) for _ in range(draw.randint(3, 150))]
        lines.append(json.dumps({"id": f"{seed}-{i}", "text": " ".join(words).capitalize() + "."}) + "\n")
    path.write_text("".join(lines) + bad)
    return path


def config_of(*paths, vocab_size=200, **data) -> Config:
    data = {"sources": tuple(map(str, paths)), "pack_groups": 3, "holdout": 0.2, "max_segments": 8, "workers": 1} | data
    tokenizer = TokenizerConfig(vocab_size=vocab_size, sample_bytes=20_000)  # less than there is
    return Config(row_length=64, data=DataConfig(**data), tokenizer=tokenizer)


def equal_folders(one, other) -> list[str]:
    """The files of both, which must be the same, with the same bytes."""
    found = [
        sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) for folder in (one, other)
    ]
    assert found[0] == found[1]
    different = filecmp.cmpfiles(one, other, found[0], shallow=False)[1:]
    assert different == ([], []), different
    return found[0]


@pytest.fixture(autouse=True)
def older_protobuf(monkeypatch):
    """Beam admits none that SentencePiece wants; `beam.prepare` sets this by itself, the local run needs it here."""
    monkeypatch.setenv("TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK", "true")


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(parts, "UNIT_BYTES", 4000)
    monkeypatch.setattr(parts, "BLOCK_BYTES", 1000)


@pytest.fixture
def sources(tmp_path):
    """A folder of two files, of which one has a record that is none; and one more file."""
    (tmp_path / "a").mkdir()
    write_text(tmp_path / "a/one.jsonl", 1, 40, bad="no json\n")
    write_text(tmp_path / "a/two.jsonl", 2, 30)
    return tmp_path / "a", write_text(tmp_path / "three.jsonl", 3, 30)


@needs_beam
@ignores
@pytest.mark.parametrize("more", [{}, {"pairs": "order", "filter": FilterConfig(min_words=20)}], ids=["", "options"])
def test_the_same_bytes_as_a_local_run(tmp_path, small_units, sources, more):
    config = config_of(*sources, **more)
    local = prepare(config, tmp_path / "local", progress=False)
    manifest = beam.prepare(config, str(tmp_path / "beam"), "DirectRunner", [], progress=False)
    files = equal_folders(tmp_path / "local", tmp_path / "beam")
    assert sum(name.startswith("train/") for name in files) == 6 and manifest == local
    dropped = manifest["corpora"][0]["counts"]["dropped"]
    assert dropped["not valid JSON"] == 1 and len(dropped) == 1 + ("filter" in more)
    # both know each other's rows
    before = (tmp_path / "beam/manifest.json").stat().st_mtime_ns
    assert prepare(config, tmp_path / "beam") == beam.prepare(config, str(tmp_path / "beam"), "none", []) == local
    assert (tmp_path / "beam/manifest.json").stat().st_mtime_ns == before
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@needs_beam
@ignores
def test_a_folder_that_cannot_be_moved(tmp_path, small_units, sources, monkeypatch):
    """What an object store gets, here in a local folder: the manifest is written last, and other rows are refused."""
    tokenizer = TokenizerConfig(path=str(tmp_path / "local/tokenizer"))
    prepare(config_of(*sources), tmp_path / "local", progress=False)
    config = config_of(*sources)
    config.tokenizer = tokenizer
    prepare(config, tmp_path / "second", progress=False)
    corpora = [beam.find_corpus(number, str(source)) for number, source in enumerate(sources)]
    asked = beam.options_of(config)
    known = {
        "format": beam.FORMAT,
        "fingerprint": beam.fingerprint_of(asked, beam.contents_of(config, corpora)),
        "options": asked,
    }
    written, upload = [], beam.store.upload
    monkeypatch.setattr(beam.store, "upload", lambda source, path: (written.append(path), upload(source, path)))

    def run(build):
        beam._run(build, "DirectRunner", [])

    folder = str(tmp_path / "remote")
    beam._prepare_remote(config, corpora, folder, known, run, False)
    (tmp_path / "remote/work").rmdir()  # object stores have no folders
    equal_folders(tmp_path / "second", tmp_path / "remote")
    assert written[-1] == f"{folder}/manifest.json"
    written.clear()
    beam._prepare_remote(config, corpora, folder, known, run, False)
    assert written == []
    with pytest.raises(ConfigError, match="holds other rows"):
        beam._prepare_remote(config, corpora, folder, known | {"fingerprint": "other"}, run, False)


@needs_beam
@ignores
def test_mistakes_are_told(tmp_path, sources, capsys):
    _, one = sources
    train_tokenizer(["some words of text"], 200)[0].save(tmp_path / "tokenizer")
    for bad, match in [
        (config_of(one, collocations=100), "config.data.collocations = 100: is not served with --beam"),
        (config_of(one, duplicates="exact"), "config.data.duplicates = 'exact': is not served with --beam"),
        (config_of("builtin:pydoc"), "lies on this machine only"),
        (config_of(write_text(tmp_path / "same.jsonl", 3, 5, bad=one.read_text()), id_field="id"), "two documents are"),
        (config_of(write_text(tmp_path / "none.jsonl", 3, 0, bad="no\n")), "not valid JSON; and so in all 1 records"),
        (
            config_of(one, holdout=1 - 1e-12),
            "config.data.holdout = .*: all 30 documents of .* are held out for evaluation",
        ),
    ]:
        bad.tokenizer = TokenizerConfig(path=str(tmp_path / "tokenizer"))
        with pytest.raises(ConfigError, match=match):
            beam.prepare(bad, str(tmp_path / "rows"), "DirectRunner", [], progress=False)
    with pytest.raises(ConfigError, match=r"cannot be used: .*NoSuchRunner"):
        beam.prepare(config_of(one), str(tmp_path / "rows"), "NoSuchRunner", [], progress=False)
    bad = tmp_path / "bad.jsonl.gz"
    bad.write_bytes(gzip.compress(one.read_bytes())[:-200])
    with pytest.raises(ConfigError, match=r"a worker says: config.data.sources = .*bad.jsonl.gz': cannot be read"):
        beam.prepare(config_of(bad), str(tmp_path / "rows"), "DirectRunner", [], progress=False)


@needs_beam
@ignores
def test_another_failure(tmp_path, sources, monkeypatch):
    monkeypatch.setattr(beam, "sample_unit", lambda task: 1 / 0)
    with pytest.raises(RunError, match="the pipeline failed: division by zero"):
        beam.prepare(config_of(sources[1]), str(tmp_path / "rows"), "DirectRunner", [], progress=False)
    assert not (tmp_path / "rows").exists()


@needs_beam
@ignores
def test_the_command_line(tmp_path, sources, capsys):
    flags = ["--config=configs/tiny.py", f"--config.data.sources={sources[1]}", "--config.tokenizer.vocab_size=200"]
    assert main([*flags, f"--workdir={tmp_path / 'run'}", "--beam", "--", "--job_name=rows"]) == 0
    assert "rows of 64" in capsys.readouterr().out


def test_without_beam(tmp_path, capsys, monkeypatch):
    flags = ["--config=configs/tiny.py", f"--workdir={tmp_path}"]
    assert main([*flags, "--runner=DirectRunner"]) == 2 and main([*flags, "--", "--project=p"]) == 2
    assert "go with --beam" in capsys.readouterr().err
    assert main([*flags, "--config.data.rows=gs://bucket/rows"]) == 2
    assert "only --beam writes elsewhere" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ConfigError, match=r"mlm-jax\[beam\]"):
        beam.prepare(config_of("x"), str(tmp_path / "rows"), "DirectRunner", [])


def test_samples_of_samples_are_the_sample():
    """Whatever is merged in whatever order: what one reservoir keeps that saw all, by the rule of `sampling`."""
    draw = random.Random(0)
    chunks = [(value, draw.randint(1, 60), f"t{value}") for value in draw.sample(range(1000), 80)]
    for room in (1, 50, 300, 10_000):
        whole = Reservoir(room)
        for chunk in chunks:
            whole.add(*chunk)
        parts_of = [chunks[i : i + 7] for i in range(0, len(chunks), 7)]
        drawn = [json.dumps([[EVERY_HASH, some], [EVERY_HASH, []]]).encode() for some in parts_of]
        while len(drawn) > 1:
            draw.shuffle(drawn)
            drawn = [merge_drawn(drawn[:3], room), *drawn[3:]]
        (below, kept), held_out = json.loads(drawn[0])
        assert held_out == [EVERY_HASH, []]
        assert (below, [tuple(chunk) for chunk in kept]) == (whole.below, whole.chunks()) and kept
