"""Spikes of the loss: what counts as one, rows that are left out, a run that goes back."""

import itertools
import json
import math
import random
import shutil

import jax
import numpy as np
import programs
import pytest
from test_config import changed
from test_data import config as data_config
from test_data import rows_of, take, ten, two  # noqa: F401  (fixtures)
from test_survive import run
from test_train import SMALL, command, fails_at, steps_of, text, untimed  # noqa: F401  (a fixture)

from mlm_jax import checkpoint, data, records, rewind, spikes, train
from mlm_jax.checkpoint import steps_in
from mlm_jax.cli import prepare
from mlm_jax.config import Config, ConfigError, RunError, WatchConfig, check
from mlm_jax.position import after
from mlm_jax.train import main

# ---- what counts as one ----


def found(losses, config, **more):
    detector = spikes.Detector(config)
    lines = [{"step": number, "train/loss": loss, **more} for number, loss in enumerate(losses, start=1)]
    return [spike for line in lines if (spike := detector.add(line))]


def test_a_spike_by_hand():
    """Of 1, 2 .. 8 the median is 4.5, the median distance from it 2: the spread is 2.9652, and 4.5 + 2 x it 10.43."""
    config = WatchConfig(spike=2.0, window=8, spike_steps=2)
    usual = list(range(1, 9))
    assert found([*usual, 10.4, 10.4], config) == found([*usual, 10.5, 3.0, 10.5], config) == []
    assert found(usual[1:] + [99.0], config) == []  # not a window yet
    (spike,) = found([*usual, 10.5, 99.0, 99.0, 3.0], config)  # one that goes on is told once
    assert spike == (10, 9, 99.0, 5.5, pytest.approx(2.9652)) and "high since step 9" in str(spike)  # 2 .. 8, 10.5
    assert found([*usual, 10.5, math.nan, None, 99.0], config)[0].first == 9
    assert found([1.0] * 8 + [1.0019] * 2, config) == []  # a spread is at least a thousandth of the median
    assert len(found([1.0] * 8 + [1.0021] * 2, config)) == 1
    assert found([*usual, 99.0, 99.0], WatchConfig(spike=0.0, window=8)) == []


def test_causal_steps_are_looked_at_by_themselves():
    detector = spikes.Detector(WatchConfig(spike=2.0, window=8, spike_steps=1))
    for number in range(1, 21):
        causal = {"train/causal/loss": 9.0} if number % 2 else {}
        assert not detector.add({"step": number, "train/loss": 9.0 + number / 99 if number % 2 else 2.0, **causal})
    assert detector.add({"step": 21, "train/loss": 9.0}) and not detector.add({"step": 22, "train/loss": 2.0})


@pytest.mark.parametrize("done", [3, 20, 25, 26, 27, 40])
def test_a_detector_goes_on_from_the_lines_on_the_disk(tmp_path, done):
    """Torn lines, those of another phase and steps later than the checkpoint are on the disk, too."""
    config = WatchConfig(spike=3.0, window=8, spike_steps=2)
    losses = np.random.default_rng(0).normal(4.0, 0.1, 60)
    losses[[24, 25, 26, 27, 50, 51]] += 2.0
    lines = [{"step": i, "train/loss": float(loss), "rows/place": 9 * i} for i, loss in enumerate(losses, start=1)]
    lines[30]["train/loss"] = None
    path = tmp_path / "metrics.jsonl"
    before = [{"step": -1, "train/loss": 77.0}, {"step": 0, "eval/x/loss": 1.0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in before + lines) + '{"step": 61, "tr')
    straight, again = spikes.Detector(config), spikes.Detector(config)
    spikes_found = [straight.add(line) for line in lines][done:]
    assert [spike.step for spike in spikes_found if spike] == [step for step in (26, 52) if step > done]
    for line in spikes.latest(path, config, 0, done):
        again.add(line)
    assert [again.add(line) for line in lines[done:]] == spikes_found


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"watch__spike": -1.0}, "config.watch.spike = -1.0: must be at least 0"),
        ({"watch__spike_steps": 40}, r"config.watch.window = 128: must be at least 4 times .* = 40"),
        ({"watch__action": "rewind", "watch__spike": 0.0}, "config.watch.action = 'rewind': never happens"),
        ({"watch__action": "stop"}, "must be one of warn, rewind"),
        ({"watch__action": "rewind", "watch__skip_steps": 2}, "config.watch.skip_steps = 2: must be at least"),
        ({"watch__action": "rewind", "checkpoint__every_steps": 50}, "config.checkpoint.keep = 2: must be at least 5"),
    ],
)
def test_contradictions(changes, says):
    with pytest.raises(ConfigError, match=says):
        check(changed(Config(), **changes), 8)
    check(changed(Config(), watch__action="rewind", checkpoint__every_steps=50, checkpoint__keep=5), 8)


# ---- rows that are left out ----

HOLES = ((5, 9), (12, 13), (30, 47))


@pytest.mark.parametrize("share", [data.WHOLE, data.Share(2, (1,))])
@pytest.mark.parametrize("place, batch_size, accumulation", [(0, 4, 1), (5, 4, 2), (3, 6, 1), (9, 2, 1), (28, 4, 2)])
def test_what_is_left_out_is_a_function_of_the_place(two, place, batch_size, accumulation, share):  # noqa: F811
    folder, manifest = two
    rows = [corpus["splits"]["train"]["rows"] for corpus in manifest["corpora"]]
    config = data_config(batch_size=batch_size, accumulation=accumulation)
    order = data.training_order(rows, config)
    # the oracle: numbers of all places, less those of the holes
    places = np.arange(300)
    for first, end in HOLES:
        places = places[(places < first) | (places >= end)]
    places = places[places >= place][: 15 * batch_size].reshape(15, accumulation, -1)
    wanted = [order[int(i)] for i in places.reshape(15, accumulation, share.blocks, -1)[:, :, share.mine[0]].ravel()]
    stream = data.Stream(holes=HOLES)
    batches = take(data.host_batches(folder, manifest, config, place, share, stream), 15)
    assert rows_of(batches) == [row for row, _ in wanted]
    assert np.concatenate([batch.visit.ravel() for batch in batches]).tolist() == [visit for _, visit in wanted]
    ends = itertools.accumulate([batch_size] * 15, lambda at, size: after(at, size, HOLES), initial=place)
    assert list(ends)[1:] == (places.reshape(15, -1)[:, -1] + 1).tolist()


def test_the_place_after_by_hand():
    assert [after(0, rows, HOLES) for rows in (0, 5, 6, 8, 9)] == [0, 5, 10, 12, 14]
    assert after(5, 0, HOLES) == 5 and after(5, 1, HOLES) == 10 and after(29, 2, HOLES) == 48 and after(7, 3) == 10


def a_line(step, to, *rows):
    return {"step": step, "to": to, "rows": [list(hole) for hole in rows]}


def test_holes_of_a_record_by_hand():
    """The second one lies around the first; the third touches it, and another stream has its own."""
    record = [a_line(9, 4, (0, 20, 30)), a_line(9, 4, (0, 10, 40), (1, 0, 7)), a_line(12, 8, (0, 40, 50), (2, 1, 2))]
    assert spikes.holes_of(record, 2) == (((10, 50),), ((0, 7),)) and spikes.holes_of([], 1) == ((),)


def test_which_places_steps_have_read_by_hand():
    lines = [{"step": step, "rows/place": 100 + 10 * step, "rows/stream": 0} for step in (5, 6, 7)]
    lines += [{"step": step, "rows/place": 16 * step, "rows/stream": 1} for step in (8, 9)]
    assert spikes.new_holes(lines, [140, 77], 4) == [[0, 140, 170], [1, 77, 144]]
    assert spikes.new_holes(lines, [140, 77], 6) == [[0, 160, 170], [1, 77, 144]]
    assert spikes.new_holes(lines, [140, 77], 8) == [[1, 128, 144]]
    assert spikes.new_holes([{"step": 5}, lines[2]], [140], 6) == [[0, 140, 170]]  # step 5 does not say: it counts


def test_which_checkpoints_a_rewind_leaves_behind_by_hand():
    record = [a_line(9, 4), a_line(11, 4), a_line(20, 16)]
    assert [step for step in (4, 8, 16, 20) if spikes.left_behind(record, step, [])] == [8, 16, 20]
    assert [step for step in (4, 8, 16, 20) if spikes.left_behind(record, step, record[:1])] == [8, 16, 20]
    assert [step for step in (4, 8, 16, 20) if spikes.left_behind(record, step, record[:2])] == [20]
    assert not spikes.left_behind(record, 99, record)


def test_the_file_and_the_checkpoint_agree(tmp_path):
    record = [a_line(9, 4, (0, 1, 2)), a_line(11, 4)]
    assert spikes.agreed(tmp_path, []) == [] and not (tmp_path / "skipped.jsonl").exists()
    assert spikes.agreed(tmp_path, record) == spikes.read_record(tmp_path) == record  # of a branch
    with open(tmp_path / "skipped.jsonl", "a") as file:
        file.write('{"step": 30, "t')  # torn: the run did not go back
    assert spikes.agreed(tmp_path, record[:1]) == record  # an older checkpoint
    with pytest.raises(ConfigError, match=r"skipped.jsonl'.*tells of other rows than the checkpoint"):
        spikes.agreed(tmp_path, [a_line(8, 4)])
    (tmp_path / "skipped.jsonl").write_text('{"step": 9\n')
    with pytest.raises(ConfigError, match="line 1 is no JSON"):
        spikes.agreed(tmp_path, record)


# ---- a run that goes back ----

STEPS, POISONED = 24, range(14 * 16, 16 * 16)  # all rows of steps 15 and 16, of 16 rows each
SPIKE = dict(spike=3.0, window=8, spike_steps=2, skip_steps=3)
RUN = [
    *(f"--config.optimizer.{key}" for key in ("learning_rate=0.03", "warmup=0", "schedule=constant")),
    *(f"--config.{key}" for key in ("model.initializer_range=0.1", "model.dropout=0.0", "accumulation=1")),
    *(f"--config.{key}" for key in (f"steps={STEPS}", "data.holdout=0", "model.layers=1")),
    *(f"--config.checkpoint.{key}" for key in ("every_steps=6", "keep=9")),
    *(f"--config.watch.{key}={value}" for key, value in SPIKE.items()),
]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    with programs.shared():
        yield


@pytest.fixture(scope="module", autouse=True)
def poisoned():
    """No page is drawn, and the tokens of the rows at certain places, at that visit, are ids by chance."""
    batch, order, chosen = data.Shards.batch, data.training_order, set()

    def training_order(rows, config, stream=data.FIRST):
        found = order(rows, config, stream)
        chosen.update(found[place] for place in POISONED)
        return found

    def scrambled(self, numbers):
        found = batch(self, numbers)
        for at in np.ndindex(*numbers.shape[:-1]) if numbers.ndim == 3 else ():  # of training
            if tuple(numbers[at].tolist()) in chosen:
                words = found.tokens[at] > 4
                found.tokens[at][words] = np.random.default_rng(numbers[at]).integers(5, 30, words.sum())
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train, "write_report", lambda workdir, progress: None)
        patched.setattr(data, "training_order", training_order)
        patched.setattr(data.Shards, "batch", scrambled)
        yield


@pytest.fixture(scope="module")
def rewound(text, tmp_path_factory):  # noqa: F811
    workdir = tmp_path_factory.mktemp("runs") / "rewound"
    assert main(command(text, workdir, *RUN, "--config.watch.action=rewind")) == 0
    return workdir


def f(x):
    """murmur3's 32-bit finaliser, of a Python integer."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ x >> shift) * factor) & 0xFFFFFFFF
    return x ^ x >> 16


def test_a_run_goes_back_and_reads_on_without_the_rows(rewound):
    (line,) = spikes.read_record(rewound)
    assert (line["step"], line["first"], line["to"], line["rows"]) == (16, 15, 12, [[0, 13 * 16, 16 * 16]])
    assert line["loss"] > 2 * line["usual"]
    assert steps_in(rewound) == [6, 12, 18, 24] and not (rewound / "bad").exists()  # it was found in time
    starts = [json.loads(start) for start in (rewound / "starts.jsonl").read_text().splitlines()]
    assert [(start["step"], start.get("rewound_from")) for start in starts] == [(0, None), (12, 16)]
    steps = steps_of(rewound)
    assert list(steps) == list(range(1, STEPS + 1))
    manifest = json.loads((rewound / "rows/manifest.json").read_text())
    (rows,) = (corpus["splits"]["train"]["rows"] for corpus in manifest["corpora"])
    order, left_out = data.training_order([rows], Config(seed=0)), range(*line["rows"][0][1:])
    places = [place for place in range(600) if place not in left_out]
    for number, one in steps.items():
        read = places[16 * (number - 1) : 16 * number]
        assert one["rows/place"] == read[-1] + 1 and one["epoch"] == pytest.approx((read[-1] + 1) / rows)
        assert (
            one["rows/hash"]
            == sum(f(f(row + 1) + visit & 0xFFFFFFFF) for row, visit in map(order.__getitem__, read)) % 2**32
        )


def test_only_warned_it_ends_worse_and_after_any_crash_with_the_same_bits(
    rewound,
    text,  # noqa: F811
    tmp_path,
    monkeypatch,
    capfd,
):
    """From step 12 without the record; then with it, as a crash before the later checkpoints went away leaves it."""
    workdir = tmp_path / "run"
    shutil.copytree(rewound, workdir)
    for step in (18, 24):
        shutil.rmtree(workdir / "checkpoints" / str(step))
    (workdir / "skipped.jsonl").rename(tmp_path / "record")
    assert main(command(text, workdir, *RUN)) == 0
    said = capfd.readouterr().err
    assert "warning: step 16: the loss is " in said and said.count("warning: step") == 1
    manifest = json.loads((workdir / "rows/manifest.json").read_text())
    (first, _), (last, _) = data.rows_at(manifest, Config(), data.FIRST, [224, 255])
    named = f"of rows {first} ... {last}, places 224 to 255 of the order; preview --first_place=224 --rows=32 shows"
    assert named in said
    ends = [np.mean([steps_of(folder)[step]["train/loss"] for step in range(20, 25)]) for folder in (rewound, workdir)]
    assert ends[0] < ends[1]

    (tmp_path / "record").rename(workdir / "skipped.jsonl")
    argv = command(text, workdir, *RUN, "--config.watch.action=rewind")
    fails_at(22, argv, monkeypatch)
    said = capfd.readouterr().err
    assert "checkpoints/24: it was saved before the run went back from step 16 to step 12; moved to" in said
    assert "left out    48 rows around 1 spike(s) of the loss" in said and "goes on after step 12" in said
    assert main(argv) == 0
    assert "goes on after step 18" in capfd.readouterr().err
    assert sorted(path.name for path in (workdir / "bad").iterdir()) == ["18", "24"]
    assert list(map(untimed, steps_of(workdir).values())) == list(map(untimed, steps_of(rewound).values()))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for part in ("params", "optimizer"):
        states = [checkpoint.read_part(folder, STEPS, part, here) for folder in (rewound, workdir)]
        jax.tree.map(np.testing.assert_array_equal, *states)


def test_what_a_run_cannot_go_back_from(rewound, text, tmp_path):  # noqa: F811
    spike = spikes.Spike(16, 15, 9.0, 1.0, 0.1)
    config = changed(
        Config(),
        watch__most_rewinds=1,
        watch__skip_steps=3,
        checkpoint__every_steps=4,
        data__rows=str(rewound / "rows"),
    )
    with pytest.raises(RunError, match=r"went back 1 times, as often as config.watch.most_rewinds allows"):
        rewind.go_back(config, rewound, spike)
    with pytest.raises(RunError, match="no checkpoint of this run from before it"):
        rewind.go_back(config, tmp_path, spike)  # steps 1 to 8 are farther back than the oldest might be
    soon = spikes.Spike(8, 7, 9.0, 1.0, 0.1)
    with pytest.raises(RunError, match="no checkpoint of this run"):
        rewind.go_back(changed(config, branch_from="runs/other"), tmp_path, soon)
    (tmp_path / "metrics.jsonl").write_text('{"step": 8, "train/loss": 9.0, "rows/place": 64}\n')
    assert rewind.go_back(changed(config, branch_from=""), tmp_path, soon)["rows"] == [[0, 0, 64]]
    (line,) = spikes.read_record(tmp_path)
    assert line["to"] == 0
    with pytest.raises(ConfigError, match="tells of rows in another order"):
        rewind.check_record([line], Config(seed=1), tmp_path, {"fingerprint": line["of"]["data"]})


@pytest.mark.processes
def test_two_processes_go_back_as_one_does(tmp_path):
    """Of rows on the disk whose tokens, where steps 15 and 16 read them, are ids by chance."""
    rng = random.Random(1)
    words = ["one", "two", "three", "four", "five", "six"]
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(rng.choices(words, k=40)) for _ in range(500)))
    argv = ["--config=configs/tiny.py", f"--config.data.sources={tmp_path}/text.txt", f"--workdir={tmp_path}", *SMALL]
    assert prepare.main(argv) == 0
    rows = tmp_path / "rows"
    manifest = json.loads((rows / "manifest.json").read_text())
    shards, layout = data.Shards(rows, manifest, "train"), records.layout_of(manifest)
    chosen = {row for row, _ in data.rows_at(manifest, Config(), data.FIRST, range(14 * 16, 16 * 16))}
    first = 0
    for path, count in shards.files:
        numbers = np.arange(first, first + count)
        first += count
        found = records.decode_rows(layout, shards.read(numbers))
        again = []
        for tokens, record, row in zip(found["tokens"], shards.read(numbers), numbers.tolist()):
            before = tokens.astype(layout.dtype).tobytes()
            assert record.count(before) == 1
            if row in chosen:
                tokens = np.where(tokens > 4, np.random.default_rng(row).integers(5, 25, tokens.size), tokens)
            again.append(record.replace(before, tokens.astype(layout.dtype).tobytes()))
        path.unlink()
        records.write_shard(path, again)
    asked = [f"--config.watch.{key}={value}" for key, value in SPIKE.items()] + ["--config.watch.action=rewind"]
    asked += ["--config.optimizer.learning_rate=0.03", "--config.optimizer.warmup=0"]
    for processes in (0, 2):
        code, said = run(rows, tmp_path / str(processes), *asked, processes=processes)
        assert code == 0 and "rewind      step 16: the loss is" in said, said
    folders = [tmp_path / str(processes) for processes in (0, 2)]
    for folder in folders:
        assert [line["rows"] for line in spikes.read_record(folder)] == [[[0, 13 * 16, 16 * 16]]]
    hashes = [[(line["rows/hash"], line["mask/hash"]) for line in steps_of(folder).values()] for folder in folders]
    assert hashes[0] == hashes[1] and len(hashes[0]) == STEPS
