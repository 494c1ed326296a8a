"""`python -m mlm_jax bench --config=FILE`: what a step of a config costs on this machine."""

import contextlib
import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import flags

from mlm_jax import config as config_module
from mlm_jax import records, runtime
from mlm_jax.cli.common import SPECIAL, vocabulary_of
from mlm_jax.config import Config, Derived
from mlm_jax.flags import Arguments, command
from mlm_jax.tokenizer import Tokenizer, Vocabulary

USAGE = """usage: python -m mlm_jax bench --config=FILE [--config.KEY=VALUE ...] [--workdir=DIR] [--steps=N] [--masks]
                              [--json]

Compiles the training step of a config and runs it for a while: time, real tokens a second, FLOPs, and what masks and
input take of it; with --masks, what each way of masking would take. Reads the rows of config.data.rows or WORKDIR/rows;
where there are none, generated ones. A whole batch of a large run may be too much for this machine: make it smaller.
Example:

  python -m mlm_jax bench --config=configs/base.py --config.batch_size=8 --steps=5
"""
WARM_UP = 3  # steps before the clock starts
MASK_CALLS = 20
STRATEGIES = {  # changes of config.mask, for --masks
    "token": {"unit": "token"},
    "word": {"unit": "word"},
    "span": {"unit": "span"},
    "ngram": {"unit": "ngram"},
    "phrase": {"unit": "phrase"},
    "sentence": {"unit": "sentence"},
    "paragraph": {"unit": "paragraph"},
    "hierarchical": {"unit": "hierarchical"},
    "word, rare first": {"unit": "word", "priority": "frequency"},
    "word, strata": {"unit": "word", "stratify": True},
    "span, rare first, strata": {"unit": "span", "priority": "frequency", "stratify": True},
    "word, by surprisal": {"unit": "word", "priority": "importance", "importance": "surprisal"},
    "word, by hidden norm": {"unit": "word", "priority": "importance", "importance": "hidden"},
    "word, by attention": {"unit": "word", "priority": "importance", "importance": "attention"},
    "word, unigram random": {"unit": "word", "random_ids": "unigram"},
}
INPUT_SECONDS, INPUT_BATCHES = 1.0, 3  # the pipeline alone is read for at least so long, and so many batches

# Generated rows: at least two different batches, but not more than take a second or two to write.
LEAST_ROWS, MOST_ROWS = 1024, 16384
SEGMENT_TOKENS = 128
PIECES_PER_WORD = 1.4  # as in English prose with 8,000 to 30,000 pieces
MARKS = {  # bit of a word start -> how often it is there
    records.WORD_START: 1.0,
    records.SENTENCE_START: 0.06,
    records.PARAGRAPH_START: 0.015,
    records.PHRASE_JOIN: 0.2,
}


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("steps", 20, "steps to measure, after a few to warm up", lower_bound=1, flag_values=values)
    flags.DEFINE_bool("masks", False, "also the speed of every way of masking, on these rows", flag_values=values)
    flags.DEFINE_bool("json", False, "one JSON object, for programs", flag_values=values)


def main(argv: list[str]) -> int:
    return command(run, argv, USAGE, define=define)


def run(arguments: Arguments) -> int:
    result = measured(arguments.config, arguments.workdir, arguments.steps, arguments.masks)
    print(json.dumps(result) if arguments.json else show(result))
    return 0


def measured(config: Config, workdir: Path, steps: int, strategies: bool = False) -> dict:
    """Measures `steps` steps of a config, and the other ways of masking if asked. Raises ConfigError."""
    runtime.start()
    import jax

    config_module.check(config, jax.device_count(), platform=jax.default_backend())
    with rows_of(config_module.phase_configs(config)[0], workdir) as rows:
        config = config_module.first_phase(config, rows.manifest)
        derived = config_module.check(config, jax.device_count(), 1, rows.manifest)
        config = config_module.with_accumulation(config, derived.accumulation)
        return measure(config, derived, rows, steps, strategies)


# ---- rows ----


class Rows(NamedTuple):
    """Where rows lie, what they are, and their ids; `source` says where they come from."""

    folder: Path
    manifest: dict
    vocabulary: Vocabulary
    source: str


@contextlib.contextmanager
def rows_of(config: Config, workdir: Path) -> Iterator[Rows]:
    """The prepared rows of a run, or generated ones in a folder that is gone after the context."""
    folder = config_module.rows_folder(config, workdir)
    if (folder / records.MANIFEST).exists():
        manifest = records.read_manifest(folder)
        vocabulary = Tokenizer.load(folder / "tokenizer").vocabulary(np.array(manifest["unigrams"]))
        yield Rows(folder, manifest, vocabulary, str(folder))
        return
    vocabulary = vocabulary_of(config)
    vocabulary.counts = np.arange(vocabulary.size, 0, -1)  # of generated rows, where masks go by frequency
    with tempfile.TemporaryDirectory(prefix="mlm_jax-bench-") as name:
        yield Rows(Path(name), generate(Path(name), config, vocabulary), vocabulary, "generated")


def generate(folder: Path, config: Config, vocabulary: Vocabulary) -> dict:
    """Writes full rows for each source of a config: ids and word lengths as frequent as in text. Returns a manifest."""
    count = min(max(2 * config.batch_size, LEAST_ROWS), MOST_ROWS)
    t, rng = config.row_length, np.random.default_rng(0)
    starts = segment_starts(t, config.data.max_segments)
    corpora = []
    for source in config.data.sources:
        tokens = zipf(rng, vocabulary.ordinary, (count, t))
        word_starts = rng.random((count, t)) < 1 / PIECES_PER_WORD
        tokens[:, starts], tokens[:, np.append(starts[1:], t) - 1] = vocabulary.cls, vocabulary.sep
        bits = sum((rng.random((count, t)) < often) * bit for bit, often in MARKS.items())
        corpora.append((source, tokens, word_starts * bits))
    return write_rows(folder, corpora, starts, config.data.max_segments, vocabulary)


def segment_starts(t: int, max_segments: int) -> np.ndarray:
    """Where the equally long segments of a full row of t tokens begin."""
    return np.arange(0, t, max(SEGMENT_TOKENS, -(-t // max_segments)))


def zipf(rng: np.random.Generator, ids: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Ids drawn with a frequency of about 1 / (1 + place among `ids`). Returns i32[shape]."""
    places = np.exp(rng.random(shape) * np.log(len(ids))).astype(np.int64) - 1
    return ids[places].astype(np.int32)


def write_rows(
    folder: Path,
    corpora: list[tuple[str, np.ndarray, np.ndarray]],
    starts: np.ndarray,
    max_segments: int,
    vocabulary: Vocabulary,
) -> dict:
    """Writes full rows, one shard for each corpus, and returns the part of a manifest that training reads.

    corpora: (name, tokens i32[n,t], flags u8[n,t]); starts: where the segments of every row begin.
    """
    firsts = np.full(max_segments, -1)
    firsts[: len(starts)] = starts
    entries = []
    for number, (source, tokens, bits) in enumerate(corpora):
        n, t = tokens.shape
        layout = records.Layout.for_vocabulary(t, max_segments, vocabulary.size)
        no_pairs = np.full((n, max_segments), records.NO_LABEL)
        rows = records.encode_rows(layout, tokens, bits, np.tile(firsts, (n, 1)), no_pairs, np.full(n, t))
        file = f"train-{number}.arrayrecord"
        records.write_shard(folder / file, rows)
        train = {"rows": n, "tokens": n * t, "shards": [{"file": file, "rows": n}]}
        entries.append({"source": source, "splits": {"train": train, "eval": {"rows": 0, "tokens": 0, "shards": []}}})
    special = {name: getattr(vocabulary, name) for name in SPECIAL}
    return {
        "row_length": t,
        "max_segments": max_segments,
        "dtype": layout.dtype,
        "tokenizer": {"vocab_size": vocabulary.size, **special},
        "corpora": entries,
    }


# ---- measuring ----


def measure(config: Config, derived: Derived, rows: Rows, steps: int, strategies: bool) -> dict:
    """All figures of a config, under the names that `--json` has. Times in seconds, memory in bytes a device."""
    import jax

    from mlm_jax import compilation, data, feedback, keys, optim, sharding, state, step, tree
    from mlm_jax.models import build

    mesh = sharding.make_mesh(derived.mesh)
    model = build(config.model, derived.vocab_size, config.objectives)
    optimizer = optim.optimizer(config.optimizer, config.steps)
    placed = sharding.batch_sharding(mesh, leading=1)
    roots = keys.roots(config.seed)
    batches = data.train_batches(rows.folder, rows.manifest, config, 0, placed)
    with sharding.activate(mesh, config.mesh), contextlib.closing(batches):
        fed = feedback.start(model, rows.vocabulary, config.mask)
        key = keys.root(config.seed, keys.INIT)
        now = state.create(model, optimizer, mesh, config.mesh, key, fed, config.optimizer)
        parameters = tree.size(now.params)
        batch = next(batches)
        train_step = step.make_train_step(model, optimizer, rows.vocabulary, config, mesh)
        compiled, cold = compilation.compile_cold(train_step, now, batch, roots)
        seconds, tokens, now = time_steps(compiled, now, itertools.chain([batch], batches), roots, steps)

        def of_masks(**changes: object) -> float:
            changed = dataclasses.replace(config, mask=dataclasses.replace(config.mask, **changes))
            return time_mask(model, rows.vocabulary, changed, roots["mask"], batch, now.params)

        mask_seconds = of_masks()
        plain_seconds = of_masks(priority="uniform") if config.mask.priority == "importance" else mask_seconds
        given = config.mask
        plain = {field.name: field.default for field in dataclasses.fields(given)}
        plain |= {"rate": given.rate, "max_rate": given.max_rate}
        each = {name: of_masks(**plain | changes) for name, changes in STRATEGIES.items()} if strategies else {}
    input_rate = time_input(data.train_batches(rows.folder, rows.manifest, config, 0, placed), tokens)
    times = np.quantile(seconds, (0.1, 0.5, 0.9)).tolist()
    return {
        "device": jax.devices()[0].device_kind,
        "devices": derived.devices,
        "jax": jax.__version__,
        "rows": rows.source,
        "parameters": parameters,
        **cold,
        "steps": steps,
        **dict(zip(("step_seconds_p10", "step_seconds", "step_seconds_p90"), times)),
        **rates(config, derived, times[1], tokens),
        "mask_seconds": mask_seconds,
        "mask_share": mask_seconds / times[1],
        "importance_share": (mask_seconds - plain_seconds) / times[1],
        "strategies": {
            name: {"seconds": value, "share": value / times[1], "tokens_per_second": tokens / value}
            for name, value in each.items()
        },
        "input_tokens_per_second": input_rate,
        "input_times_step": input_rate / (tokens / times[1]),
        **memory(compiled),
    }


def time_steps(
    train_step: Callable, now: object, batches: Iterator, roots: dict, steps: int
) -> tuple[list[float], float, object]:
    """The seconds of each of `steps` steps, their mean number of real tokens, and the last state.

    As in training the next step is dispatched before the last one's metrics are read, and waiting for input counts.
    """
    import jax

    ends, tokens, before = [], [], None
    for batch in itertools.islice(batches, WARM_UP + steps + 1):
        now, values = train_step(now, batch, roots)
        if before is not None:
            tokens.append(int(jax.device_get(before["tokens"])))
            ends.append(time.perf_counter())
        before = values
    jax.block_until_ready(now)
    return np.diff(ends[-steps - 1 :]).tolist(), float(np.mean(tokens[-steps:])), now


def time_mask(model: object, vocabulary: Vocabulary, config: Config, key: object, batch: object, params: dict) -> float:
    """Median seconds of making the masks of a step's batch [k,b,t], and of what they keep, as a program alone."""
    import jax
    import jax.numpy as jnp

    from mlm_jax import feedback

    make, fed = feedback.make_mask(model, vocabulary, config), feedback.start(model, vocabulary, config.mask)

    @jax.jit
    def mask(key: object, batch: object, params: dict, fed: dict) -> tuple:
        masked = make(0, key, batch, params, fed)
        return masked, feedback.after_step(fed, jnp.ones_like(masked.weights), masked, config.mask)

    jax.block_until_ready(mask(key, batch, params, fed))
    seconds = []
    for _ in range(MASK_CALLS):
        began = time.perf_counter()
        jax.block_until_ready(mask(key, batch, params, fed))
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def time_input(batches: Iterator, tokens: float) -> float:
    """Real tokens a second that the pipeline brings to the devices while nothing else runs; tokens: of a batch."""
    import jax

    with contextlib.closing(batches):
        jax.block_until_ready(next(batches))
        began, count = time.perf_counter(), 0
        while count < INPUT_BATCHES or time.perf_counter() - began < INPUT_SECONDS:
            jax.block_until_ready(next(batches))
            count += 1
        return count * tokens / (time.perf_counter() - began)


def rates(config: Config, derived: Derived, seconds: float, tokens: float) -> dict:
    """Tokens, FLOPs and utilisation of a step of so many seconds and real tokens. A place may be padding."""
    import jax

    from mlm_jax import flops

    places, of_step = derived.tokens_per_step, flops.of_run(config, derived)
    kind = jax.devices()[0].device_kind
    return {
        "places_per_step": places,
        "tokens_per_step": tokens,
        "tokens_per_second": tokens / seconds,
        "flops_per_step": of_step,
        "flops_per_place": of_step / places,
        "flops_per_second": of_step / seconds,
        "mfu": flops.utilisation(of_step, places, tokens / seconds, derived.devices, kind),
    }


def memory(compiled: object) -> dict[str, int | None]:
    """What the step needs by the compiler, and the most that a device has held; None where the backend is silent."""
    import jax

    plan = compiled.memory_analysis()
    in_use = jax.devices()[0].memory_stats()
    sizes = plan and (plan.argument_size_in_bytes, plan.output_size_in_bytes, -plan.alias_size_in_bytes)
    return {
        "memory_state": plan and sum(sizes),
        "memory_temporary": plan and plan.temp_size_in_bytes,
        "memory_peak": in_use.get("peak_bytes_in_use") if in_use else None,
    }


# ---- what a person reads ----


def show(result: dict) -> str:
    """The figures as an aligned block."""
    from mlm_jax.metrics import short

    r = result
    mfu = "" if r["mfu"] is None else f", MFU {r['mfu']:.1%}"
    spread = f"(p10 {seconds(r['step_seconds_p10'])}, p90 {seconds(r['step_seconds_p90'])}, {r['steps']} steps)"
    peak = "" if r["memory_peak"] is None else f", at most {size(r['memory_peak'])} held"
    importance = f", {r['importance_share']:.2%} for importance" if r["importance_share"] else ""
    per_place = short(r["flops_per_place"])
    tokens = f"{r['tokens_per_step']:,.0f} a step, {r['tokens_per_step'] / r['places_per_step']:.1%} full"
    lines = {
        "machine": f"{r['devices']} x {r['device']}, jax {r['jax']}",
        "rows": r["rows"],
        "parameters": f"{r['parameters']:,}",
        "compile": f"{seconds(r['compile_seconds'])} cold, after {seconds(r['lower_seconds'])} of tracing and lowering",
        "step": f"{seconds(r['step_seconds'])} {spread}",
        "tokens": f"{short(r['tokens_per_second'])} real tokens/s, {tokens}",
        "FLOPs": f"{short(r['flops_per_step'])} a step, {per_place} a place, {short(r['flops_per_second'])}/s{mfu}",
        "masks": f"{seconds(r['mask_seconds'])}, {r['mask_share']:.2%} of the step{importance}",
        "input": f"{short(r['input_tokens_per_second'])} tokens/s, {r['input_times_step']:,.0f} times what steps take",
    }
    if r["memory_temporary"] is not None:
        lines["memory"] = f"{size(r['memory_state'])} state, {size(r['memory_temporary'])} temporaries a device{peak}"
    shown = [f"{name:10}  {text}" for name, text in lines.items()]
    if r["strategies"]:
        shown += ["", f"{'ways of masking':26}{'tokens/s':>10}{'of the step':>13}"]
    for name, figures in r["strategies"].items():
        shown.append(f"{name:26}{short(figures['tokens_per_second']):>10}{figures['share']:>13.2%}")
    return "\n".join(shown)


def seconds(value: float) -> str:
    """Three figures of a time: 4.12 s, 31.5 ms."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def size(number: int) -> str:
    """Bytes as MiB or GiB."""
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"
