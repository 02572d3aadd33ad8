"""What every registered algorithm must do; a new one is covered the moment it is registered."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.algorithms import ALGORITHMS, Algorithm
from rl_training.algorithms.base import Step
from rl_training.config import TrainConfig
from rl_training.core.batches import Batch, Rollout
from rl_training.core.errors import ConfigError
from rl_training.core.options import bind
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.experiment import get_algorithm_spec, list_algorithms
from rl_training.runtime import TrainResult, bind_options, option_groups
from rl_training.storage import load_checkpoint, policy_files, read_metrics

NAMES = [spec.name for spec in list_algorithms()]
SPACES = SpaceSpec.vector(4, BoxActions((-1.0, -1.0), (1.0, 1.0)))
UPDATES = 4
"""Enough for a step that is due on every second update to happen twice."""

DOUBLE = {"crossq"}
"""Algorithms compared in float64, since Adam turns gradients that are all rounding into steps: those of a bias before a
normalisation."""

STEPS = {
    "bc": "actor",
    "awac": "critic, actor -> critic",
    "awr": "value -> value by 1.0 every recompute_interval, actor",
    "bcq": "vae, critic, actor -> actor+critic",
    "bear": "vae, critic, actor+lagrange -> critic",
    "cql": "temperature+actor+critic -> critic",
    "cal_ql": "temperature+actor+critic+lagrange -> critic",
    "crossq": "critic, actor+temperature on every policy_delay",
    "crr discrete_crr": "critic+actor -> critic+actor every target_update_interval",
    "ddpg": "critic, actor -> actor+critic",
    "discrete_bcq": "critic+clone -> critic every target_update_interval",
    "discrete_sac": "critic -> critic every target_update_interval, actor+temperature",
    "dqn discrete_cql": "critic -> critic every target_update_interval",
    "iql discrete_iql": "value, actor, critic -> critic",
    "marwil": "actor+value -> value by 1.0 every recompute_interval",
    "ppo": "actor+value shared",
    "redq rlpd": "critic -> critic, actor+temperature on every policy_delay",
    "sac her tqc": "critic -> critic, actor+temperature",
    "sac_n edac": "temperature, actor, critic -> critic",
    "td3 td3_bc rebrac": "critic, actor on every policy_delay -> actor+critic",
    "xql": "value times value_updates, actor, critic -> critic",
}
"""What an update does, by algorithm: which children move together, one step after the other, and which target networks
then follow them (by `tau`). What a step does with this is tested in tests/algorithms/test_steps.py."""

KINDS_OF_NETWORKS = {"td3_bc", "crossq", "bcq", "ppo"}
"""Algorithms that together have every kind of network."""

MakeConfig = Callable[..., TrainConfig]


def _is_continuous(name: str) -> bool:
    return "continuous" in ALGORITHMS[name].action_kinds


def _build(name: str, **hyper: Any) -> Algorithm:
    torch.manual_seed(0)
    cls = ALGORITHMS[name]
    spaces = SPACES if _is_continuous(name) else SpaceSpec.vector(4, DiscreteActions(2))
    small: dict[str, Any] = {"hidden_sizes": (8, 8), "vae_hidden_sizes": (8, 8), "critic_hidden_sizes": None}
    small |= {"policy_delay": 2}
    known = {field: value for field, value in small.items() if field in cls.hyper_class.__dataclass_fields__}
    return cls.build(spaces, cls.hyper_class(**known | hyper))


def _batches(name: str, count: int = UPDATES, size: int = 32) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    is_discrete = not _is_continuous(name)
    shapes = {"obs": (size, 4), "actions": (size, 2), "rewards": (size,), "next_obs": (size, 4), "dones": (size,)}
    shapes |= {"next_actions": (size, 2), "returns_to_go": (size,), "lambda_returns": (size,), "advantages": (size,)}
    shapes |= {"inputs": (size, 4), "log_probs": (size,), "values": (size,)}

    def draw(field: str) -> Tensor:
        values = torch.randn(shapes[field], generator=generator)
        if field == "dones":
            return (values > 1).float()
        if "actions" in field:
            return (values[:, 0] > 0).long() if is_discrete else values.tanh()
        return values

    return [{field: draw(field) for field in ALGORITHMS[name].needs} for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_updates_give_finite_detached_scalars_with_constant_names(name: str) -> None:
    algorithm = _build(name)
    names = []
    for batch in _batches(name):
        metrics, gradient_steps = algorithm.update(batch)
        assert gradient_steps == 1
        names.append(set(metrics))
        for metric, value in metrics.items():
            assert value.shape == (), metric
            assert not value.requires_grad, metric
            assert math.isfinite(float(value)), metric
    assert names[:2] == names[2:]
    assert set(algorithm.losses(_batches(name)[0])) <= set.union(*names)


@pytest.mark.parametrize("name", NAMES)
def test_an_update_moves_exactly_what_its_steps_declare(name: str) -> None:
    algorithm = _build(name)
    for number, batch in enumerate(_batches(name), start=1):
        due = [step for step in algorithm.steps if number % algorithm.resolve_number(step.every) == 0]
        trained = {f"model.{child}" for step in due for child in step.children}
        tracking = [step for step in due if number % algorithm.resolve_number(step.track_every) == 0]
        tracked = {f"target.{child}" for step in tracking for child in step.tracks}
        carried = {name for step in due for name in step.updates_buffers}
        before = copy.deepcopy(
            {key: value for key, value in algorithm.state_dict().items() if isinstance(value, Tensor)}
        )
        algorithm.update(batch)
        moved = {
            ".".join(key.split(".")[:2])
            for key, value in algorithm.state_dict().items()
            if key in before and not key.startswith("optimizers.") and not torch.equal(value, before[key])
        }
        assert moved == trained | tracked | carried


def _said(step: Step) -> str:
    words = "+".join(step.children) + " shared" * step.shared
    words += f" on every {step.every}" * (step.every != 1) + f" times {step.repeat}" * (step.repeat != 1)
    if step.tracks:
        words += f" -> {'+'.join(step.tracks)}" + f" by {step.tau}" * (step.tau != "tau")
        words += f" every {step.track_every}" * (step.track_every != 1)
    return words


@pytest.mark.parametrize("name", NAMES)
def test_steps_come_in_the_published_order_and_at_the_published_intervals(name: str) -> None:
    said = {name: words for names, words in STEPS.items() for name in names.split()}
    assert ", ".join(map(_said, _build(name).steps)) == said[name]


@pytest.mark.parametrize("name", NAMES)
def test_target_networks_start_as_copies_and_follow_by_tau(name: str) -> None:
    known = ALGORITHMS[name].hyper_class.__dataclass_fields__
    rates: dict[str, Any] = {"tau": 0.25, "target_update_interval": 1, "policy_delay": 1, "recompute_interval": 1}
    algorithm = _build(name, **{option: value for option, value in rates.items() if option in known})
    children = {child for step in algorithm.steps for child in step.tracks}
    assert {child for child, _ in algorithm.target.named_children()} == children
    assert not any(parameter.requires_grad for parameter in algorithm.target.parameters())
    networks = [(getattr(algorithm.target, child), getattr(algorithm.model, child)) for child in children]
    pairs = [pair for target, online in networks for pair in zip(target.parameters(), online.parameters(), strict=True)]
    assert all(torch.equal(lagged, online) for lagged, online in pairs)
    before = [lagged.clone() for lagged, _ in pairs]
    algorithm.update(_batches(name)[0])
    # Those of AWR and MARWIL are copies that are made anew.
    tau = rates["tau"] if "tau" in known else 1.0
    for old, (lagged, online) in zip(before, pairs, strict=True):
        torch.testing.assert_close(lagged, (tau * online + (1 - tau) * old).detach())


@pytest.mark.parametrize("name", NAMES)
def test_a_network_may_have_a_step_size_and_a_weight_decay_of_its_own(name: str) -> None:
    plain, likes = _build(name), ALGORITHMS[name].hyper_class.learning_rate_like
    for option in ALGORITHMS[name].hyper_class.__dataclass_fields__:
        for kind in ("learning_rate", "weight_decay"):
            child = option.removesuffix(f"_{kind}")
            if child not in plain.optimizers:
                continue
            found = _build(name, **{option: 0.02}).optimizers
            for other, optimizer in found.items():
                follows = kind == "learning_rate" and likes.get(other) == child
                expected = 0.02 if other == child or follows else getattr(plain.optimizers[other], kind)
                assert getattr(optimizer, kind) == expected, (option, other)


@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if "alpha" in ALGORITHMS[name].hyper_class.__dataclass_fields__]
)
def test_a_fixed_temperature_stays_and_has_no_step(name: str, alpha: float) -> None:
    learned, algorithm = _build(name), _build(name, alpha=alpha)
    assert {child for step in learned.steps for child in step.children} == {*algorithm.optimizers, "temperature"}
    for batch in _batches(name):
        metrics = algorithm.update(batch).metrics
        # A run with a metric that is no number is ended as diverged.
        assert [metric for metric, value in metrics.items() if not math.isfinite(value)] == []
    assert float(algorithm.model.temperature().detach()) == pytest.approx(alpha)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_a_needed_field_is_refused_by_name(name: str) -> None:
    algorithm = _build(name)
    for field in algorithm.needs:
        batch = {key: value for key, value in _batches(name)[0].items() if key != field}
        with pytest.raises(ValueError, match=f"needs '{field}' in a batch"):
            algorithm.update(batch)


@pytest.mark.parametrize("name", NAMES)
def test_losses_on_held_out_data_change_nothing(name: str) -> None:
    algorithm = _build(name)
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.losses(_batches(name)[0])
    _assert_trees_equal(algorithm.state_dict(), before)


@pytest.mark.parametrize("name", NAMES)
def test_save_load_update_equals_update(name: str, tmp_path: Path) -> None:
    batches = _batches(name, 6)
    straight, halted = _build(name), _build(name)
    for algorithm in (straight, halted):
        torch.manual_seed(3)
        for batch in batches[:3]:
            algorithm.update(batch)
    torch.save(halted.state_dict(), tmp_path / "state.pt")
    loaded = _build(name)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for algorithm in (straight, loaded):
        torch.manual_seed(4)
        for batch in batches[3:]:
            algorithm.update(batch)
    _assert_trees_equal(loaded.state_dict(), straight.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_no_scalar_is_read_back_during_an_update(name: str) -> None:
    algorithm, batches = _build(name), _batches(name)
    mode: Any = _NoScalars
    with mode():
        for batch in batches:
            algorithm.update(batch)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if _is_continuous(name) else pytest.mark.slow) for name in NAMES]
)
def test_compiled_updates_equal_eager_ones(name: str) -> None:
    # Those that only choose are compared with masks below, which is the larger graph.
    _compare_with_eager(name, "aot_eager")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "td3_bc" else pytest.mark.slow) for name in NAMES]
)
def test_updates_compiled_to_machine_code_equal_eager_ones(name: str) -> None:
    # As wide as networks commonly are.
    wide: dict[str, Any] = {"hidden_sizes": (256, 256)} if name == "td3_bc" else {}
    _compare_with_eager(name, "inductor", size=128, **wide)


@pytest.mark.slow
def test_machine_code_draws_the_same_dropout_as_eager_updates() -> None:
    _compare_with_eager("redq", "inductor", size=128, num_critics=3, critic_dropout=0.1, critic_layer_norm=True)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in KINDS_OF_NETWORKS else pytest.mark.slow) for name in NAMES]
)
def test_compiled_updates_of_own_networks_equal_eager_ones(name: str) -> None:
    _compare_with_eager(name, "aot_eager", **_own_networks(name))


@pytest.mark.parametrize("name", NAMES)
def test_products_in_bfloat16_change_numbers_a_little_and_types_not_at_all(name: str) -> None:
    # In narrower networks fewer roundings cancel.
    exact, rounded = (_build(name, hidden_sizes=(16, 16), precision=each) for each in ("float32", "bfloat16"))
    reports = []
    for algorithm in (exact, rounded):
        torch.manual_seed(5)
        reports.append([algorithm.update(batch).metrics for batch in _batches(name, 2)])
    for ours, theirs in zip(*reports, strict=True):
        for metric, value in ours.items():
            torch.testing.assert_close(theirs[metric], value, rtol=0.05, atol=1e-3)
    assert [value.dtype for value in _tensors(rounded)] == [value.dtype for value in _tensors(exact)]
    assert any(not torch.equal(mine, other) for mine, other in zip(_tensors(exact), _tensors(rounded), strict=True))
    # A policy acts in float32, whatever it was trained with.
    exact.load_state_dict(rounded.state_dict())
    obs = torch.linspace(-2, 2, 12).reshape(3, 4)
    assert torch.equal(exact.act(obs), rounded.act(obs))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("td3_bc", "crossq") else pytest.mark.slow) for name in NAMES]
)
def test_compiled_updates_in_bfloat16_equal_eager_ones(name: str) -> None:
    # Where a graph adds numbers up in another order, a product may be rounded to the next number in bfloat16.
    _compare_with_eager(name, "aot_eager", tolerance=0.01, precision="bfloat16")


def _own_networks(name: str) -> dict[str, Any]:
    """Options of the networks, other ones than the algorithm's own."""
    norm = {} if name == "crossq" else {"layer_norm": "before"}
    return {"activation": "silu", "encoder": "own_encoders:Waves", **norm}


def _compare_with_eager(name: str, backend: str, tolerance: float = 1e-4, size: int = 32, **hyper: Any) -> None:
    dtype = torch.float64 if name in DOUBLE else torch.float32
    eager, compiled = _build(name, **hyper).to(dtype), _build(name, **hyper).to(dtype)
    torch._dynamo.reset()
    compiled.compile_steps(backend=backend)
    batches = [
        {field: values.to(dtype) if values.is_floating_point() else values for field, values in batch.items()}
        for batch in _batches(name, size=size)
    ]
    compiled.compile_for(batches[0])
    for algorithm in (eager, compiled):
        torch.manual_seed(5)
        for batch in batches:
            algorithm.update(batch)
    assert eager.state_dict().keys() == compiled.state_dict().keys()
    for mine, other in zip(_tensors(eager), _tensors(compiled), strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=1e-2 * tolerance)


def _tensors(algorithm: Algorithm) -> list[Tensor]:
    """Parameters and buffers, those of the optimisers too."""
    return [value for value in algorithm.state_dict().values() if isinstance(value, Tensor)]


CHOOSERS = [name for name in NAMES if "discrete" in ALGORITHMS[name].action_kinds]


def _masked(name: str, **hyper: Any) -> tuple[Algorithm, list[Batch]]:
    """An algorithm for three discrete actions of which some are invalid, and batches of its rows."""
    torch.manual_seed(0)
    cls, generator = ALGORITHMS[name], torch.Generator().manual_seed(2)
    spaces = SpaceSpec.vector(4, DiscreteActions(3)).with_mask()
    algorithm = cls.build(spaces, cls.hyper_class(hidden_sizes=(8, 8), **hyper))

    def draw(field: str) -> Tensor:
        values = torch.randn(32, 4, generator=generator)
        if field == "dones":
            return (values[:, 0] > 1).float()
        if field == "actions":
            return torch.ones(32, dtype=torch.int64)
        if field not in ("obs", "next_obs", "inputs"):
            return values[:, 0]
        # The action that is always valid is the logged one.
        masks = (torch.rand(32, 3, generator=generator) < 0.5).float()
        masks[:, 1] = 1
        return torch.cat([masks, values], 1)

    return algorithm, [{field: draw(field) for field in algorithm.needs} for _ in range(UPDATES)]


@pytest.mark.parametrize("name", CHOOSERS)
def test_invalid_actions_are_never_taken_and_break_nothing(name: str) -> None:
    algorithm, batches = _masked(name)
    for batch in batches:
        for metric, value in algorithm.update(batch).metrics.items():
            assert math.isfinite(float(value)), metric
    assert all(bool(value.isfinite().all()) for value in _tensors(algorithm))
    obs = torch.cat([batch["inputs" if "inputs" in batch else "obs"] for batch in batches])
    for deterministic in (True, False):
        chosen = algorithm.act(obs, deterministic=deterministic)
        assert bool(obs[torch.arange(len(obs)), chosen].all())


@pytest.mark.parametrize("name", CHOOSERS)
def test_compiled_updates_with_masks_equal_eager_ones(name: str) -> None:
    (eager, batches), (compiled, _) = _masked(name), _masked(name)
    torch._dynamo.reset()
    compiled.compile_steps(backend="aot_eager")
    for algorithm in (eager, compiled):
        for batch in batches:
            algorithm.update(batch)
    for mine, other in zip(_tensors(eager), _tensors(compiled), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


RUNS: dict[str, TrainResult] = {}


def _trained(name: str, tiny_config: MakeConfig, folders: pytest.TempPathFactory) -> TrainResult:
    """A run of an algorithm, which is trained once in this process and must stay as it is."""
    if name not in RUNS:
        RUNS[name] = get_algorithm_spec(name).train(tiny_config(name, f"output_dir={folders.mktemp(name)}"))
    return RUNS[name]


@pytest.mark.parametrize("name", NAMES)
def test_train_evaluate_predict_and_resume_through_the_registry(
    name: str, tiny_config: MakeConfig, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = get_algorithm_spec(name)
    result = _trained(name, tiny_config, tmp_path_factory)
    assert "guard" not in [row["kind"] for row in read_metrics(result.run_dir)]
    evaluation = spec.evaluate(result.checkpoint_path, episodes=2)
    assert len(evaluation["returns"]) == len(evaluation["lengths"]) == 2
    spaces = SpaceSpec.from_plain(load_checkpoint(result.checkpoint_path)["spaces"])
    action = spec.predict(result.run_dir, [0.5] * spaces.obs_dim)
    assert action.shape == spaces.action.column.shape
    spaces.action.check(torch.as_tensor(action)[None], name="actions", origin="the task")
    file = policy_files(result.run_dir)[-1]
    rows = np.linspace(-1, 1, 7 * spaces.obs_dim, dtype=np.float32).reshape(7, -1)
    for deterministic in (True, False):
        whole, alone = (spec.predict(path, rows, deterministic=deterministic) for path in (result.run_dir, file))
        np.testing.assert_array_equal(whole, alone)
    run_dir = Path(shutil.copytree(result.run_dir, tmp_path / result.run_dir.name))
    resumed = spec.resume(run_dir, total_timesteps=30)
    state = load_checkpoint(resumed.checkpoint_path)["trainer"]["state"]
    assert state["global_step"] == 30
    # Online, an update for every step after the fifth; of a rollout of five steps, five updates.
    late = spec.mode != "offline" and not isinstance(spec.algorithm.reads, Rollout)
    assert state["update_count"] == (25 if late else 30)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    name: str, tiny_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spec = get_algorithm_spec(name)
    straight = _trained(name, tiny_config, tmp_path_factory)
    # An interval of one update leaves a checkpoint after every one of them, as kills at any moment would find it.
    dense = spec.train(tiny_config(name, "checkpoint_interval=1", "total_timesteps=20", "keep_checkpoints=all"))
    unit = "update" if spec.mode == "offline" else "step"
    for stop_at in (1, 7, 10):
        run_dir = Path(shutil.copytree(dense.run_dir, dense.run_dir.with_name(f"{dense.run_dir.name}_{stop_at}")))
        resumed = spec.resume(run_dir / "checkpoints" / f"{unit}_{stop_at:09d}.pt")
        ours, theirs = (load_checkpoint(result.checkpoint_path) for result in (straight, resumed))
        for part in ("algorithm", "source", "collector", "random"):
            _assert_trees_equal(theirs[part], ours[part])
        assert ours["trainer"]["last_metrics"] == theirs["trainer"]["last_metrics"]
        assert _rows(straight.run_dir) == _rows(resumed.run_dir)


@pytest.mark.parametrize("config", [config for spec in list_algorithms() for config in spec.configs])
def test_packaged_configs_bind_and_a_misspelt_key_is_refused(config: str) -> None:
    from rl_training.config import TrainConfig, load_config

    record = load_config(config)
    resolved = bind_options(record).resolve(record).to_plain()
    # A run that continues has the same options, to the type.
    again = TrainConfig(**resolved)
    assert repr(bind_options(again).resolve(again).to_plain()) == repr(resolved)
    key = next(iter(record.algo_kwargs))
    misspelt = key[:-2] + key[-1] + key[-2]
    groups = option_groups(ALGORITHMS[record.algo])
    with pytest.raises(ConfigError, match=f"unknown option '{misspelt}'; did you mean '{key}'"):
        bind({misspelt: record.algo_kwargs[key]}, *groups)


@pytest.mark.parametrize("name", NAMES)
def test_each_class_has_its_alias(name: str) -> None:
    import sys

    cls = ALGORITHMS[name]
    assert getattr(sys.modules[cls.__module__], f"{cls.__name__}Algorithm") is cls


def _rows(run_dir: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without what depends on the clock."""
    return [
        {key: value for key, value in row.items() if not key.endswith("_per_second")} for row in read_metrics(run_dir)
    ]


def _assert_trees_equal(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            _assert_trees_equal(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            _assert_trees_equal(mine, other)
    elif isinstance(ours, Tensor):
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs


class _NoScalars(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Fails on any operation that needs a tensor's value on the Python side."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.is_nonzero.default,
        ), "an update read a scalar back"
        return func(*args, **(kwargs or {}))
