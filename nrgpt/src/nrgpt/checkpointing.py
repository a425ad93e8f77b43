"""The plumbing of a training script: checkpoints that survive a kill, signals, and the state of chance.

Every project that trains carries this module to the letter. Tensors go through torch.distributed.checkpoint, so the
same code saves one process, replicas and shards, and a run may go on with another number of processes.
"""

import json
import os
import random
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Checkpoints:
    """Numbered checkpoints in a folder, `step-00001000` and so on.

    A checkpoint is written beside its place, synced and renamed; only then are older ones removed. So whenever the
    process dies, the newest folder with a number is whole.

    Args:
        folder: where they lie.
        keep: how many to keep.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep: expected at least 1, got {keep}")
        self.folder, self.keep = Path(folder), keep

    def all(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        return sorted(path for path in self.folder.glob("step-*") if (path / "state.json").is_file())

    def find(self, resume: str | None, overwrite: bool = False) -> Path | None:
        """The checkpoint that `resume` names: None, `"latest"` (None where there is none yet), or a path.

        Raises:
            ValueError: a new run would mix its checkpoints with those of an earlier one; `overwrite` deletes them.
            OSError: the path holds no checkpoint.
        """
        found = self.all()
        if resume is None and found and not overwrite:
            raise ValueError(
                f"output_dir: {self.folder} holds checkpoints of an earlier run; go on with --resume latest, choose "
                "another folder, or start anew with --overwrite true"
            )
        if resume is None:
            if _rank() == 0:
                for path in found:
                    shutil.rmtree(path)
            return None
        if resume == "latest":
            return found[-1] if found else None
        path = Path(resume)
        if not (path / "state.json").is_file():
            raise OSError(f"resume: expected latest or a folder step-…, found no checkpoint in {path}")
        return path

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, info: dict[str, Any] | None = None, **more
    ) -> Path:
        """Write the state after `step`; called by every process.

        Args:
            info: what else to remember, in JSON.
            more: objects with `state_dict` and `load_state_dict`.
        """
        final = self.folder / f"step-{step:08d}"
        partial = self.folder / f".writing-{final.name}"
        if _rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        _barrier()
        _exchange(dcp.save, {"training": _Training(model, optimizer), **more}, partial)
        torch.save(random_state(), partial / f"random-{_rank()}.pt")
        _barrier()
        if _rank() == 0:
            state = {"step": step, "processes": _world(), **(info or {})}
            (partial / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
            for path in [*partial.rglob("*"), partial]:
                _sync(path)
            replaced = self.folder / f".replaced-{final.name}"
            if final.exists():
                final.rename(replaced)
            partial.rename(final)
            _sync(self.folder)
            found = self.all()
            later = [path for path in found if path.name > final.name]  # of the run that this one branched from
            for old in [replaced, *later, *[path for path in found if path not in later][: -self.keep]]:
                shutil.rmtree(old, ignore_errors=True)
        _barrier()
        return final

    def load(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **more) -> dict[str, Any]:
        """Put the state of checkpoint `path` into the objects; returns its step and info. Only load what you trust.

        Raises:
            OSError: the checkpoint is damaged, or of another model.
        """
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            _exchange(dcp.load, {"training": _Training(model, optimizer), **more}, path)
            chance = path / f"random-{_rank()}.pt"
            if state["processes"] == _world():
                set_random_state(torch.load(chance, weights_only=False))
        except (Exception, CheckpointException) as error:  # pickle, zip, shape and key errors, each of its own kind
            reason = (str(error).strip().splitlines() or [""])[-1].strip()
            reason = f"{reason or type(error).__name__}; an earlier one can be resumed by its folder"
            raise OSError(f"resume: {path} is damaged or of another model ({reason})") from error
        return state


class _Training:
    """Model and optimizer as one object for torch.distributed.checkpoint, by the names of the bare parameters."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


class StopSignal:
    """Inside the `with`, SIGINT and SIGTERM are noted in `received`, so that the loop can save and leave.

    A second Ctrl-C interrupts at once; further SIGTERMs are ignored, since launchers and schedulers send several.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "StopSignal":
        self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number


def leave_group(worker: int) -> None:
    """For `worker_init_fn`: a signal to the process group must not end the data workers before the run has saved."""
    os.setpgid(0, 0)


def random_state() -> dict[str, Any]:
    """State of the global generators of Python, NumPy and PyTorch."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """The inverse of `random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _exchange(function, objects: dict[str, Any], path: Path) -> None:
    """`dcp.save` or `dcp.load`, without its warning that a single process is one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        function(objects, checkpoint_id=path, no_dist=not _is_distributed())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _is_distributed() else 0


def _world() -> int:
    return dist.get_world_size() if _is_distributed() else 1


def _barrier() -> None:
    if _is_distributed():
        dist.barrier()
