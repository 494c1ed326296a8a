"""`bench`: figures that agree with each other, on rows that are generated or a run's own."""

import contextlib
import dataclasses
import io
import json
import random

import numpy as np
import pytest
from test_train import SMALL

from mlm_jax import config as config_module
from mlm_jax import data
from mlm_jax.cli import bench
from mlm_jax.config import Config, ConfigError, DataConfig, ModelConfig, TokenizerConfig
from mlm_jax.prepare import prepare

STEPS = 4


def command(workdir, *more):
    return ["--config=configs/tiny.py", f"--workdir={workdir}", *SMALL, *more]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """What `--json` prints, in a folder without rows."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        workdir = tmp_path_factory.mktemp("bench") / "run"
        # without accumulation and dropout it compiles in half the time
        simple = ("--config.accumulation=1", "--config.model.dropout=0", f"--steps={STEPS}", "--json")
        assert bench.main(command(workdir, *simple)) == 0
    assert not workdir.exists()  # it leaves nothing behind
    return json.loads(printed.getvalue())


def test_figures_agree(result):
    assert result["rows"] == "generated" and result["devices"] == 8 and result["steps"] == STEPS
    assert result["tokens_per_step"] == result["places_per_step"] == 16 * 32
    assert result["tokens_per_second"] == pytest.approx(512 / result["step_seconds"])
    assert 0 < result["step_seconds_p10"] <= result["step_seconds"] <= result["step_seconds_p90"]
    assert result["mask_share"] == pytest.approx(result["mask_seconds"] / result["step_seconds"])
    assert 0 < result["mask_share"] < 1
    ratio = result["input_tokens_per_second"] / result["tokens_per_second"]
    assert result["input_times_step"] == pytest.approx(ratio) and ratio > 0
    assert result["lower_seconds"] > 0 and result["compile_seconds"] > 0
    assert result["mfu"] is None and result["memory_peak"] is None  # of a CPU neither is known
    assert result["memory_state"] > 3 * 4 * result["parameters"]  # float32 weights and two moments, on every device


def test_flops_and_parameters_by_hand(result):
    # rows of 32, width 16, hidden 32, 8 slots of 0.15 x 32 + 1 = 5.8 rounded up, 60 ids rounded up to 128
    whole = 4 * 32 * 16**2 + 4 * 32 * 16**2 + 4 * 32 * 32 * 16 + 4 * 32 * 16 * 32
    last = 4 * 32 * 16**2 + 4 * 8 * 16**2 + 4 * 8 * 32 * 16 + 4 * 8 * 16 * 32
    head = 2 * 8 * 16**2 + 2 * 8 * 16 * 128
    assert result["flops_per_step"] == 3 * 16 * (whole + last + head)
    assert result["flops_per_place"] == 3 * (whole + last + head) / 32
    assert result["flops_per_second"] == pytest.approx(result["flops_per_step"] / result["step_seconds"])
    embeddings = (128 + 64 + 2) * 16 + 2 * 16
    layer = 4 * (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 4 * 16
    assert result["parameters"] == embeddings + 2 * layer + (16 * 16 + 16 + 2 * 16 + 128)


def test_what_a_person_reads(result):
    shown = bench.show({**result, "mfu": 0.415, "memory_peak": 3 * 2**29})
    lines = dict(line.split(None, 1) for line in shown.splitlines())
    names = "machine rows parameters compile step tokens FLOPs masks input memory"
    assert " ".join(lines) == names
    assert "MFU 41.5%" in lines["FLOPs"] and "at most 1.50 GiB held" in lines["memory"]
    assert "512 a step, 100.0% full" in lines["tokens"]
    shown = bench.show({**result, "memory_state": None, "memory_temporary": None})
    assert "MFU" not in shown and "memory" not in shown


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--steps=0"], "steps"),
        (["--stepz=3"], "stepz"),
        (["--config.batch_size=17"], "config.batch_size = 17"),
        (["3"], "unexpected '3'"),
        (["--config.tokenizer.path=missing.model"], "missing.model"),
    ],
)
def test_what_the_user_can_mend_is_one_message_and_code_two(tmp_path, flags, says, capfd):
    assert bench.main(command(tmp_path, *flags)) == 2
    error = capfd.readouterr().err
    assert says in error and error.startswith("mlm_jax: ") and "Traceback" not in error


def small_config(**changes) -> Config:
    return Config(
        batch_size=16,
        row_length=32,
        tokenizer=TokenizerConfig(vocab_size=60),
        model=ModelConfig(layers=2, width=16, heads=2, hidden=32, max_positions=32),
        **changes,
    )


@pytest.mark.parametrize(
    "row_length, max_segments, starts", [(32, 8, [0]), (512, 32, [0, 128, 256, 384]), (512, 1, [0])]
)
def test_generated_rows_are_full(tmp_path, row_length, max_segments, starts):
    sources = DataConfig(sources=("a", "b"), weights=(0.75, 0.25), max_segments=max_segments)
    config = dataclasses.replace(small_config(data=sources), row_length=row_length)
    config.model.max_positions = row_length
    with bench.rows_of(config, tmp_path) as rows:
        config_module.check(config, 1, 1, rows.manifest)
        with contextlib.closing(data.host_batches(rows.folder, rows.manifest, config)) as batches:
            batch = next(batches)
    assert not rows.folder.exists()
    assert batch.tokens.shape == (1, 16, row_length) and batch.segments.min() == 1
    assert batch.segments.max() == len(starts) and batch.firsts[0, 0].tolist()[: len(starts)] == starts
    assert (batch.tokens[..., starts] == rows.vocabulary.cls).all()
    assert (batch.tokens[..., -1] == rows.vocabulary.sep).all()
    ids = np.delete(batch.tokens[0], [*starts, *(start - 1 for start in starts[1:]), -1], axis=1)
    assert ids.min() == 5 and ids.max() < 60
    assert (batch.row >= bench.LEAST_ROWS).sum() == 4  # a quarter of the second source
    assert batch.word_starts.mean() == pytest.approx(1 / bench.PIECES_PER_WORD, abs=0.1)


def test_frequencies_follow_zipf():
    ids = bench.zipf(np.random.default_rng(0), np.arange(100, 1100), (200_000,))
    # the share of the places up to n is log(1 + n) / log(1000)
    for n in (1, 9, 99):
        assert (ids < 100 + n).mean() == pytest.approx(np.log(1 + n) / np.log(1000), abs=0.005)


def test_a_runs_own_rows_are_used(tmp_path):
    rng = random.Random(0)
    words = ["cat", "dog", "sleeps", "barks", "well", "the"]
    text = tmp_path / "small.txt"
    text.write_text("\n\n".join(" ".join(rng.choices(words, k=80)) + "." for _ in range(60)))
    config = small_config(data=DataConfig(sources=(str(text),), pack_groups=2, holdout=0.1, workers=1))
    manifest = prepare(config, tmp_path / "run" / "rows")
    with bench.rows_of(config, tmp_path / "run") as rows:
        assert rows.folder == tmp_path / "run" / "rows" and rows.source == str(rows.folder)
        assert rows.manifest == manifest and rows.vocabulary.counts.tolist() == manifest["unigrams"]
    with pytest.raises(ConfigError, match="row_length"):
        bench.measured(dataclasses.replace(config, row_length=16), tmp_path / "run", 1)
