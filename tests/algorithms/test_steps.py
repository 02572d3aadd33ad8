"""What a step of an update can do, on algorithms of a few numbers whose moves can be foreseen."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from pydantic import Field
from torch import Tensor, nn

from rl_training.algorithms.base.algorithm import Algorithm, Step
from rl_training.algorithms.base.hyper import Hyper
from rl_training.algorithms.base.optimizers import Optimizer
from rl_training.config import TrainConfig
from rl_training.core.batches import Batch, Metrics, Transitions
from rl_training.core.options import options
from rl_training.models import Model, Multiplier
from rl_training.runtime import ScheduleSpec, train
from rl_training.runtime.controls import ControlOptions
from rl_training.storage import read_metrics

RATE = 0.01
BATCH: Batch = {"obs": torch.zeros(4, 1)}


@options
class ToyHyper(Hyper):
    """Numbers that steps refer to by name."""

    learning_rate: float = Field(default=RATE, gt=0, description="step size of Adam")
    critic_learning_rate: float | None = Field(default=None, gt=0, description="step size of the critic, if its own")
    critic_weight_decay: float = Field(default=0.0, ge=0, description="weight decay of the critic")
    tau: float = Field(default=0.5, gt=0, le=1, description="rate at which targets follow")
    twice: int = Field(default=2, ge=1, description="a number of steps")
    uses_critic: bool = Field(default=True, description="whether the critic is trained")


class Number(nn.Module):
    """One number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))


class ToyModel(Model):
    """Two numbers and a multiplier."""

    def __init__(self, *, obs_dim: int = 1, action_dim: int = 1) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = Number(1.0)
        self.critic = Number(2.0)
        self.lagrange = Multiplier(bounds=(-0.015, 0.02))


class Toy(Algorithm):
    """Losses with a slope of one: Adam moves such a number by its step size, down, on every step."""

    hyper_class = ToyHyper
    model_class = ToyModel
    steps: tuple[Step, ...] = (Step("actor"),)
    reads = Transitions(("obs",))

    def actor_loss(self, batch: Batch) -> Metrics:
        return {"actor_loss": self.model.actor.value + batch["obs"].mean()}

    def critic_loss(self, batch: Batch) -> Metrics:
        return {"critic_loss": self.model.critic.value + batch["obs"].mean()}


def _toy(*steps: Step, base: type[Algorithm] = Toy, **hyper: Any) -> Any:
    """A toy with these steps."""
    cls = type("Stepped", (base,), {"steps": steps})
    return cls(ToyModel(), **hyper)


def _numbers(algorithm: Any, *names: str) -> list[float]:
    return [getattr(algorithm.model, name).value.item() for name in names]


def test_a_step_trains_the_child_of_its_name_and_no_other() -> None:
    algorithm = _toy(Step("actor"))
    metrics = algorithm.update(BATCH).metrics
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([1 - RATE, 2.0])
    assert metrics.keys() == {"actor_loss", "grad_norm_actor"}
    assert float(metrics["grad_norm_actor"]) == pytest.approx(1.0)


@pytest.mark.parametrize("every", [2, "twice"])
def test_a_step_may_be_due_on_some_updates_only(every: int | str) -> None:
    algorithm = _toy(Step("actor", every=every), Step("critic"))
    moved = ["actor_loss" in algorithm.update(BATCH).metrics for _ in range(5)]
    assert moved == [False, True, False, True, False]
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([1 - 2 * RATE, 2 - 5 * RATE])


@pytest.mark.parametrize("repeat", [2, "twice"])
def test_a_step_may_be_taken_several_times_in_one_update(repeat: int | str) -> None:
    algorithm = _toy(Step("actor", repeat=repeat), Step("critic"))
    metrics = algorithm.update(BATCH).metrics
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([1 - 2 * RATE, 2 - RATE])
    # What is reported is the last of them, and it is one update all the same.
    assert float(metrics["actor_loss"]) == pytest.approx(1 - RATE)
    assert (algorithm.updates, int(algorithm.clock)) == (1, 1)
    assert float(algorithm.optimizers["actor"].count) == 2


def test_a_repeated_step_is_taken_anew_each_time() -> None:
    # The second of two steps per update has the gradient of the point that the first has reached.
    algorithm = _toy(Step("critic", repeat=3), base=_Quadratic)
    reference = nn.Parameter(torch.tensor(2.0))
    adam = torch.optim.Adam([reference], lr=RATE)
    algorithm.update(BATCH)
    for _ in range(3):
        adam.zero_grad()
        torch.autograd.backward(0.5 * (reference - 3).square())
        adam.step()
    assert _numbers(algorithm, "critic") == pytest.approx([reference.item()], rel=1e-6)


class _Quadratic(Toy):
    def critic_loss(self, batch: Batch) -> Metrics:
        return {"critic_loss": 0.5 * (self.model.critic.value - 3).square() + batch["obs"].mean()}


@pytest.mark.parametrize(("tau", "rate"), [(0.25, 0.25), (1.0, 1.0), ("tau", 0.5)])
def test_lagged_copies_follow_by_a_rate_given_as_number_or_name(tau: float | str, rate: float) -> None:
    algorithm = _toy(Step("actor", tracks=("actor", "critic"), tau=tau))
    with torch.no_grad():
        algorithm.target.critic.value.fill_(6.0)
    algorithm.update(BATCH)
    # After the step: from 1 towards 1 - RATE, and from 6 towards 2.
    assert float(algorithm.target.actor.value) == pytest.approx(1 - rate * RATE)
    assert float(algorithm.target.critic.value) == pytest.approx(6 - 4 * rate)


def test_lagged_copies_start_equal_and_are_not_trained() -> None:
    algorithm = _toy(Step("actor", tracks=("critic",)))
    assert float(algorithm.target.critic.value) == 2.0
    assert not algorithm.target.critic.value.requires_grad
    assert not hasattr(algorithm.target, "actor")


@pytest.mark.parametrize("interval", [2, "twice"])
def test_lagged_copies_may_move_on_some_updates_only(interval: int | str) -> None:
    algorithm = _toy(Step("actor", tracks=("actor",), tau=1.0, track_every=interval))
    lagged = []
    for _ in range(5):
        algorithm.update(BATCH)
        lagged.append(float(algorithm.target.actor.value))
    assert lagged == pytest.approx([1.0, 1 - 2 * RATE, 1 - 2 * RATE, 1 - 4 * RATE, 1 - 4 * RATE])


def test_lagged_copies_move_only_when_their_step_is_due_too() -> None:
    # The step is due on updates 2, 4, 6; of these, every third update is 6 alone.
    algorithm = _toy(Step("actor", every=2, tracks=("actor",), tau=1.0, track_every=3))
    lagged = []
    for _ in range(6):
        algorithm.update(BATCH)
        lagged.append(float(algorithm.target.actor.value))
    assert lagged == pytest.approx([1.0] * 5 + [1 - 3 * RATE])


def test_lagged_copies_move_once_after_a_step_that_is_repeated() -> None:
    algorithm = _toy(Step("actor", repeat=2, tracks=("actor",), tau=0.5))
    algorithm.update(BATCH)
    assert float(algorithm.target.actor.value) == pytest.approx(1 - 0.5 * 2 * RATE)


class _Remembering(Toy):
    """Keeps a running mean of the observations."""

    steps = (Step("actor", updates_buffers=("memory",)),)
    memory: Tensor

    def __init__(self, model: Model, **hyper: Any) -> None:
        super().__init__(model, **hyper)
        self.register_buffer("memory", torch.tensor(0.0))

    def actor_loss(self, batch: Batch) -> Metrics:
        return super().actor_loss(batch) | {"memory": 0.5 * self.memory + 0.5 * batch["obs"].mean()}


def test_a_buffer_takes_the_value_of_the_metric_of_its_name() -> None:
    algorithm = _Remembering(ToyModel())
    metrics = algorithm.update({"obs": torch.full((4, 1), 8.0)}).metrics
    assert (float(algorithm.memory), float(metrics["memory"])) == (4.0, 4.0)
    algorithm.update({"obs": torch.zeros(4, 1)})
    # 0.5 * 4 + 0.5 * 0: what the first update left was remembered.
    assert float(algorithm.memory) == 2.0
    assert not algorithm.memory.requires_grad


def test_what_a_buffer_carries_is_part_of_the_state_and_not_changed_by_losses() -> None:
    algorithm, fresh = _Remembering(ToyModel()), _Remembering(ToyModel())
    algorithm.update({"obs": torch.full((4, 1), 8.0)})
    algorithm.losses({"obs": torch.full((4, 1), 100.0)})
    assert float(algorithm.memory) == 4.0
    fresh.load_state_dict(algorithm.state_dict())
    assert float(fresh.memory) == 4.0


class _Together(Toy):
    """The actor's loss depends on the critic, whose own loss is another."""

    steps = (Step("joint", trains=("critic", "actor")),)

    def joint_loss(self, batch: Batch) -> Metrics:
        actor, critic = self.model.actor.value, self.model.critic.value
        return {"actor_loss": actor * critic.square(), "critic_loss": 0.5 * (critic - 5).square() * (1 + 0 * actor)}


@pytest.mark.parametrize("order", [("critic", "actor"), ("actor", "critic")])
def test_children_trained_together_move_by_their_own_losses_at_the_same_point(order: tuple[str, str]) -> None:
    algorithm: Any = type("Ordered", (_Together,), {"steps": (Step("joint", trains=order),)})(ToyModel())
    actor, critic = (nn.Parameter(torch.tensor(value)) for value in (1.0, 2.0))
    adam = torch.optim.Adam([actor, critic], lr=RATE)
    for _ in range(5):
        metrics = algorithm.update(BATCH).metrics
        # d / d actor of actor * critic^2 is critic^2; the critic's own is critic - 5: neither sees the other's.
        actor.grad, critic.grad = critic.detach().square(), critic.detach() - 5
        assert float(metrics["grad_norm_actor"]) == pytest.approx(actor.grad.item(), rel=1e-6)
        assert float(metrics["grad_norm_critic"]) == pytest.approx(-critic.grad.item(), rel=1e-6)
        adam.step()
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([actor.item(), critic.item()], rel=1e-6)


def test_a_loss_does_not_move_a_child_that_it_only_depends_on() -> None:
    algorithm = _toy(Step("joint", trains=("actor",)), base=_Together)
    metrics = algorithm.update(BATCH).metrics
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([1 - RATE, 2.0])
    assert "grad_norm_critic" not in metrics
    # It is reported all the same.
    assert float(metrics["critic_loss"]) == pytest.approx(4.5)


def test_metrics_of_an_update_have_no_graph() -> None:
    algorithm = _Together(ToyModel())
    assert not any(value.requires_grad for value in algorithm.update(BATCH).metrics.values())
    assert not any(value.requires_grad for value in algorithm.losses(BATCH).values())


class _Warming(Toy):
    """A loss that changes with the number of updates."""

    def actor_loss(self, batch: Batch) -> Metrics:
        slope = torch.where(self.clock < 2, 1.0, -1.0)
        return {"actor_loss": slope * self.model.actor.value, "clock": self.clock.to(torch.float32)}


def test_the_clock_counts_the_updates_before() -> None:
    algorithm = _Warming(ToyModel())
    assert int(algorithm.clock) == 0
    seen = [float(algorithm.update(BATCH).metrics["clock"]) for _ in range(3)]
    assert seen == [0.0, 1.0, 2.0]
    assert (algorithm.updates, int(algorithm.clock)) == (3, 3)


def test_the_clock_is_set_to_the_updates_of_a_loaded_state() -> None:
    algorithm, fresh = _Warming(ToyModel()), _Warming(ToyModel())
    for _ in range(2):
        algorithm.update(BATCH)
    state = copy.deepcopy(algorithm.state_dict())
    assert "clock" not in state
    fresh.load_state_dict(state)
    assert (fresh.updates, int(fresh.clock)) == (2, 2)
    # The third update is the first with the other slope, for both.
    for _ in range(2):
        algorithm.update(BATCH)
        fresh.update(BATCH)
    assert _numbers(fresh, "actor") == _numbers(algorithm, "actor")
    # A state from before takes the clock back.
    algorithm.load_state_dict(state)
    assert int(algorithm.clock) == 2


def test_losses_without_a_step_do_not_advance_the_clock() -> None:
    algorithm = _Warming(ToyModel())
    algorithm.losses(BATCH)
    assert (algorithm.updates, int(algorithm.clock)) == (0, 0)


class _Optional(Toy):
    """Its hyper-parameters decide what it trains and needs."""

    steps = (Step("actor"), Step("critic"))

    @classmethod
    def make_steps(cls, hyper: Any) -> tuple[Step, ...]:
        return cls.steps if hyper.uses_critic else cls.steps[:1]

    @classmethod
    def make_reads(cls, hyper: Any) -> Transitions:
        return Transitions(("obs", "rewards") if hyper.uses_critic else ("obs",))


def test_hyper_parameters_may_decide_about_steps_and_needs() -> None:
    with_critic, without = _Optional(ToyModel()), _Optional(ToyModel(), uses_critic=False)
    assert set(with_critic.optimizers) == {"actor", "critic"}
    assert set(without.optimizers) == {"actor"}
    assert (with_critic.needs, without.needs) == (("obs", "rewards"), ("obs",))
    assert without.update(BATCH).metrics.keys() == {"actor_loss", "grad_norm_actor"}
    with pytest.raises(ValueError, match="needs 'rewards' in a batch, which has obs"):
        with_critic.update(BATCH)
    with_critic.update(BATCH | {"rewards": torch.zeros(4)})
    # The class itself stays what it was.
    assert _Optional.steps == (Step("actor"), Step("critic"))
    assert _Optional.needs == ("obs",)


def test_a_step_that_names_what_the_model_lacks_is_refused() -> None:
    for step in (Step("actor", trains=("acter",)), Step("actor", tracks=("acter",))):
        with pytest.raises(
            ValueError, match="step 'actor' of Stepped names 'acter', which ToyModel lacks; did you mean 'actor'"
        ):
            _toy(step)


def test_weight_decay_is_that_of_torchs_adam_and_of_one_child_only() -> None:
    algorithm = _toy(Step("actor"), Step("critic"), base=_Quadratic, critic_weight_decay=0.3)
    reference = nn.Parameter(torch.tensor(2.0))
    adam = torch.optim.Adam([reference], lr=RATE, weight_decay=0.3)
    for _ in range(20):
        algorithm.update(BATCH)
        adam.zero_grad()
        torch.autograd.backward(0.5 * (reference - 3).square())
        adam.step()
    assert _numbers(algorithm, "critic") == pytest.approx([reference.item()], rel=1e-6)
    assert _numbers(algorithm, "actor") == pytest.approx([1 - 20 * RATE], rel=1e-5)
    plain = _toy(Step("critic"), base=_Quadratic)
    plain.update(BATCH)
    assert plain.optimizers["critic"].weight_decay == 0.0


class _Multiplied(Toy):
    """Pushes the multiplier's logarithm by a constant slope."""

    steps = (Step("lagrange"),)

    def lagrange_loss(self, batch: Batch) -> Metrics:
        return {"lagrange_loss": -batch["obs"].mean() * self.model.lagrange.log_value}


@pytest.mark.parametrize(("slope", "reached"), [(1.0, [0.01, 0.02, 0.02]), (-1.0, [-0.01, -0.015, -0.015])])
def test_a_multiplier_is_brought_back_into_its_bounds_after_each_step(slope: float, reached: list[float]) -> None:
    algorithm = _Multiplied(ToyModel())
    seen = []
    for _ in range(3):
        algorithm.update({"obs": torch.full((4, 1), slope)})
        seen.append(algorithm.model.lagrange.log_value.item())
    assert seen == pytest.approx(reached, rel=1e-5)
    assert algorithm.model.lagrange().item() == pytest.approx(math.exp(reached[-1]))


def test_a_multiplier_without_bounds_goes_where_it_is_pushed() -> None:
    multiplier = Multiplier(1e3)
    multiplier.constrain()
    assert multiplier.log_value.item() == 1e3


def test_a_child_may_have_a_factor_of_its_own_on_its_learning_rate() -> None:
    algorithm = _toy(Step("actor"), Step("critic"), critic_learning_rate=0.02)
    algorithm.set_learning_rate_multiplier(0.5, actor=0.1)
    algorithm.update(BATCH)
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([1 - 0.1 * RATE, 2 - 0.5 * 0.02])
    # Relative to what was configured, not to what was set last; who has no factor gets the common one.
    algorithm.set_learning_rate_multiplier(1.0)
    assert algorithm.optimizers["actor"].learning_rate == pytest.approx(RATE)
    assert algorithm.optimizers["critic"].learning_rate == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"multiplier": ScheduleSpec()}),
        (
            {"actor_learning_rate_schedule": "cosine"},
            {"multiplier": ScheduleSpec(), "actor": ScheduleSpec(kind="cosine")},
        ),
        (
            {"learning_rate_schedule": "linear", "actor_learning_rate_schedule": {"kind": "cosine", "warmup": 3}},
            {"multiplier": ScheduleSpec(kind="linear"), "actor": ScheduleSpec(kind="cosine", warmup=3)},
        ),
        (
            {"actor_learning_rate_schedule": "constant", "warmup_steps": 5},
            {"multiplier": ScheduleSpec(warmup=5), "actor": ScheduleSpec(warmup=5)},
        ),
    ],
)
def test_the_actor_may_have_a_schedule_of_its_own(given: dict[str, Any], expected: dict[str, ScheduleSpec]) -> None:
    assert ControlOptions(**given).schedules() == expected


def test_a_run_of_iql_lowers_the_actors_rate_along_a_cosine_and_no_others(
    tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[list[float]] = []
    update = Algorithm.update

    def record(self: Algorithm, batch: Batch) -> Any:
        used.append([self.optimizers[child].learning_rate for child in ("actor", "critic", "value")])
        return update(self, batch)

    monkeypatch.setattr(Algorithm, "update", record)
    config = tiny_config("iql", "log_interval=1", "algo_kwargs.eval_interval=null", "algo_kwargs.learning_rate=0.002")
    rows = [row for row in read_metrics(train(config).run_dir) if row["kind"] == "train"]
    # Update n is step n - 1 of 20.
    cosine = [0.002 * 0.5 * (1 + math.cos(math.pi * step / 20)) for step in range(20)]
    assert [row["actor_learning_rate"] for row in rows] == pytest.approx(cosine)
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.002] * 20)
    assert not {"critic_learning_rate", "value_learning_rate"} & rows[0].keys()
    # What was logged is what was used.
    assert used == [pytest.approx([rate, 0.002, 0.002]) for rate in cosine]


def test_a_schedule_of_the_actors_own_stands_beside_one_for_all(tiny_config: Callable[..., TrainConfig]) -> None:
    config = tiny_config(
        "td3_bc",
        "log_interval=1",
        "total_timesteps=4",
        "algo_kwargs.eval_interval=null",
        "algo_kwargs.learning_rate=0.1",
        "algo_kwargs.actor_learning_rate=0.2",
        "algo_kwargs.learning_rate_schedule=linear",
        "algo_kwargs.actor_learning_rate_schedule=constant",
    )
    rows = [row for row in read_metrics(train(config).run_dir) if row["kind"] == "train"]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert [row["actor_learning_rate"] for row in rows] == pytest.approx([0.2] * 4)


class _Shared(Toy):
    """Two numbers under one loss."""

    def joint_loss(self, batch: Batch) -> Metrics:
        actor, critic = self.model.actor.value, self.model.critic.value
        return {"joint_loss": 3 * actor + 4 * critic + batch["obs"].mean()}


def test_children_may_share_the_loss_of_the_step() -> None:
    algorithm = _toy(Step("joint", trains=("actor", "critic"), shared=True), base=_Shared)
    metrics = algorithm.update(BATCH).metrics
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([1 - RATE, 2 - RATE])
    # One norm for both, by which both are clipped: 5 = |(3, 4)|.
    assert metrics.keys() == {"joint_loss", "grad_norm_joint"}
    assert float(metrics["grad_norm_joint"]) == pytest.approx(5.0)


def test_a_shared_loss_takes_one_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    grad = Mock(wraps=torch.autograd.grad)
    monkeypatch.setattr(torch.autograd, "grad", grad)
    _toy(Step("joint", trains=("actor", "critic"), shared=True), base=_Shared).update(BATCH)
    assert grad.call_count == 1


def test_gradients_of_a_shared_loss_are_clipped_by_their_common_norm() -> None:
    class Plain(Optimizer):
        """Gradient descent."""

        def __init__(self, module: nn.Module, *, weight_decay: float = 0.0, **options: Any) -> None:
            super().__init__(module, **options)

        def move(self, gradients: list[Tensor]) -> None:
            torch._foreach_add_(self._params, gradients, alpha=-self.learning_rate)

    step = Step("joint", trains=("actor", "critic"), shared=True, optimizer=Plain)
    algorithm = _toy(step, base=_Shared, max_grad_norm=2.5)
    algorithm.update(BATCH)
    # Halved: the norm is 5.
    assert _numbers(algorithm, "actor", "critic") == pytest.approx([1 - 1.5 * RATE, 2 - 2 * RATE], rel=1e-6)


def test_a_child_without_parameters_is_not_trained() -> None:
    class Fixed(ToyModel):
        """A multiplier that is not learned."""

        def __init__(self) -> None:
            super().__init__()
            self.lagrange = Multiplier(0.5, learned=False)

    both, alone = Step("actor", trains=("actor", "lagrange")), Step("lagrange")
    algorithm = type("Stepped", (Toy,), {"steps": (both, alone)})(Fixed())
    assert [step.children for step in algorithm.steps] == [("actor",)]
    assert list(algorithm.optimizers) == ["actor"]
    algorithm.update(BATCH)
    assert float(algorithm.model.lagrange()) == pytest.approx(math.exp(0.5))


def test_moments_are_kept_for_parameters_only() -> None:
    class Counting(ToyModel):
        """A critic with a buffer, such as running statistics."""

        def __init__(self) -> None:
            super().__init__()
            self.critic.register_buffer("seen", torch.tensor(3.0))

    algorithm = type("Stepped", (Toy,), {"steps": (Step("critic"),)})(Counting())
    assert not [name for name in algorithm.optimizers["critic"].state_dict() if "seen" in name]
    assert float(algorithm.model.critic.seen) == 3


def test_hyper_parameters_and_model_are_read_from_annotations() -> None:
    assert (Annotated.hyper_class, Annotated.model_class) == (ToyHyper, ToyModel)


class Annotated(Algorithm):
    """Says by annotation what it is made of."""

    hyper: ToyHyper
    model: ToyModel
    steps = ()


def test_a_class_that_declares_fields_in_the_old_way_is_told_how_to_say_it() -> None:
    with pytest.raises(TypeError, match=r"Old declares needs; say reads = Transitions"):
        type("Old", (Algorithm,), {"needs": ("obs",)})
