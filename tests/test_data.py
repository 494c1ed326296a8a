import dataclasses
import itertools
import json
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mlm_jax import data, records
from mlm_jax.config import Config, ConfigError, DataConfig, EvaluateConfig

ROOT = Path(__file__).parents[1]
T, SEGMENTS, PAD = 8, 2, 0


def config(batch_size=4, accumulation=1, seed=0, weights=(), evaluate_rows=0) -> Config:
    return Config(
        seed=seed,
        batch_size=batch_size,
        accumulation=accumulation,
        row_length=T,
        data=DataConfig(weights=weights),
        evaluate=EvaluateConfig(rows=evaluate_rows),
    )


def record(layout: records.Layout, identity: int) -> bytes:
    """CLS=2, the row's own identity as its only token, SEP=3; then a second segment of two tokens in odd rows."""
    tokens = [2, 10 + identity, 3] + ([2, 3] if identity % 2 else [])
    firsts = [0, 3] if identity % 2 else [0]
    return records.encode_row(layout, tokens, [0, 1, 0, 0, 0][: len(tokens)], firsts, [-1] * len(firsts), PAD)


def write(folder: Path, corpora: list[dict[str, list[int]]]) -> dict:
    """Writes shards of so many rows per corpus and split; tokens carry the global row number within the split."""
    layout = records.Layout(T, SEGMENTS, "uint16")
    manifest = {
        "row_length": T,
        "max_segments": SEGMENTS,
        "dtype": "uint16",
        "tokenizer": {"pad": PAD, "vocab_size": 1000},
        "corpora": [],
    }
    number = {"train": itertools.count(), "eval": itertools.count()}
    for i, corpus in enumerate(corpora):
        splits = {}
        for split in ("train", "eval"):
            shards = []
            for j, rows in enumerate(corpus.get(split, [])):
                file = f"{split}-{i}-{j}.arrayrecord"
                content = [record(layout, next(number[split])) for _ in range(rows)]
                records.write_shard(folder / file, content)
                shards.append({"file": file, "rows": rows, "hash": ""})
            splits[split] = {"rows": sum(corpus.get(split, [])), "tokens": 0, "shards": shards}
        manifest["corpora"].append({"source": f"corpus {i}", "splits": splits})
    return manifest


def take(batches, count):
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


def rows_of(batches):
    return np.concatenate([batch.row.reshape(-1) for batch in batches]).tolist()


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ten")
    return folder, write(folder, [{"train": [4, 1, 5], "eval": [3, 2]}])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Corpora of 6 and 15 rows: proportional mixing takes 2 of the first for every 5 of the second."""
    folder = tmp_path_factory.mktemp("two")
    return folder, write(folder, [{"train": [6], "eval": [3]}, {"train": [7, 8], "eval": [2, 3]}])


def test_content_follows_the_row_number(ten):
    folder, manifest = ten
    for batch in take(data.host_batches(folder, manifest, config(batch_size=5)), 4):
        assert batch.tokens.shape == (1, 5, T)
        np.testing.assert_array_equal(batch.tokens[..., 1], 10 + batch.row)
        np.testing.assert_array_equal(batch.weight, np.ones((1, 5)))
        for row, segments, positions, firsts in zip(
            batch.row[0], batch.segments[0], batch.positions[0], batch.firsts[0]
        ):
            assert segments.tolist() == ([1, 1, 1, 2, 2, 0, 0, 0] if row % 2 else [1, 1, 1, 0, 0, 0, 0, 0])
            assert positions.tolist() == ([0, 1, 2, 0, 1, 0, 0, 0] if row % 2 else [0, 1, 2, 0, 0, 0, 0, 0])
            assert firsts.tolist() == ([0, 3] if row % 2 else [0, 0])
        types = {name: leaf.dtype.name for name, leaf in dataclasses.asdict(batch).items()}
        assert types["flags"] == "uint8" and types["weight"] == "float32"
        assert {types[name] for name in types if name not in ("flags", "weight")} == {"int32"}


def test_every_epoch_is_a_new_permutation(ten):
    folder, manifest = ten
    batches = take(data.host_batches(folder, manifest, config(batch_size=5)), 8)
    epochs = np.array(rows_of(batches)).reshape(4, 10)
    for epoch in epochs:
        assert sorted(epoch) == list(range(10))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    visits = np.concatenate([batch.visit.reshape(-1) for batch in batches]).reshape(4, 10)
    assert (visits == np.arange(4)[:, None]).all()


def test_seeds_give_unrelated_orders(ten):
    folder, manifest = ten
    orders = {}
    for seed in (0, 1):
        rows = rows_of(take(data.host_batches(folder, manifest, config(batch_size=10, seed=seed)), 3))
        orders[seed] = [tuple(rows[start : start + 10]) for start in (0, 10, 20)]
    assert orders[0][0] != orders[1][0]
    assert not set(orders[0]) & set(orders[1])  # nor is one seed the other, an epoch later


def test_a_batch_may_straddle_two_epochs_and_nothing_is_dropped(ten):
    folder, manifest = ten
    batches = take(data.host_batches(folder, manifest, config(batch_size=4)), 5)
    assert batches[2].visit.tolist() == [[0, 0, 1, 1]]
    assert sorted(rows_of(batches)) == sorted(list(range(10)) * 2)


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_accumulation_cuts_the_same_rows_in_the_same_order(ten, accumulation):
    folder, manifest = ten
    plain = take(data.host_batches(folder, manifest, config(batch_size=8)), 5)
    cut = take(data.host_batches(folder, manifest, config(batch_size=8, accumulation=accumulation)), 5)
    assert cut[0].tokens.shape == (accumulation, 8 // accumulation, T)
    assert rows_of(cut) == rows_of(plain)


@pytest.mark.parametrize("rows_read", [0, 3, 4, 6, 10, 24, 39])
def test_resume_at_any_row_goes_on_as_if_never_stopped(two, rows_read):
    folder, manifest = two
    settings = config(batch_size=1, weights=(0.5, 0.5))
    straight = take(data.host_batches(folder, manifest, settings), 60)
    resumed = take(data.host_batches(folder, manifest, dataclasses.replace(settings, batch_size=3), rows_read), 7)
    assert rows_of(resumed) == rows_of(straight)[rows_read : rows_read + 21]
    visits = [int(batch.visit[0, 0]) for batch in straight]
    assert [int(v) for batch in resumed for v in batch.visit[0]] == visits[rows_read : rows_read + 21]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_hold_disjoint_parts_of_the_same_batches(two, processes):
    folder, manifest = two
    settings = config(batch_size=16, accumulation=2)
    whole = take(data.host_batches(folder, manifest, settings), 4)
    shares = [data.Share(processes, (i,)) for i in range(processes)]
    parts = [take(data.host_batches(folder, manifest, settings, share=share), 4) for share in shares]
    for step, batch in enumerate(whole):
        together = jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *(part[step] for part in parts))
        jax.tree.map(np.testing.assert_array_equal, together, batch)


def test_scattered_devices_get_their_rows(ten):
    """A process whose devices do not hold neighbouring rows, as on a grid of hosts of 2 x 2 chips."""
    folder, manifest = ten
    settings = config(batch_size=16, accumulation=2)
    whole = take(data.host_batches(folder, manifest, settings), 2)
    scattered = take(data.host_batches(folder, manifest, settings, share=data.Share(4, (0, 2))), 2)
    for batch, part in zip(whole, scattered):
        np.testing.assert_array_equal(part.row, batch.row[:, [0, 1, 4, 5]])


def test_other_processes_after_a_stop(tmp_path):
    """64 rows: 24 read by four processes, the rest of the epoch by two: every row once."""
    manifest = write(tmp_path, [{"train": [40, 24]}])
    settings = config(batch_size=8)
    read = []
    for processes, rows_read, steps in ((4, 0, 3), (2, 24, 5)):
        for i in range(processes):
            share = data.Share(processes, (i,))
            read += rows_of(take(data.host_batches(tmp_path, manifest, settings, rows_read, share), steps))
    assert sorted(read) == list(range(64))


def test_share_is_read_off_the_sharding():
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), (jax.sharding.AxisType.Auto,) * 3)
    sharding = NamedSharding(mesh, P(None, ("data", "fsdp")))
    assert data.Share.of(sharding, (3, 8), axis=1) == data.Share(1, (0,))

    sharding = NamedSharding(mesh, P(("data", "fsdp")))
    assert data.Share.of(sharding, (8,), axis=0) == data.Share(1, (0,))


@pytest.mark.parametrize(
    "spans, share",
    [
        ([(0, 16)], data.Share(1, (0,))),
        ([(4, 6), (6, 8)], data.Share(4, (1,))),
        ([(4, 8), (4, 8)], data.Share(4, (1,))),  # two devices apart along the tensor axis alone
        ([(0, 2), (2, 4), (8, 10), (10, 12)], data.Share(4, (0, 2))),
        ([(2, 4), (4, 6)], data.Share(8, (1, 2))),
    ],
)
def test_share_in_blocks_as_large_as_can_be(spans, share):
    assert data.Share.holding(spans, 16) == share


def test_mixture_keeps_visits_per_corpus(two):
    folder, manifest = two
    batches = take(data.host_batches(folder, manifest, config(batch_size=7)), 9)
    rows = np.array(rows_of(batches))
    visits = np.concatenate([batch.visit.reshape(-1) for batch in batches])
    # in proportion to their rows both corpora end an epoch together, every 21 rows
    for epoch in range(3):
        assert sorted(rows[21 * epoch : 21 * epoch + 21]) == list(range(21))
        assert (visits[21 * epoch : 21 * epoch + 21] == epoch).all()
    for batch in batches:
        assert (batch.row < 6).sum() == 2


def test_weights_are_met_exactly(two):
    folder, manifest = two
    batches = take(data.host_batches(folder, manifest, config(batch_size=10, weights=(0.7, 0.3))), 6)
    seen = {}
    for batch in batches:
        assert (batch.row < 6).sum() == 7
        for row, visit in zip(batch.row[0].tolist(), batch.visit[0].tolist()):
            assert visit == seen.get(row, 0)
            seen[row] = visit + 1
    assert [seen[row] for row in range(6)] == [7] * 6  # 42 rows of the first corpus: seven epochs


@pytest.mark.parametrize(
    "exponent, shares",
    [
        (1.0, [8000, 1000, 1]),
        (0.0, [333_333] * 3),
        # 8000 ** (1/3), 1000 ** (1/3), 1: 20, 10, 1
        (1 / 3, [645_161, 322_581, 32_258]),
        # XLM-R: 8000 ** 0.3 = 14.823, 1000 ** 0.3 = 7.943, 1
        (0.3, [623_712, 334_213, 42_076]),
    ],
)
def test_an_exponent_evens_out_the_corpora(exponent, shares):
    settings = dataclasses.replace(config(), data=DataConfig(exponent=exponent))
    assert data.mixture_shares([8000, 1000, 1], settings) == pytest.approx(shares, abs=25)


def test_rows_of_a_mixture_by_an_exponent():
    settings = dataclasses.replace(config(), data=DataConfig(exponent=0.5))
    order = data.training_order([900, 100], settings)  # 30 to 10
    rows = np.array([order[place][0] for place in range(400)])
    assert (rows < 900).sum() == 300


def test_mixture_takes_each_place_once():
    shares = (3, 1, 7)
    mixture = data.Mixture(shares, [10**9] * 3)
    places = [mixture[index] for index in range(11 * 50)]
    for stream, share in enumerate(shares):
        assert [place for which, place in places if which == stream] == list(range(50 * share))


def test_evaluation_reads_every_row_once_in_order(two):
    folder, manifest = two
    settings = config(batch_size=8, accumulation=2)
    batches = list(data.host_evaluation_batches(folder, manifest, settings, corpus=1))
    assert [batch.tokens.shape for batch in batches] == [(4, T), (4, T)]
    assert rows_of(batches) == [3, 4, 5, 6, 7, -1, -1, -1]
    last = batches[-1]
    assert last.tokens[0, 1] == 10 + 7
    assert last.weight.tolist() == [1, 0, 0, 0]
    assert not last.segments[1:].any() and (last.tokens[1:] == PAD).all() and not last.visit.any()
    assert (last.pair_labels[1:] == -1).all() and not last.firsts[1:].any()


def test_evaluation_is_bounded_and_its_numbers_do_not_move(two):
    folder, manifest = two
    settings = config(batch_size=2, evaluate_rows=3)
    read = [rows_of(data.host_evaluation_batches(folder, manifest, settings, corpus)) for corpus in (0, 1)]
    assert read == [[0, 1, 2, -1], [3, 4, 5, -1]]


def test_evaluation_gives_every_process_as_many_batches(two):
    folder, manifest = two
    settings = config(batch_size=4)
    shares = [data.Share(4, (i,)) for i in range(4)]
    parts = [list(data.host_evaluation_batches(folder, manifest, settings, 1, share)) for share in shares]
    assert [rows_of(part) for part in parts] == [[3, 7], [4, -1], [5, -1], [6, -1]]


def test_no_host_runs_out_of_data_before_the_others(tmp_path):
    """29 rows are 10, 10 and 9 for three: evaluation fills the last batch up, training reads on in the next epoch."""
    manifest = write(tmp_path, [{"train": [29], "eval": [29]}])
    settings, shares = config(batch_size=3), [data.Share(3, (i,)) for i in range(3)]
    evaluated = [list(data.host_evaluation_batches(tmp_path, manifest, settings, 0, share)) for share in shares]
    assert [len(batches) for batches in evaluated] == [10, 10, 10]
    assert [float(batches[-1].weight[0]) for batches in evaluated] == [1, 1, 0]
    trained = [take(data.host_batches(tmp_path, manifest, settings, share=share), 20) for share in shares]
    read = np.ravel([rows_of(batches) for batches in trained], order="F")
    assert sorted(read[:29]) == sorted(read[29:58]) == list(range(29))


def test_a_corpus_without_held_out_rows(tmp_path):
    manifest = write(tmp_path, [{"train": [4]}])
    assert list(data.host_evaluation_batches(tmp_path, manifest, config(), 0)) == []


def test_global_arrays(ten):
    folder, manifest = ten
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), (jax.sharding.AxisType.Auto,) * 3)
    settings = config(batch_size=8, accumulation=2)
    sharding = NamedSharding(mesh, P(None, ("data", "fsdp")))
    batches = take(data.train_batches(folder, manifest, settings, 5, sharding), 3)
    expected = take(data.host_batches(folder, manifest, settings, 5), 3)
    for batch, host in zip(batches, expected):
        assert batch.tokens.shape == (2, 4, T) and batch.row.shape == (2, 4)
        assert batch.tokens.sharding.is_equivalent_to(sharding, 3)
        assert batch.tokens.addressable_shards[0].data.shape == (2, 1, T)
        jax.tree.map(np.testing.assert_array_equal, batch, host)
    sharding = NamedSharding(mesh, P(("data", "fsdp")))
    (batch, _) = data.evaluation_batches(folder, manifest, settings, 0, sharding)
    assert batch.tokens.shape == (4, T) and batch.tokens.addressable_shards[0].data.shape == (1, T)
    assert batch.row.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", ["missing", "truncated", "rows", "sum"])
def test_wrong_shards_are_refused_before_training(tmp_path, damage):
    manifest = write(tmp_path, [{"train": [4, 3]}])
    split = manifest["corpora"][0]["splits"]["train"]
    path = tmp_path / split["shards"][1]["file"]
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "rows":
        split["shards"][1]["rows"], split["rows"] = 5, 9
    else:
        split["rows"] = 8
    with pytest.raises(ConfigError, match="8 rows, its shards 7" if damage == "sum" else path.name):
        data.host_batches(tmp_path, manifest, config())


def test_a_damaged_record_names_its_file(tmp_path):
    layout = records.Layout(T, SEGMENTS, "uint16")
    manifest = write(tmp_path, [{"train": [200]}])
    path = tmp_path / manifest["corpora"][0]["splits"]["train"]["shards"][0]["file"]
    content = path.read_bytes()
    at = content.index(record(layout, 100)[:6]) if record(layout, 100)[:6] in content else len(content) // 3
    path.write_bytes(content[:at] + bytes(byte ^ 0xFF for byte in content[at : at + 40]) + content[at + 40 :])
    with pytest.raises(ValueError, match=path.name):
        take(data.host_batches(tmp_path, manifest, config(batch_size=50)), 4)


WORKER = """
import json, sys
import jax
port, process, folder = sys.argv[1:]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(process))
from jax.sharding import NamedSharding, PartitionSpec as P
from mlm_jax import data
from mlm_jax.config import Config
devices = jax.devices()
order = [devices[i] for i in (0, 2, 1, 3)]  # the two processes hold every other part
mesh = jax.make_mesh((4,), ("data",), (jax.sharding.AxisType.Auto,), devices=order)
manifest = json.load(open(f"{folder}/manifest.json"))
config = Config(batch_size=16, accumulation=2, row_length=manifest["row_length"])
batches = data.train_batches(folder, manifest, config, 8, NamedSharding(mesh, P(None, "data")))
batch = next(batches)
assert batch.row.shape == (2, 8)
for shard in batch.row.addressable_shards:
    print(json.dumps([int(process), shard.index[1].start, shard.data.tolist()]))
shards = sorted(batch.row.addressable_shards, key=lambda shard: shard.index[1].start)
first = data.first_rows(manifest, config, 8, batch.row.sharding)  # as the run says at its start
assert first[int(process)] == [row for shard in shards for row in shard.data[0].tolist()]
batches.close()
"""


def test_two_real_processes(ten):
    """They read different rows, which make up the whole batch, and each names the first that it reads."""
    folder, manifest = ten
    records.write_json(folder / "manifest.json", manifest)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", WORKER, port]
    started = [
        subprocess.Popen([*command, str(i), str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT) for i in range(2)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    read = np.full((2, 8), -1)
    said = [line for line in "".join(outputs).splitlines() if not line.startswith("[Gloo]")]
    for process, start, rows in map(json.loads, said):
        assert process == start // 2 % 2
        read[:, start : start + 2] = rows
    (expected,) = take(data.host_batches(folder, manifest, config(batch_size=16, accumulation=2), 8), 1)
    np.testing.assert_array_equal(read, expected.row)
