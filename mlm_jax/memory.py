"""What the C library does with memory that is freed."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # names of malloc.h


def keep_freed(largest: int, most: int) -> None:
    """Lets glibc keep freed memory for later instead of returning it to the system each time.

    For work that allocates and frees the same large arrays over and over. Kept are pieces of at most `largest` bytes,
    `most` bytes in all. Must come before other threads start. Another C library is left as it is.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(ARENA_MAX, 1)
    mallopt(MMAP_THRESHOLD, largest)
    mallopt(TRIM_THRESHOLD, most)
