"""Read and write JSON files: atomic, plain types only, errors that name the file."""

import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """`value` with dataclasses, arrays, tensors, tuples, paths and numpy scalars turned into what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return value.as_posix()
    if hasattr(value, "tolist"):  # numpy and torch
        return value.tolist()
    return value


def non_finite(value: Any, where: str = "") -> list[str]:
    """The places in plain data that hold NaN or an infinity, like `tables.main.rows[0][1]`."""
    if isinstance(value, dict):
        return [hit for key, item in value.items() for hit in non_finite(item, f"{where}.{key}" if where else key)]
    if isinstance(value, list):
        return [hit for i, item in enumerate(value) for hit in non_finite(item, f"{where}[{i}]")]
    return [where] if isinstance(value, float) and not math.isfinite(value) else []


def write_json(path: str | Path, data: Any) -> None:
    """Write `data` so that readers see the old file or the new one, never a part.

    Raises:
        ValueError: something in `data` has no place in JSON, NaN and infinities among it.
    """
    path = Path(path)
    try:
        text = json.dumps(plain(data), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would be committed
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not JSON; the message names the file and the line.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); restore or delete it") from error
