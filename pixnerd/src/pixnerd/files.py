"""Files that are there whole or not at all, and models that are there at all."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def expect_model(name: str | Path) -> None:
    """Refuse at once what is neither a folder nor could be a Hub id, which is asked for over the network, many times.

    Raises:
        OSError: it is not.
    """
    if not Path(name).is_dir() and not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise OSError(f"model: expected a folder or a Hub id user/name, got {name}; train.py writes outputs/demo")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when the block ends without an error.

    It is hidden, so that nobody takes it for the file, and each process has its own, on a shared disk too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}")
    yield partial
    os.replace(partial, path)
