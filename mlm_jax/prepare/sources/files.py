"""The files of a source: found, in a fixed order, and identified by what they hold."""

import glob
import hashlib
import os
import re
from pathlib import Path

from mlm_jax.config import ConfigError
from mlm_jax.prepare.sources import remote, tfds
from mlm_jax.prepare.sources.formats import FORMATS, TEXT, kind_of
from mlm_jax.prepare.sources.parts import KEY, File

HASHED_BYTES = 1 << 20  # at a time


def find_files(source: str) -> list[File]:
    """The files of a source (a file, a folder, a glob pattern), sorted by name. Raises ConfigError where none is."""
    if "://" in source:
        files = _remote_files(source)
    elif source.startswith(tfds.PREFIX):
        files = tfds.find(source)
    elif re.match(r"[a-z]\w+:", source):
        known = (
            "builtin:pydoc, tfds:NAME:SPLIT, and files, folders and glob patterns, local or such as s3://BUCKET/*.gz"
        )
        raise ConfigError(KEY, source, f"known sources are {known}")
    else:
        files = _local_files(source)
    if not files:
        wanted = ", ".join(f"*{suffix}" for format in FORMATS.values() for suffix in format.suffixes)
        folder = os.path.isdir(os.path.expanduser(source))
        nothing = "the folder holds none of" if folder else "no such file; a folder is searched for"
        raise ConfigError(KEY, source, f"{nothing} {wanted}, plain or compressed")
    return sorted(files, key=lambda file: file.name)


def _local_files(source: str) -> list[File]:
    path = Path(source).expanduser()
    if path.is_dir():
        root, found = path, [entry for entry in path.rglob("*") if _wanted(entry.relative_to(path).as_posix())]
    elif path.is_file():
        root, found = path.parent, [path]
    else:
        fixed = re.split(r"[*?\[]", str(path), maxsplit=1)[0]
        root = Path(fixed + "x").parent
        found = [Path(match) for match in glob.glob(str(path), recursive=True)]
    return [File(str(p), p.relative_to(root).as_posix(), kind_of(p.name, TEXT)) for p in found if p.is_file()]


def _remote_files(source: str) -> list[File]:
    try:
        found, folder = remote.find(source)
    except remote.RemoteError as error:
        raise ConfigError(KEY, source, str(error)) from None
    return [File(path, name, kind_of(name, TEXT), facts) for path, name, facts in found if not folder or _wanted(name)]


def _wanted(name: str) -> bool:
    """Whether a file is read that nobody named but its folder: one of a known suffix, and nothing of it is hidden.

    name: relative to the folder.
    """
    parts = name.split("/")
    return bool(kind_of(parts[-1], None)) and not any(part.startswith(".") for part in parts)


def identify(files: list[File]) -> dict[str, object]:
    """What the files hold: their number, their bytes, and one hash of names, sizes and contents.

    Local files are read for it. A remote one is known by its size and what its store says of its content (a checksum,
    an entity tag, or the time of the last change), and is read only where that is nothing.
    """
    digest, total = hashlib.blake2b(digest_size=16), 0
    for file in files:
        if file.facts and file.facts.version and file.facts.size is not None:
            size, content = file.facts.size, file.facts.version
        else:
            size, content = _read_through(file)
        digest.update(f"{file.name}\0{size}\0{content}\n".encode("utf-8", "surrogateescape"))
        total += size
    return {"files": len(files), "bytes": total, "hash": digest.hexdigest()}


def _read_through(file: File) -> tuple[int, str]:
    """Bytes and hash of what a file holds."""
    size, digest = 0, hashlib.blake2b()
    try:
        with file.stored() as handle:
            while block := handle.read(HASHED_BYTES):
                size += len(block)
                digest.update(block)
    except OSError as error:
        raise ConfigError(KEY, file.path, f"cannot be read: {error.strerror or error}") from None
    return size, digest.hexdigest()
