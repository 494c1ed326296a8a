"""Compressed files, known by their first bytes whatever they are called, and read to their end.

gzip, bzip2, xz and zstd; a file of several members, streams or frames is all of them one after another. A file that
ends before its last member does raises EOFError: what its tail held is lost, which no bad document is.
"""

import bz2
import gzip
import io
import lzma
import re
import zlib

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what reading a damaged file raises
ZSTD_INPUT = 4096  # bytes that are decompressed at a time: a block of 4 bytes can hold 128 KiB of text
HEAD = 10  # bytes that tell how a file is compressed


def decompressed(raw: io.BufferedReader) -> io.BufferedIOBase:
    """The bytes that a file at its start holds; it stays the caller's to close."""
    head = raw.peek(HEAD)[:HEAD]
    for magic, opened in _OPENED.items():
        if magic.match(head):
            return opened(raw)
    return raw


def without_suffix(name: str) -> str:
    """The name without what tells that it is compressed, if anything does."""
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


class _Zstd(io.RawIOBase):
    """All frames of a file. The library's own reader takes a cut file for a whole one."""

    def __init__(self, raw: io.BufferedReader):
        try:
            import zstandard
        except ImportError:
            raise OSError("zstd needs the package zstandard: pip install 'mlm-jax[prepare]'") from None
        self._library, self._raw = zstandard, raw
        self._frame = None  # the one that is being read
        self._left, self._out = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:
        while not self._out:
            data = self._left or self._raw.read(ZSTD_INPUT)
            if not data and self._frame:
                raise EOFError("the file ends before the end of a zstd frame")
            if not data:
                return 0
            try:
                self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
                self._out = memoryview(self._frame.decompress(data))
            except self._library.ZstdError as error:
                raise OSError(str(error)) from None
            self._left = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._out))
        buffer[:size], self._out = self._out[:size], self._out[size:]
        return size


_OPENED = {
    re.compile(rb"\x1f\x8b\x08"): lambda raw: gzip.GzipFile(fileobj=raw),
    # the first block of a stream, or the end of an empty one
    re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"): bz2.BZ2File,
    re.compile(rb"\xfd7zXZ\x00"): lzma.LZMAFile,
    # a frame, or one to be skipped, as parallel compressors write
    re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"): lambda raw: io.BufferedReader(_Zstd(raw), 1 << 17),
}
