"""Files behind an address, such as `s3://`, `gs://`, `https://`, `hf://`: through fsspec and the package of each store.

Credentials are looked for where the store's own tools look (environment, configuration files).
"""

import dataclasses
import io
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
BLOCK_BYTES = 8 << 20  # that are fetched at a time
ATTEMPTS, FIRST_WAIT_SECONDS = 4, 1.0  # of one read; the wait doubles
GLOB = re.compile(r"[*\[]")  # a question mark begins the query of an address
# What stores say of a file's content, the surest first.
VERSIONS = ("md5Hash", "Content-MD5", "content_md5", "sha256", "checksum", "crc32c", "ETag", "etag", "blob_id")
VERSIONS += ("mtime", "LastModified", "last_modified", "updated")


class RemoteError(Exception):
    """What keeps a source from being found; its text is for the user."""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a store says of a file: its bytes, None where it does not say, and what changes with the content."""

    size: int | None
    version: str


def find(source: str) -> tuple[list[tuple[str, str, Facts]], bool]:
    """(address, name relative to the source, facts) of the files, and whether the source is a folder."""
    system, path = _system(source)
    try:
        if GLOB.search(path):
            folder, found = False, system.glob(path, detail=True)
            root = GLOB.split(path, maxsplit=1)[0].rpartition("/")[0]
        elif not path.endswith("/") and (info := system.info(path))["type"] == "file":
            folder, found, root = False, {path: info}, path.rpartition("/")[0]
        else:
            folder, found, root = True, system.find(path, detail=True), path.rstrip("/")
        files = [info for info in found.values() if info["type"] == "file"]
        known = [info if _facts(info).version and info.get("size") else system.info(info["name"]) for info in files]
        named = [(system.unstrip_protocol(info["name"]), _name(info["name"], root)) for info in files]
    except FileNotFoundError:
        return [], False
    except Exception as error:  # each store has its own
        raise RemoteError(f"cannot be read: {_said(error)}") from None
    return [(address, name, _facts(info)) for (address, name), info in zip(named, known)], folder


def _name(path: str, root: str) -> str:
    """What a file is called below `root`, without the query of an address."""
    name = path.removeprefix(root).lstrip("/")
    return name.partition("?")[0] if path.startswith(("http://", "https://")) else name


def _facts(info: dict[str, Any]) -> Facts:
    version = next((f"{key} {info[key]}" for key in VERSIONS if info.get(key)), "")
    return Facts(info.get("size"), version)


def _system(source: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    protocol = source.partition("://")[0]
    if "::" in source:
        raise RemoteError("is a chain of file systems; name the files themselves, compressed or not")
    try:
        import fsspec
    except ImportError:
        raise RemoteError("needs the package fsspec: pip install 'mlm-jax[prepare]'") from None
    try:
        return fsspec.core.url_to_fs(source)
    except ImportError as error:  # says which package is missing
        raise RemoteError(f"{error} (pip install {_PACKAGES.get(protocol, 'the package of this store')})") from None
    except Exception as error:
        raise RemoteError(f"cannot be read: {_said(error)}") from None


_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs", "http": "aiohttp", "https": "aiohttp"}
_PACKAGES |= {"hf": "huggingface_hub", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}


def open(address: str) -> io.RawIOBase:
    """A remote file for reading; a read that fails is tried again. Raises OSError."""
    try:
        system, path = _system(address)
        return _Patient(_tried(lambda: system.open(path, "rb", block_size=BLOCK_BYTES)))
    except RemoteError as error:
        raise OSError(str(error)) from None


class Around(io.RawIOBase):
    """A file that is read through another one; how, a subclass says."""

    def __init__(self, handle: Any):
        self._handle = handle

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._handle.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._handle.seek(offset, whence)

    def tell(self) -> int:
        return self._handle.tell()


class _Patient(Around):
    """A remote file whose reads are tried again: a failed one has not moved it, since each fetches bytes by number."""

    def read(self, size: int = -1) -> bytes:
        # what streams and cannot seek has lost what a failed read did fetch
        return _tried(lambda: self._handle.read(size), ATTEMPTS if self.seekable() else 1)

    def close(self) -> None:
        self._handle.close()
        super().close()


def _tried(action: Callable[[], T], attempts: int = ATTEMPTS) -> T:
    """Raises OSError where all attempts fail; what is not there is not tried again."""
    for attempt in range(attempts):
        try:
            return action()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception as error:
            if attempt + 1 == attempts:
                raise OSError(_said(error)) from error
            time.sleep(FIRST_WAIT_SECONDS * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
