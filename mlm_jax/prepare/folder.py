"""A folder of rows: built beside its place by one process at a time, and put there when it is whole."""

import contextlib
import fcntl
import glob
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from mlm_jax.config import ConfigError, check_writable
from mlm_jax.records import MANIFEST, read_manifest

SPLITS = ("train", "eval")
WORK = "work"


def finished(folder: Path, fingerprint: str) -> dict | None:
    """The manifest of a folder that holds the rows of this fingerprint, shards, list of phrases and all; else None."""
    try:
        manifest = read_manifest(folder)
    except (OSError, ValueError):
        return None
    splits = [corpus["splits"][split] for corpus in manifest["corpora"] for split in SPLITS]
    shards = [folder / shard["file"] for split in splits for shard in split["shards"]]
    phrases = [folder / manifest["collocations"]["file"]] if manifest["collocations"] else []
    whole = manifest["fingerprint"] == fingerprint and all(file.is_file() for file in shards + phrases)
    return manifest if whole else None


def check_replaceable(folder: Path) -> None:
    """Raises ConfigError for a folder that holds something else than rows: that is never replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    try:
        rows = "fingerprint" in json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        rows = False
    if not rows:
        raise ConfigError("config.data.rows", str(folder), "holds something else than rows; name a new or empty folder")


def build_folder(folder: Path, fingerprint: str) -> Path:
    """Where the rows of `folder` are built: another place for other rows."""
    return folder.with_name(f".{folder.name}.{fingerprint[:16]}.partial")


@contextlib.contextmanager
def alone(build: Path, progress: bool = False) -> Iterator[None]:
    """Waits until no other process builds here; the folder exists inside the context. progress: says that it waits."""
    while True:
        build.mkdir(parents=True, exist_ok=True)
        handle = os.open(build, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if progress:
                    print(f"waiting for another process that works in {build}", file=sys.stderr)
                fcntl.flock(handle, fcntl.LOCK_EX)
        # whoever held the lock may have moved the folder to its place meanwhile
        if build.is_dir() and os.path.samestat(os.fstat(handle), build.stat()):
            break
        os.close(handle)
    try:
        yield
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            build.rmdir()  # where nothing was to do


def work_folder(build: Path) -> Path:
    """Where in a folder that is built intermediate results lie."""
    return build / WORK


def encoded_folder(path: str, rows: Path, fingerprint: str) -> Path:
    """Where below `path` the encoded documents of this fingerprint are kept, which no others ever replace.

    Raises ConfigError where nothing can be kept there.
    """
    kept = Path(path).expanduser().absolute()
    if rows in (kept, *kept.parents):
        raise ConfigError("config.data.encoded", path, "lies in the folder of the rows; name a folder of its own")
    check_writable(kept, "config.data.encoded")
    return kept / fingerprint[:16]


def remove_partial(folder: Path) -> None:
    """Removes half-written files."""
    for path in folder.rglob("*.partial"):
        path.unlink()


def clean(folder: Path, build: Path) -> None:
    """Removes half-written files, and what interrupted calls for other rows of this folder have left."""
    remove_partial(build)
    for other in folder.parent.glob(f".{glob.escape(folder.name)}.*"):
        if other != build and other.is_dir() and other.suffix in (".partial", ".old"):
            handle = os.open(other, os.O_RDONLY)
            with contextlib.suppress(OSError):  # in use
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other, ignore_errors=True)
            os.close(handle)


def publish(build: Path, folder: Path) -> dict:
    """Puts finished rows in place of what the folder held; returns their manifest."""
    shutil.rmtree(work_folder(build), ignore_errors=True)
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    build.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return read_manifest(folder)
