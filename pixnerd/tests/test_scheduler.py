import math

import numpy as np
import pytest
import torch

from pixnerd import PixNerdScheduler
from pixnerd.scheduler import adams_coefficients


def integrate(solver: str, steps: int, order: int = 2, shift: float = 1.0, field=None, x0: float = 1.0) -> float:
    """x(1) of x' = field(x, t) in float64."""
    scheduler = PixNerdScheduler(solver=solver, solver_order=order, shift=shift)
    scheduler.set_timesteps(steps)
    x = torch.full((1, 1, 1, 1), x0, dtype=torch.float64)
    for t, exact in zip(scheduler.timesteps, scheduler.grid, strict=False):
        x = scheduler.step(field(x, exact), t, x).prev_sample
    return x.item()


def test_the_grid_is_the_papers():
    scheduler = PixNerdScheduler()
    scheduler.set_timesteps(4)
    assert scheduler.grid == [0, 0.25, 0.5, 0.75, 1]
    assert scheduler.timesteps.tolist() == [0, 0.25, 0.5, 0.75] and scheduler.timesteps.dtype == torch.float32
    shifted = PixNerdScheduler(shift=3.0)
    shifted.set_timesteps(4)
    assert shifted.grid == pytest.approx([0, 1 / 10, 1 / 4, 1 / 2, 1])


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_euler_is_exact_for_a_constant_velocity(steps):
    assert integrate("euler", steps, field=lambda x, t: torch.full_like(x, 2.5)) == pytest.approx(3.5, abs=1e-12)


def test_adams_coefficients_of_uniform_grids_are_the_textbooks():
    grid = [0.0, 0.1, 0.2, 0.3, 0.4]
    assert adams_coefficients(grid, 1) == [1]
    assert adams_coefficients(grid, 2) == pytest.approx([3 / 2, -1 / 2])
    assert adams_coefficients(grid, 3) == pytest.approx([23 / 12, -16 / 12, 5 / 12])
    assert adams_coefficients(grid, 4) == pytest.approx([55 / 24, -59 / 24, 37 / 24, -9 / 24])


def test_adams_coefficients_on_any_grid_sum_to_one_and_integrate_polynomials():
    grid = np.cumsum([0, 0.05, 0.2, 0.03, 0.11]).tolist()
    for order in (1, 2, 3, 4):
        weights = adams_coefficients(grid, order)
        assert sum(weights) == pytest.approx(1)
        newest_first = grid[-2::-1][:order]
        for power in range(order):
            step = sum(c * t**power for c, t in zip(weights, newest_first, strict=True)) * (grid[-1] - grid[-2])
            assert step == pytest.approx((grid[-1] ** (power + 1) - grid[-2] ** (power + 1)) / (power + 1), rel=1e-10)
    ratio = (grid[4] - grid[3]) / (grid[3] - grid[2])
    assert adams_coefficients(grid, 2) == pytest.approx([1 + ratio / 2, -ratio / 2])


@pytest.mark.parametrize(("solver", "order", "least"), [("euler", 1, 0.9), ("adams", 2, 1.85)])
def test_solvers_converge_with_their_order(solver, order, least):
    def field(x, t):
        return x * math.cos(3 * t)

    exact = math.exp(math.sin(3) / 3)
    errors = [abs(integrate(solver, n, order, field=field) - exact) for n in (40, 80, 160)]
    for coarse, fine in zip(errors, errors[1:], strict=False):
        assert least <= math.log2(coarse / fine) <= order + 0.3


def test_the_first_adams_step_is_eulers_and_the_order_is_kept_to_the_end():
    scheduler = PixNerdScheduler(solver="adams", solver_order=3, shift=2.0)
    scheduler.set_timesteps(4)
    x = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    velocities = [torch.tensor(v, dtype=torch.float64).view(1, 1, 1, 1) for v in (1.0, -2.0, 0.5, 4.0)]
    for i, (v, t) in enumerate(zip(velocities, scheduler.timesteps, strict=True)):
        used = scheduler.step(v, t, x).velocity.item()
        order = min(i + 1, 3)
        weights = adams_coefficients(scheduler.grid[: i + 2], order)
        assert used == pytest.approx(sum(c * velocities[i - j].item() for j, c in enumerate(weights)))
        assert i > 0 or used == 1.0


def test_the_state_is_float32_whatever_the_network_answers():
    scheduler = PixNerdScheduler(solver="adams")
    scheduler.set_timesteps(2)
    answer = torch.ones(1, 3, 2, 2, dtype=torch.bfloat16)
    assert scheduler.step(answer, scheduler.timesteps[0], torch.zeros(1, 3, 2, 2)).prev_sample.dtype == torch.float32


@pytest.mark.parametrize("steps", [1, 8, 50])
def test_a_constant_x_prediction_is_reached_exactly(steps):
    scheduler = PixNerdScheduler(prediction_type="sample")
    scheduler.set_timesteps(steps)
    data, x = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    for t in scheduler.timesteps:
        x = scheduler.step(data, t, x).prev_sample
    assert torch.allclose(x, data, atol=1e-5)


# Guidance


@pytest.mark.parametrize("steps", [20, 40, 60, 100, 120, 240, 250, 950])
def test_a_step_that_starts_on_a_limit_is_not_guided(steps):
    scheduler = PixNerdScheduler(guidance_interval=(0.1, 0.75))
    scheduler.set_timesteps(steps)
    guided = [scheduler.is_guided(t) for t in scheduler.timesteps]
    expected = [10 * i > steps and 4 * i < 3 * steps for i in range(steps)]  # in whole numbers
    assert guided == expected


def test_euler_100_guides_89_steps_and_never_the_first():
    scheduler = PixNerdScheduler()
    scheduler.set_timesteps(100)
    assert sum(scheduler.is_guided(t) for t in scheduler.timesteps) == 89
    assert not scheduler.is_guided(torch.tensor(0.0), (0.0, 1.0))
    assert scheduler.is_guided(torch.tensor(0.01), (0.0, 1.0))


# Stochastic steps


def gaussian_velocity(x, t: float):
    """Exact velocity where data are N(0, 1/4): x_t is N(0, var)."""
    var = t**2 / 4 + (1 - t) ** 2
    return (t / 4 - (1 - t)) / var * x


@pytest.mark.parametrize("order", [3, 4])
def test_high_orders_start_with_euler_and_so_end_at_order_two(order):
    exact = math.exp(math.sin(3) / 3)
    errors = [abs(integrate("adams", n, order, field=lambda x, t: x * math.cos(3 * t)) - exact) for n in (640, 1280)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("solver", ["euler", "sde", "sde_preserve"])
def test_samples_of_a_gaussian_have_its_variance(solver):
    scheduler = PixNerdScheduler(solver=solver)
    scheduler.set_timesteps(200)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 1, 1, 1, generator=generator)
    for t in scheduler.timesteps:
        x = scheduler.step(gaussian_velocity(x, float(t)), t, x, generator=generator).prev_sample
    assert x.var().item() == pytest.approx(0.25, rel=0.04)


def test_stochastic_steps_by_hand():
    x, v, t, dt = torch.full((1, 1, 1, 1), 0.7), torch.full((1, 1, 1, 1), -1.3), 0.25, 0.25
    score = (t * -1.3 - 0.7) / (1 - t)
    w = 1 - t
    drift = {"sde": w, "sde_mean": w, "sde_preserve": w / 2}
    spread = {"sde": (2 * w * dt) ** 0.5, "sde_mean": 0.0, "sde_preserve": (w * dt) ** 0.5}
    for solver in drift:
        scheduler = PixNerdScheduler(solver=solver)
        scheduler.set_timesteps(4)
        scheduler.step(v, scheduler.timesteps[0], x, generator=torch.Generator().manual_seed(0))
        noise = torch.randn(1, 1, 1, 1, generator=torch.Generator().manual_seed(1)).item()
        out = scheduler.step(v, scheduler.timesteps[1], x, generator=torch.Generator().manual_seed(1)).prev_sample
        assert out.item() == pytest.approx(
            0.7 - 1.3 * dt + drift[solver] * score * dt + spread[solver] * noise, rel=1e-5
        )


def test_the_last_stochastic_step_is_plain_euler():
    scheduler = PixNerdScheduler(solver="sde")
    scheduler.set_timesteps(1)
    x, v = torch.randn(2, 3, 2, 2), torch.randn(2, 3, 2, 2)
    assert torch.equal(scheduler.step(v, scheduler.timesteps[0], x).prev_sample, x + v)


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "heun"}, "solver: expected one of euler, adams, sde, sde_mean, sde_preserve, got 'heun'"),
        ({"solver_order": 5}, "solver_order: expected 1 to 4, got 5"),
        ({"guidance_interval": (0.9, 0.1)}, "guidance_interval: expected"),
        ({"shift": 0.0}, "shift: expected a positive number, got 0.0"),
        ({"prediction_type": "epsilon"}, "prediction_type"),
    ],
)
def test_impossible_schedulers_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PixNerdScheduler(**options)


def test_steps_out_of_order_are_refused():
    scheduler, x = PixNerdScheduler(), torch.zeros(1, 3, 2, 2)
    with pytest.raises(ValueError, match="call set_timesteps"):
        scheduler.step(x, 0.0, x)
    scheduler.set_timesteps(2)
    with pytest.raises(ValueError, match=r"timestep: expected 0, got 0\.5"):
        scheduler.step(x, 0.5, x)
    for t in scheduler.timesteps:
        scheduler.step(x, t, x)
    with pytest.raises(ValueError, match="expected no further step"):
        scheduler.step(x, 1.0, x)
    with pytest.raises(ValueError, match="num_inference_steps: expected at least 1, got 0"):
        scheduler.set_timesteps(0)
