"""Memory that a file stands for, and huge pages that replace the file."""

from __future__ import annotations

import subprocess
import sys

from tests.support.native import kernels_or_skip

# Threads that get memory while pages are moved: memory that was another's ended the process in two
# of three runs.
_BESIDE_OTHERS = """
import mmap, os, tempfile, threading
import numpy as np
from engine.native import kernels

native, size, page = kernels(), 4 << 20, 4096
memory = np.zeros(size + page, np.uint8)
start = -memory.ctypes.data % page
pages = memory[start : start + size]
file = tempfile.TemporaryFile()
file.write(os.urandom(size))
file.flush()
ended = threading.Event()

def move():
    while not ended.is_set():
        native.map_file(pages, file.fileno(), 0)
        native.unmap_file(pages)

thread = threading.Thread(target=move, daemon=True)
thread.start()
for _ in range(4000):
    held = [mmap.mmap(-1, 1 << 20) for _ in range(8)]
    for one in held:
        one[0], one[-1] = 1, 2
    assert all((one[0], one[-1]) == (1, 2) for one in held)
    for one in held:
        one.close()
ended.set()
thread.join()
file.seek(0)
assert pages.tobytes() == file.read()
"""


def test_pages_are_moved_beside_threads_that_get_memory() -> None:
    kernels_or_skip()
    command = [sys.executable, "-X", "faulthandler", "-c", _BESIDE_OTHERS]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
