"""Files that are there whole or not at all."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


# Copied from pixnerd.files.replacing
@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when the block ends without an error.

    It is hidden, so that nobody takes it for the file, and each process has its own, on a shared disk too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}")
    yield partial
    os.replace(partial, path)
