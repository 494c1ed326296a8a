"""Files of a Beam pipeline, on this machine or in a store such as gs://, through Beam's file systems."""

import contextlib
import shutil
import tempfile
import uuid
from pathlib import Path


def filesystems():
    """Beam's own class, which finds the system of a path."""
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def _open(path: str, mode: str):
    from apache_beam.io.filesystem import CompressionTypes

    function = getattr(filesystems(), mode)
    return contextlib.closing(function(path, compression_type=CompressionTypes.UNCOMPRESSED))


def read(path: str) -> bytes:
    with _open(path, "open") as handle:
        return handle.read()


def write(path: str, data: bytes) -> None:
    """A file that appears when it is whole, as those of object stores do."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        upload(Path(file.name), path)


def upload(source: Path, path: str) -> None:
    """Copies a local file; a worker that does the same work at the same time writes the same bytes."""
    partial = f"{path}.{uuid.uuid4().hex}.partial"
    with open(source, "rb") as data, _open(partial, "create") as handle:
        shutil.copyfileobj(data, handle, 1 << 20)
    filesystems().rename([partial], [path])


def exists(path: str) -> bool:
    return filesystems().exists(path)


def match(pattern: str) -> list[str]:
    (result,) = filesystems().match([pattern])
    return sorted(metadata.path for metadata in result.metadata_list)
