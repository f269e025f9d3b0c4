"""libraries: loads torch's shared libraries while other threads run."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def preload_torch() -> None:
    """Load torch's libraries before they are imported; does nothing if they are not found.

    Running their initializers takes 0.15 s, and much longer for those of CUDA. An import holds the
    interpreter's lock meanwhile, as `ctypes.CDLL` does, so that the screen freezes. A call of a
    foreign function holds no lock, and `dlopen` is one. The import then finds them loaded.
    """
    if sys.platform != "linux" or "torch" in sys.modules:
        return
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    library = Path(spec.origin).with_name("lib") / "libtorch.so"
    # If it fails, the import says why.
    with suppress(AttributeError, OSError):
        dlopen = ctypes.CDLL(None).dlopen
        dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
        dlopen(os.fsencode(library), os.RTLD_NOW)
