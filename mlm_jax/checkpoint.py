"""Checkpoints of a run: WORKDIR/checkpoints/STEP, written in the background by Orbax and checked against a list.

A checkpoint counts from the moment when the list of its files, their sizes and hashes stands beside them; it is
written after Orbax has committed. Whatever ended early, an empty folder, a commit without its end or a file that lost
its tail fails against that list, and the newest one that passes is taken.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import logging as std_logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from absl import logging
from orbax.checkpoint import v1 as ocp

from mlm_jax import convert, records, runtime, tree
from mlm_jax.config import Config, ConfigError, SaveError, hub, load, read_task
from mlm_jax.convert.files import read_tensors
from mlm_jax.models import Model, build
from mlm_jax.tokenizer import Tokenizer

FOLDER, BAD = "checkpoints", "bad"
FILES = "files.json"  # in a checkpoint's folder: path -> [bytes, BLAKE2b]
MOST_DIFFERENCES = 5  # of a mismatch that are named


def _not_a_save_thread(record: std_logging.LogRecord) -> bool:
    return not record.pathname.endswith("orbax/checkpoint/_src/futures/future.py")


# Orbax logs the traceback of a save that fails in the background, twice; it is raised here as well, as a SaveError
logging.get_absl_logger().addFilter(_not_a_save_thread)


def folder_of(workdir: str | Path, step: int) -> Path:
    return Path(workdir).absolute() / FOLDER / str(step)


def steps_in(workdir: str | Path) -> list[int]:
    """Steps that have a folder, good or not, in increasing order."""
    folder = Path(workdir) / FOLDER
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint by its list of files; None where it is whole."""
    if not (folder / FILES).is_file():
        return f"it has no {FILES}, so it was not finished"
    try:
        listed = json.loads((folder / FILES).read_text(encoding="utf-8"))
    except ValueError:
        return f"its {FILES} is damaged"
    if not listed:
        return f"its {FILES} is empty"
    for name, (size, digest) in listed.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if _hash(path) != digest:
            return f"{name} is damaged"
    return None


def newest(workdir: str | Path) -> int | None:
    """The newest whole checkpoint, None if there is none. Only reads, so it may look at a run that is under way."""
    return next((step for step in reversed(steps_in(workdir)) if not problem(folder_of(workdir, step))), None)


def read_meta(workdir: str | Path, step: int) -> dict:
    """What was saved beside the state: position in the data, config, hashes of tokenizer and data."""
    return ocp.metadata(folder_of(workdir, step)).custom_metadata


def read_part(workdir: str | Path, step: int, part: str, sharding: jax.sharding.Sharding) -> tree.PyTree:
    """One field of the state, such as `params`, as it was saved, every leaf with the given sharding.

    Raises KeyError where the state has no such field.
    """
    folder = folder_of(workdir, step)
    saved = ocp.metadata(folder).metadata
    if part not in saved:
        raise KeyError(f"{folder}: the state has no {part!r}, but {', '.join(map(repr, saved))}")
    wanted = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), saved[part])
    skipped = {name: jax.tree.map(lambda _: ocp.PLACEHOLDER, saved[name]) for name in saved if name != part}
    return ocp.load(folder, {**skipped, part: wanted})[part]


def read_params(workdir: str | Path, step: int, sharding: jax.sharding.Sharding) -> dict:
    """The parameters to use a model with: their average, where the checkpoint has one."""
    averaged = jax.tree.leaves(ocp.metadata(folder_of(workdir, step)).metadata.get("ema"))
    if averaged:
        return read_part(workdir, step, "ema", sharding)["params"]
    return read_part(workdir, step, "params", sharding)


def load_config(path: str | Path) -> Config:
    """The config of a run. Raises ConfigError where the folder is no workdir."""
    if not (Path(path) / "config.json").is_file():
        raise ConfigError("workdir", str(path), "holds no config.json, so it is not the folder of a run")
    return load(Path(path) / "config.json")


def split_step(path: str | Path) -> tuple[Path, int | None]:
    """(workdir, step) of WORKDIR/checkpoints/STEP; (path, None) of any other folder."""
    path = Path(path)
    if path.parent.name == FOLDER and path.name.isdecimal():
        return path.parent.parent, int(path.name)
    return path, None


def load_model(
    path: str | Path,
    step: int | None = None,
    sharding: jax.sharding.Sharding | None = None,
    headless: bool = False,
) -> tuple[Model, tree.PyTree, Tokenizer]:
    """(model, params, tokenizer) of a run, from its newest whole checkpoint or that of a step; or of a hub folder.

    A checkpoint may also be named by its folder, WORKDIR/checkpoints/STEP.

    Of a run with `optimizer.ema` they are the averaged parameters. sharding: of every parameter, by default on the
    first device. headless: a hub folder may hold an encoder without the head that fills masks, or with that of a
    fine-tuned model; then the parameters have no `head`. Raises ConfigError where the folder is neither, or has no such
    checkpoint.
    """
    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    if hub.is_hub(path):
        if step is not None:
            raise ConfigError("--step", step, f"{path} is a model of the hub format, which has one state")
        config, vocab_size = hub.read_config(path)
        task = read_task(path)
        if task and not headless:
            raise ConfigError("path", str(path), f"is fine-tuned for {task.kind}, and has no head that fills masks")
        model, tokenizer, tensors = build(config, vocab_size, task=task), Tokenizer.load(path), read_tensors(path)
        try:
            params = convert.from_hub(tensors, config, vocab_size, headless, task)
        except ValueError as error:
            raise ConfigError("path", str(path), str(error)) from None
        if tokenizer.size > vocab_size:
            fix = f"has {vocab_size:,} rows in its word table, and its tokenizer {tokenizer.size:,} ids"
            raise ConfigError("path", str(path), fix)
        return model, jax.device_put(params, sharding), tokenizer
    workdir, named = split_step(path)
    if named is not None and step is not None:
        raise ConfigError("--step", step, f"{path} is one checkpoint already")
    step = named if step is None else step
    config = load_config(workdir)
    tokenizer = Tokenizer.load(workdir / "tokenizer")
    found = newest(workdir) if step is None else step
    if found is None or found not in steps_in(workdir):
        which = "no whole checkpoint" if step is None else f"no checkpoint of step {step}, but of {steps_in(workdir)}"
        raise ConfigError("workdir", str(path), f"holds {which} in {FOLDER}/")
    if step is not None and (found_wrong := problem(folder_of(workdir, step))):
        raise ConfigError("workdir", str(folder_of(workdir, step)), found_wrong)
    of_model, meta = config.model, read_meta(workdir, found)
    if "rotary_base" in meta:  # of a run with phases: that of the one in which it was saved
        of_model = dataclasses.replace(of_model, rotary_base=meta["rotary_base"])
    model = build(of_model, of_model.vocab_size or tokenizer.size, config.objectives)
    return model, read_params(workdir, found, sharding), tokenizer


class Checkpoints:
    """The checkpoints of one run that trains: it saves, keeps the newest, and moves damaged ones out of the way.

    All processes make one and call its methods together; files are looked after by process 0.
    """

    def __init__(
        self,
        workdir: str | Path,
        keep: int,
        report: Callable[[str], None] = logging.warning,
        doubt: Callable[[int], str | None] = lambda step: None,
    ):
        """Finds the newest checkpoint that is whole and of which `doubt(step)` has nothing to say.

        Newer ones go to WORKDIR/bad, each with a line to `report` that says why.
        """
        self.workdir, self.keep = Path(workdir).absolute(), keep
        self.first = jax.process_index() == 0
        self.worker = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: tuple[int, concurrent.futures.Future] | None = None
        # newest step that is saved and listed
        self.latest: int | None = runtime.by_first(lambda: _clean(self.workdir, report, doubt))

    def save(self, step: int, state: tree.PyTree, meta: dict) -> None:
        """Starts to save; returns once the state's buffers may be donated. meta: values that JSON has.

        Waits for the save before. Raises SaveError where that one failed or this one cannot begin, FileExistsError
        where the step is saved already.
        """
        self.wait()
        folder = folder_of(self.workdir, step)
        if folder.exists():
            raise FileExistsError(f"{folder}: exists already")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            response = ocp.save_async(folder, state, custom_metadata=meta)
        except Exception as error:
            raise SaveError(f"{folder}: not saved: {error}") from error
        if response is None:
            raise SaveError(f"{folder}: not saved: Orbax declined")
        self.pending = step, self.worker.submit(self._finish, step, response.result)

    def _finish(self, step: int, commit: Callable) -> None:
        """In the background: waits for the commit, writes the list, then removes the checkpoints that are too old."""
        folder = folder_of(self.workdir, step)
        if commit() is False:
            raise RuntimeError("Orbax declined")
        if self.first:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            listed = {path.relative_to(folder).as_posix(): [path.stat().st_size, _hash(path)] for path in files}
            if not listed:
                raise RuntimeError("Orbax wrote no file")
            records.write_json(folder / FILES, listed)
            _remove_old(self.workdir, self.keep)

    def wait(self) -> None:
        """Returns when the latest save is whole. Raises SaveError with its cause if it failed."""
        if self.pending is None:
            return
        (step, future), self.pending = self.pending, None
        try:
            future.result()
        except Exception as error:
            raise SaveError(f"{folder_of(self.workdir, step)}: not saved: {error}") from error
        self.latest = step

    def close(self) -> None:
        """Waits for the latest save as `wait` does."""
        try:
            self.wait()
        finally:
            self.worker.shutdown()

    def verify(self, step: int) -> None:
        """Reads a checkpoint again on process 0. Raises RuntimeError where it is not what its list says."""
        found = problem(folder_of(self.workdir, step)) if self.first else None
        if found:
            raise RuntimeError(f"{folder_of(self.workdir, step)}: {found}")

    def restore(self, step: int, abstract: tree.PyTree, optional: Sequence[str] = ()) -> tree.PyTree:
        """The state of a step as `abstract` describes it: leaves of shape, dtype and sharding, on any mesh.

        optional: fields of a state that only one of the two may have. One that the checkpoint lacks stays abstract,
        one that is empty in `abstract` is not read. Raises ConfigError that names the first paths that differ, with
        both shapes.
        """
        return restored(folder_of(self.workdir, step), abstract, optional)


def restored(folder: Path, abstract: tree.PyTree, optional: Sequence[str] = (), key: str = "workdir") -> tree.PyTree:
    """What the checkpoint in a folder holds, see `Checkpoints.restore`; key: names the folder in errors."""
    saved = ocp.metadata(folder).metadata
    if not dataclasses.is_dataclass(abstract):
        _check_fits(folder, saved, abstract, key)
        return ocp.load(folder, abstract)
    parts = {field.name: getattr(abstract, field.name) for field in dataclasses.fields(abstract)}
    one_sided = [
        name for name in optional if bool(jax.tree.leaves(parts[name])) != bool(jax.tree.leaves(saved.get(name)))
    ]
    wanted = {name: part for name, part in parts.items() if name not in one_sided}
    _check_fits(folder, {name: saved[name] for name in saved if name not in one_sided}, wanted, key)
    # a part without leaves that an older version did not have stays as it is
    read = {name: part for name, part in wanted.items() if name in saved}
    unread = {name: jax.tree.map(lambda _: ocp.PLACEHOLDER, saved[name]) for name in one_sided if name in saved}
    loaded = ocp.load(folder, {**read, **unread})
    return dataclasses.replace(abstract, **{name: loaded[name] for name in read})


def _check_fits(folder: Path, saved: tree.PyTree, wanted: tree.PyTree, key: str) -> None:
    if found := differences(saved, wanted):
        raise ConfigError(key, str(folder), listed("does not fit the state of this run:", found))


def differences(saved: tree.PyTree, wanted: tree.PyTree) -> list[str]:
    """A line for each path whose presence, shape or dtype differs, in the order of `wanted`, extra ones last."""
    saved_leaves, wanted_leaves = dict(tree.leaves(saved)), dict(tree.leaves(wanted))
    lines = []
    for path, leaf in wanted_leaves.items():
        if path not in saved_leaves:
            lines.append(f"{path}: {_shape(leaf)} here, not in the checkpoint")
        elif _shape(leaf) != _shape(saved_leaves[path]):
            lines.append(f"{path}: {_shape(leaf)} here, {_shape(saved_leaves[path])} in the checkpoint")
    extra = (path for path in saved_leaves if path not in wanted_leaves)
    return lines + [f"{path}: not here, {_shape(saved_leaves[path])} in the checkpoint" for path in extra]


def listed(what: str, found: list[str]) -> str:
    """A message with the first of the `differences`, a line each, and how many more there are."""
    shown = found[:MOST_DIFFERENCES]
    rest = [f"and {len(found) - len(shown)} more"] if len(found) > len(shown) else []
    return "\n  ".join([what, *shown, *rest])


def _shape(leaf: object) -> str:
    return f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _clean(workdir: Path, report: Callable[[str], None], doubt: Callable[[int], str | None]) -> int | None:
    """Moves checkpoints that are newer than the newest good one away, and returns that one's step, if there is one."""
    for leftover in (workdir / FOLDER).glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(leftover)
    for step in reversed(steps_in(workdir)):
        folder = folder_of(workdir, step)
        found = problem(folder) or doubt(step)
        if not found:
            return step
        target, number = workdir / BAD / str(step), 2
        while target.exists():
            target, number = workdir / BAD / f"{step}-{number}", number + 1
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, target)
        report(f"{folder}: {found}; moved to {target}")
    return None


def _remove_old(workdir: Path, keep: int) -> None:
    """Removes what is older than the newest `keep` listed checkpoints."""
    listed = [step for step in steps_in(workdir) if (folder_of(workdir, step) / FILES).is_file()]
    for step in steps_in(workdir):
        if listed[-keep:] and step < listed[-keep:][0]:
            folder = folder_of(workdir, step)
            (folder / FILES).unlink(missing_ok=True)  # first, so that half a checkpoint never has a list
            shutil.rmtree(folder)
