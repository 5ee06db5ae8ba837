"""Settings of the C library's allocator for processes that pass on much."""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""Parameter numbers of mallopt(3), glibc <malloc.h>."""


def keep_memory() -> bool:
    """Stops glibc from giving read buffers back to the kernel after each large body; False on another libc.

    256 KB read buffers that are returned and faulted in again cost half of the CPU of large downloads. All three
    settings are needed: the trim threshold alone switches the dynamic mmap threshold off and makes it worse.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    mallopt(_M_TOP_PAD, 32 << 20)
    return True
