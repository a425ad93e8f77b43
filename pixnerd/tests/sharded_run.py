"""Two processes with FSDP 2 on CPUs (gloo): a run that is saved in the middle, and one that goes on from there.

Called by test_training.py through torchrun; accelerate itself shards on GPUs only, so this shards as it does.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pixnerd import PixNerdTransformer2DModel
from pixnerd.checkpointing import Checkpoints
from pixnerd.ema import EMA
from pixnerd.objective import Objective


def build(mesh=None):
    torch.manual_seed(0)
    size = dict(sample_size=16, patch_size=4, hidden_size=24, num_attention_heads=2, num_layers=2, head_layers=1)
    transformer = PixNerdTransformer2DModel(head_channels=8, num_classes=3, **size)
    torch.nn.init.normal_(transformer.head.proj.weight)
    objective = Objective(transformer)
    if mesh is not None:
        for block in [*transformer.blocks, *transformer.head.blocks]:
            fully_shard(block, mesh=mesh)
        fully_shard(objective, mesh=mesh)
    return objective, torch.optim.AdamW(objective.parameters(), lr=1e-2), EMA(objective.transformer, decay=0.9)


def train(objective, optimizer, ema, steps: range, places: slice) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x, noise = (torch.randn(4, 3, 16, 16, generator=generator)[places] for _ in range(2))
        t, labels = torch.rand(4, generator=generator)[places], torch.tensor([0, 1, 2, 3])[places]
        objective(x, labels, t, noise)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(step + 1)


def whole(state: dict) -> dict:
    return {k: (v.full_tensor() if hasattr(v, "full_tensor") else v).detach().clone() for k, v in state.items()}


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    mine = slice(2 * rank, 2 * rank + 2)
    checkpoints = Checkpoints(folder / "checkpoints")

    objective, optimizer, ema = build(mesh)
    assert all(type(p).__name__ == "DTensor" or hasattr(p, "full_tensor") for p in objective.parameters())
    train(objective, optimizer, ema, range(2), mine)
    saved = checkpoints.save(2, objective, optimizer, ema=ema)
    train(objective, optimizer, ema, range(2, 4), mine)

    again, again_optimizer, again_ema = build(mesh)
    assert checkpoints.load(saved, again, again_optimizer, ema=again_ema)["step"] == 2
    train(again, again_optimizer, again_ema, range(2, 4), mine)
    for a, b in ((objective.state_dict(), again.state_dict()), (ema.shadow, again_ema.shadow)):
        a, b = whole(a), whole(b)
        assert all(torch.equal(a[name], b[name]) for name in a)

    plain, plain_optimizer, plain_ema = build()
    train(plain, plain_optimizer, plain_ema, range(4), slice(0, 4))
    for a, b in ((objective.state_dict(), plain.state_dict()), (ema.shadow, plain_ema.shadow)):
        a = whole(a)
        assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)

    (folder / f"passed-{rank}").touch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
