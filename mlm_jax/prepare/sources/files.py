"""The files of a source: found, in a fixed order, and identified by what they hold."""

import glob
import hashlib
import re
from pathlib import Path

from mlm_jax.config import ConfigError
from mlm_jax.prepare.sources.formats import FORMATS, TEXT, kind_of
from mlm_jax.prepare.sources.parts import KEY, File


def find_files(source: str) -> list[File]:
    """The files of a source (a file, a folder, a glob pattern), sorted by name. Raises ConfigError where none is."""
    if "://" in source or re.match(r"[a-z]\w+:", source):
        raise ConfigError(KEY, source, "known sources are builtin:pydoc, and local files, folders and glob patterns")
    path = Path(source).expanduser()
    if path.is_dir():
        root, found = path, [entry for entry in path.rglob("*") if kind_of(entry.name, None)]
    elif path.is_file():
        root, found = path.parent, [path]
    else:
        fixed = re.split(r"[*?\[]", str(path), maxsplit=1)[0]
        root = Path(fixed + "x").parent
        found = [Path(match) for match in glob.glob(str(path), recursive=True)]
    files = [File(str(p), p.relative_to(root).as_posix(), kind_of(p.name, TEXT)) for p in found if p.is_file()]
    if not files:
        wanted = ", ".join(f"*{suffix}" for format in FORMATS.values() for suffix in format.suffixes)
        found_nothing = "the folder holds none of" if path.is_dir() else "no such file; a folder is searched for"
        raise ConfigError(KEY, source, f"{found_nothing} {wanted}, plain or compressed")
    return sorted(files, key=lambda file: file.name)


def identify(files: list[File]) -> dict[str, object]:
    """What the files hold: their number, their bytes, and one hash of names, sizes and contents."""
    digest, total = hashlib.blake2b(digest_size=16), 0
    for file in files:
        try:
            with open(file.path, "rb") as handle:
                content = hashlib.file_digest(handle, "blake2b").hexdigest()
                size = handle.tell()
        except OSError as error:
            raise ConfigError(KEY, file.path, f"cannot be read: {error.strerror}") from None
        digest.update(f"{file.name}\0{size}\0{content}\n".encode("utf-8", "surrogateescape"))
        total += size
    return {"files": len(files), "bytes": total, "hash": digest.hexdigest()}
