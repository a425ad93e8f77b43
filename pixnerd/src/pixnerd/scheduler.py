"""The sampler: Euler, Adams and stochastic steps from noise to data, with the interval in which guidance acts."""

from dataclasses import dataclass

import numpy as np
import torch
from diffusers import ConfigMixin, SchedulerMixin
from diffusers.configuration_utils import register_to_config
from diffusers.utils import BaseOutput
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

SOLVERS = ("euler", "adams", "sde", "sde_mean", "sde_preserve")


@dataclass
class PixNerdSchedulerOutput(BaseOutput):
    """`prev_sample`: the state after the step, nearer to data; `velocity`: the one that the step used."""

    prev_sample: Tensor
    velocity: Tensor


def adams_coefficients(times: list[float], order: int) -> list[float]:
    """Weights of the newest `order` velocities, newest first, in one Adams–Bashforth step on any grid.

    c_j = 1/Δ ∫ l_j(t) dt over the step, with l_j the Lagrange basis on the last times; they sum to one. Solved from
    Σ_j c_j u_j^m = 1 / (m + 1) for u = (t − t_i) / Δ and m = 0..order − 1, in float64.

    Args:
        times: ..., t_{i−1}, t_i, t_{i+1}: the grid up to the end of the step; at least `order` + 1 of them.
    """
    *past, now, end = times[-order - 1 :]
    u = (np.array([now, *past[::-1]], dtype=np.float64) - now) / (end - now)
    moments = np.vander(u, increasing=True).T
    return np.linalg.solve(moments, 1 / np.arange(1, order + 1)).tolist()


class PixNerdScheduler(SchedulerMixin, ConfigMixin):
    """Integrates dx = v dt from t = 0 (noise) to t = 1 (data).

    diffusers' flow-matching schedulers count time the other way and in thousandths: they cannot take its place. The
    grid is linspace(0, 1 − 1/N, N) and 1, then shifted. The state is at least float32 whatever the network's dtype,
    and the coefficients are Python floats, so nothing becomes float64 on the device.

    Args:
        solver: `"euler"`; `"adams"`, multistep of `solver_order`; or one of the stochastic steps `"sde"`, `"sde_mean"`,
            `"sde_preserve"` with the score (t v − x) / (1 − t), whose last step is always plain Euler.
        solver_order: order of Adams, 1 to 4; the first steps use what there is. Order 4 is unstable with few steps.
        shift: time shift (1 for class-conditional models).
        guidance_interval: guidance acts at times strictly inside; so the step at t = 0 is never guided.
        prediction_type: `"velocity"` or `"sample"`, what the network was trained to predict.
    """

    order = 1  # evaluations a step, in diffusers' sense

    @register_to_config
    def __init__(
        self,
        solver: str = "euler",
        solver_order: int = 2,
        shift: float = 1.0,
        guidance_interval: tuple[float, float] = (0.1, 1.0),
        prediction_type: str = "velocity",
    ) -> None:
        if solver not in SOLVERS:
            raise ValueError(f"solver: expected one of {', '.join(SOLVERS)}, got {solver!r}")
        if not 1 <= solver_order <= 4:
            raise ValueError(f"solver_order: expected 1 to 4, got {solver_order}")
        if shift <= 0:
            raise ValueError(f"shift: expected a positive number, got {shift}")
        if prediction_type not in ("velocity", "sample"):
            raise ValueError(f'prediction_type: expected "velocity" or "sample", got {prediction_type!r}')
        if not guidance_interval[0] <= guidance_interval[1]:
            raise ValueError(f"guidance_interval: expected (low, high), got {tuple(guidance_interval)}")
        self.timesteps: Tensor | None = None

    def set_timesteps(self, num_inference_steps: int, device: str | torch.device | None = None) -> None:
        """Lay the grid and forget the history. `timesteps` are the N times at which the network is asked, float32."""
        if num_inference_steps < 1:
            raise ValueError(f"num_inference_steps: expected at least 1, got {num_inference_steps}")
        n = num_inference_steps
        tau = np.append(np.linspace(0, 1 - 1 / n, n), 1.0)
        self.grid: list[float] = (tau / (tau + (1 - tau) * self.config.shift)).tolist()
        self.timesteps = torch.tensor(self.grid[:-1], dtype=torch.float32, device=device)
        self.num_inference_steps = n
        self._step_index = 0
        self._velocities: list[Tensor] = []

    def is_guided(self, timestep: float | Tensor, interval: tuple[float, float] | None = None) -> bool:
        """Whether guidance acts at this time. Compared in float32, where a grid point on a limit equals it."""
        low, high = interval or self.config.guidance_interval
        return bool(np.float32(low) < np.float32(float(timestep)) < np.float32(high))

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        generator: torch.Generator | list[torch.Generator] | None = None,
        return_dict: bool = True,
    ) -> PixNerdSchedulerOutput | tuple[Tensor]:
        """One step of the grid; steps are taken in order after `set_timesteps`.

        Args:
            model_output: the network's answer, after guidance, (batch, channels, height, width).
            timestep: the time of this step, an entry of `timesteps`.
            sample: the state x at that time.
            generator: noise of the stochastic solvers.

        Raises:
            ValueError: without `set_timesteps`, or out of order.
        """
        if self.timesteps is None:
            raise ValueError("timestep: call set_timesteps before step")
        i = self._step_index
        if i >= self.num_inference_steps or np.float32(float(timestep)) != np.float32(self.grid[i]):
            expected = f"{self.grid[i]:.6g}" if i < self.num_inference_steps else "no further step"
            raise ValueError(
                f"timestep: expected {expected}, got {float(timestep):.6g} (call set_timesteps to restart)"
            )
        t, dt = self.grid[i], self.grid[i + 1] - self.grid[i]
        wide = torch.promote_types(sample.dtype, torch.float32)
        x, v = sample.to(wide), model_output.to(wide)
        if self.config.prediction_type == "sample":
            v = (v - x) / (1 - t)  # t < 1 at the start of every step, and the last one lands on the prediction

        if self.config.solver == "adams":
            self._velocities = [v, *self._velocities][: self.config.solver_order]  # newest first, after guidance
            weights = adams_coefficients(self.grid[: i + 2], len(self._velocities))
            v = sum(c * past for c, past in zip(weights, self._velocities, strict=True))
        x = x + v * dt
        if self.config.solver.startswith("sde") and i + 1 < self.num_inference_steps:
            w = 1 - t
            score = (t * v - sample.to(wide)) / (1 - t)
            diffusion = 0.5 * w if self.config.solver == "sde_preserve" else w
            x = x + diffusion * score * dt
            if self.config.solver != "sde_mean":
                noise = randn_tensor(x.shape, generator=generator, device=x.device, dtype=wide)
                x = x + (2 * diffusion * dt) ** 0.5 * noise
        self._step_index += 1
        return PixNerdSchedulerOutput(x, v) if return_dict else (x,)
