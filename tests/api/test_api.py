"""The library as its users see it."""

from __future__ import annotations

import multiprocessing
import pydoc
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rl_training
from rl_training import api, experiment, runtime
from rl_training.algorithms import ALGORITHMS
from rl_training.api import MANAGED, ManagedAlgorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.experiment import ExperimentManager, SeedProgress, get_algorithm_spec
from rl_training.runtime import Callback, TrainerState
from rl_training.storage import read_metrics

MakeConfig = Callable[..., TrainConfig]
CLASSES = sorted(MANAGED)

FAILING = '''
"""An environment whose evaluation fails with a mistake in its code, in the first process that comes to it."""

from pathlib import Path

import gymnasium as gym
import numpy as np


class Failing(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    made = 0

    def __init__(self, victim):
        Failing.made += 1
        # The first is looked at, the second collects data, from the third on they are for evaluation.
        if Failing.made == 3 and not Path(victim).exists():
            Path(victim).touch()
            raise ZeroDivisionError("a mistake in the task")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, True, {}


gym.register("Failing-v0", entry_point=Failing)
'''


def _train_rows(run_dir: Path) -> list[int]:
    return [row["global_step"] for row in read_metrics(run_dir) if row["kind"] == "train"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_algorithm_has_a_class_at_the_root_and_in_api(name: str) -> None:
    managed = getattr(rl_training, name)

    assert managed is getattr(api, name)
    assert issubclass(managed, ManagedAlgorithm)
    assert managed.__name__ == name
    assert ALGORITHMS[managed.algo].__name__ == name
    assert managed.__doc__ == f"{name}: {get_algorithm_spec(managed.algo).idea}"


def test_a_model_learns_evaluates_and_predicts(tiny_config: MakeConfig) -> None:
    model = rl_training.TD3BC(tiny_config("td3_bc"))

    result = model.learn()

    assert model.result is result
    assert model.evaluate()["return_mean"] == pytest.approx(result.metrics["return_mean"])
    assert len(model.evaluate(num_episodes=3, num_envs=2)["returns"]) == 3
    assert model.predict(np.zeros((4, 3))).shape == (4, 1)
    assert model.predict([0.0, 1.0, 0.0]).shape == (1,)


def test_a_learned_model_needs_the_disk_no_more(tiny_config: MakeConfig, tmp_path: Path) -> None:
    model = rl_training.TD3BC(tiny_config("td3_bc"))
    run_dir = model.learn().run_dir
    obs = np.random.default_rng(0).normal(size=(5, 3))
    before = model.predict(obs)

    shutil.rmtree(run_dir)

    np.testing.assert_array_equal(model.predict(obs), before)
    np.testing.assert_allclose(model.predict(obs[0]), before[0], rtol=1e-6)
    assert model.evaluate(num_episodes=1)["length_mean"] == 200
    policy = model.policy()
    np.testing.assert_array_equal(policy(torch.as_tensor(obs, dtype=torch.float32)).numpy(), before)
    model.save(tmp_path / "model.pt")
    np.testing.assert_array_equal(rl_training.TD3BC.load(tmp_path / "model.pt").predict(obs), before)


def test_actions_are_in_the_units_of_the_environment(tiny_config: MakeConfig) -> None:
    model = rl_training.BC(tiny_config("bc"))
    model.learn()

    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=10_000)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(model.predict(obs))
        total, over = total + float(reward), terminated or truncated

    # The episode that evaluation runs, step by step and without the package's environments.
    assert model.evaluate(num_episodes=1)["returns"] == pytest.approx([total], rel=1e-4)


def test_a_saved_model_can_be_loaded_resumed_and_used_by_its_registry_row(
    tiny_config: MakeConfig, tmp_path: Path
) -> None:
    model = rl_training.BC(tiny_config("bc"))
    run_dir = model.learn().run_dir
    model.save(tmp_path / "model.pt")
    spec, obs = get_algorithm_spec("bc"), np.zeros((2, 3))

    for path in (tmp_path / "model.pt", run_dir, str(run_dir / "checkpoints" / "best.pt")):
        loaded = rl_training.BC.load(path)
        assert loaded.config.algo == "bc"
        np.testing.assert_array_equal(spec.predict(path, obs), loaded.predict(obs))
    assert rl_training.BC.load(run_dir).evaluate() == spec.evaluate(run_dir)


def test_the_length_of_a_run_and_its_callbacks_may_be_given_to_learn(tiny_config: MakeConfig) -> None:
    seen: list[int] = []

    class Watch(Callback):
        def on_train_end(self, state: TrainerState) -> None:
            seen.append(state.update_count)

    model = rl_training.BC(tiny_config("bc"))
    first = model.learn(total_timesteps=5, callbacks=[Watch()])
    second = model.learn(total_timesteps=7, callbacks=[Watch()])

    assert seen == [5, 12]
    assert first.run_dir == second.run_dir


@pytest.mark.parametrize(("progress", "shown"), [(None, False), (False, False), (True, True)])
def test_progress_is_shown_when_asked_for(
    tiny_config: MakeConfig, capsys: pytest.CaptureFixture[str], progress: bool | None, shown: bool
) -> None:
    rl_training.BC(tiny_config("bc")).learn(progress=progress)

    assert ("evaluation" in capsys.readouterr().out) is shown


@pytest.mark.parametrize("form", ["record", "path", "text", "name"])
def test_a_config_may_be_a_record_a_path_or_a_packaged_name(tiny_config: MakeConfig, tmp_path: Path, form: str) -> None:
    record, path = tiny_config("td3_bc"), tmp_path / "my.yaml"
    path.write_text(record.to_yaml())
    forms: dict[str, Any] = {"record": record, "path": path, "text": str(path), "name": "td3_bc/pendulum"}

    config = rl_training.TD3BC(forms[form]).config

    assert isinstance(config, TrainConfig)
    assert (config.algo, config.total_timesteps) == ("td3_bc", 10_000 if form == "name" else 20)


def test_a_config_of_another_algorithm_is_refused() -> None:
    for use in (rl_training.BC, runtime.train_bc, get_algorithm_spec("bc").train):
        with pytest.raises(ConfigError, match="the config is for 'td3_bc', not for 'bc'"):
            use("td3_bc/pendulum")


def test_a_config_that_is_wrong_is_refused_when_the_model_is_made(tiny_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="unknown option 'bc_aplha'; did you mean 'bc_alpha'"):
        rl_training.TD3BC(tiny_config("td3_bc", "algo_kwargs.bc_aplha=1"))


@pytest.mark.parametrize("use", ["predict", "evaluate", "policy", "save"])
def test_a_model_that_has_not_learned_says_so(use: str, tmp_path: Path) -> None:
    model = rl_training.TD3BC("td3_bc/pendulum")
    arguments: dict[str, list[Any]] = {"predict": [np.zeros(3)], "save": [tmp_path / "model.pt"]}

    with pytest.raises(UserError) as caught:
        getattr(model, use)(*arguments.get(use, []))

    assert str(caught.value) == "this TD3BC is not trained yet: call learn(), or TD3BC.load(path)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_has_a_training_function(tiny_config: MakeConfig, name: str) -> None:
    train = getattr(runtime, f"train_{name}")

    result = train(tiny_config(name))

    assert train.__name__ == f"train_{name}"
    assert train.__doc__.startswith(f"Train {ALGORITHMS[name].__name__} from a config")
    assert result.checkpoint_path.is_file()
    assert "return_mean" in result.metrics


def test_the_functions_at_the_root_do_the_same(tiny_config: MakeConfig) -> None:
    result = rl_training.train(tiny_config("bc"))

    assert rl_training.evaluate(result.run_dir, episodes=1).returns == pytest.approx([result.metrics["return_mean"]])
    assert rl_training.predict(result.run_dir, np.zeros(3)).shape == (1,)
    assert rl_training.resume(result.run_dir).metrics == result.metrics


def test_a_manager_trains_what_it_was_set_up_with_and_resumes_it(tiny_config: MakeConfig) -> None:
    manager = ExperimentManager()
    with pytest.raises(ConfigError, match=r"call setup\(config\) before train\(\)"):
        manager.train()

    result = manager.setup(tiny_config("bc")).train()

    assert _train_rows(manager.resume(result.run_dir, total_timesteps=30).run_dir) == [10, 20, 30]


def test_a_manager_checks_its_config_when_it_is_set_up(tiny_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="batch_size must be >= 1, got 0"):
        ExperimentManager().setup(tiny_config("bc", "algo_kwargs.batch_size=0"))


def test_a_seed_that_is_told_to_stop_is_interrupted_and_can_continue(tiny_config: MakeConfig) -> None:
    stopped: list[int] = []

    def stop_once(progress: SeedProgress) -> None:
        if progress.global_step and not stopped:
            (worker,) = multiprocessing.active_children()
            worker.terminate()
            stopped.append(progress.global_step)

    config = tiny_config("bc", "total_timesteps=1000000", "algo_kwargs.eval_interval=null", "log_interval=100")
    (result,) = ExperimentManager().sweep(config, [0], on_progress=stop_once)

    assert result.status == "interrupted"
    assert result.run_dir is not None
    assert stopped[0] <= result.global_step < 1_000_000
    again = rl_training.resume(result.run_dir, total_timesteps=result.global_step + 100)
    assert again.metrics["update_count"] > result.global_step


def test_a_sweep_continues_when_a_seed_fails_and_keeps_what_it_said(
    tiny_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_task.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny_config(
        "bc",
        "env_id=failing_task:Failing-v0",
        f"env_kwargs.victim={tmp_path / 'victim'}",
        "algo_kwargs.best_fraction=null",
        "algo_kwargs.early_stopping={metric: return_mean, threshold: 1.0}",
    )
    events: list[SeedProgress] = []

    failed, done = ExperimentManager().sweep(config, [4, 2, 4], on_progress=events.append)

    assert (failed.seed, failed.status) == (4, "failed")
    assert "ZeroDivisionError: a mistake in the task" in (failed.error or "")
    assert failed.run_dir is not None
    assert "seed4" in Path(failed.run_dir).name
    # The other seed stopped early, which is not as far as it might have gone.
    assert (done.seed, done.status, done.global_step, done.total) == (2, "done", 10, 20)
    assert done.metrics is not None
    assert done.metrics["return_mean"] == 1.0
    assert [event.status for event in events if event.seed == 2] == ["running"] * 4 + ["done"]


@pytest.mark.parametrize(("seeds", "workers"), [([], 1), ([0], 0)])
def test_a_sweep_needs_a_seed_and_a_worker(tiny_config: MakeConfig, seeds: list[int], workers: int) -> None:
    with pytest.raises(ConfigError, match="a sweep needs at least one worker and one seed"):
        ExperimentManager().sweep(tiny_config("bc"), seeds, workers=workers)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (rl_training, "TD3CB", "module 'rl_training' has no attribute 'TD3CB'; did you mean 'TD3BC'?"),
        (rl_training, "trainn", "module 'rl_training' has no attribute 'trainn'; did you mean 'train'?"),
        (rl_training, "_hidden", "module 'rl_training' has no attribute '_hidden'"),
        (api, "TD3CB", "module 'rl_training.api' has no attribute 'TD3CB'; did you mean 'TD3BC'?"),
        (
            runtime,
            "train_td3_cb",
            "module 'rl_training.runtime' has no attribute 'train_td3_cb'; did you mean 'train_td3_bc'?",
        ),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_one(module: ModuleType, name: str, words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)

    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("module", "names"),
    [(rl_training, CLASSES), (api, CLASSES), (runtime, [f"train_{name}" for name in ALGORITHMS])],
    ids=["root", "api", "runtime"],
)
def test_derived_names_are_found_by_dir_help_and_star_imports(module: ModuleType, names: list[str]) -> None:
    text = pydoc.render_doc(module, renderer=pydoc.plaintext)  # type: ignore[attr-defined]  # missing in typeshed

    for name in names:
        assert name in dir(module)
        assert name in module.__all__
        assert f"class {name}(" in text or f"    {name}(config" in text


def test_the_same_record_is_found_in_every_place_it_belongs_to() -> None:
    assert rl_training.TrainConfig is experiment.TrainConfig is TrainConfig


OWN_NAMES = {
    "awac": "AWAC", "awr": "AWR", "bc": "BC", "bcq": "BCQ", "bear": "BEAR", "cal_ql": "CalQL", "cql": "CQL",
    "crossq": "CrossQ", "crr": "CRR", "ddpg": "DDPG", "discrete_bcq": "DiscreteBCQ", "discrete_cql": "DiscreteCQL",
    "discrete_crr": "DiscreteCRR", "discrete_iql": "DiscreteIQL", "discrete_sac": "DiscreteSAC", "dqn": "DQN",
    "edac": "EDAC", "her": "HER", "iql": "IQL", "marwil": "MARWIL", "ppo": "PPO", "rebrac": "ReBRAC", "redq": "REDQ",
    "rlpd": "RLPD", "sac": "SAC", "sac_n": "SACN", "td3": "TD3", "td3_bc": "TD3BC", "tqc": "TQC", "xql": "XQL",
}  # fmt: skip
"""Algorithms, each with the class that `rl_training`, `api` and `algorithms` offer for it."""

NAMES = {
    "rl_training": "TrainConfig __version__ estimate evaluate fetch_run predict resume run_pipeline run_sweep "
    "run_tuning select train",
    "rl_training.algorithms": "ALGORITHMS Algorithm Step UpdateResult register",
    "rl_training.algorithms.td3_bc": "TD3BC TD3BCAlgorithm TD3BCHyper td3_bc_loss",
    "rl_training.api": "MANAGED ManagedAlgorithm",
    "rl_training.api.algorithms": "MANAGED ManagedAlgorithm BC TD3BC",
    "rl_training.callbacks": "Callback TimeBudgetCallback",
    "rl_training.config": "TrainConfig load_config",
    "rl_training.data": "AnnotatedLog AnnotatedSource ColumnsConfig DataOptions Episode Hindsight MixedSource Ratio "
    "ReplayBuffer RolloutSource Rows Source TableFiles TransitionDataset UniformSource WindowSource as_dataset "
    "check_destination check_table_path collect_dataset concatenate_datasets hindsight_source load_transition_dataset "
    "make_source make_table mix_transition_datasets read_observations sample_trajectory_windows source_for table_kind "
    "table_text with_annotations with_lambda_returns with_n_step write_dataset write_npz write_table",
    "rl_training.data.dataset_loaders": "load_transition_dataset",
    "rl_training.data.offline_dataset": "TransitionDataset sample_trajectory_windows",
    "rl_training.data.offline_mixers": "mix_transition_datasets",
    "rl_training.envs": "AutoresetMode EnvReport GIVEN GoalTask RewardClipWrapper RewardScaleWrapper "
    "RewardShiftWrapper RewardTransformConfig Task apply_reward_wrappers check_env env_id_for goal_task is_known "
    "make_env make_native_env make_vector_env named_env rendering_kwargs reward_transform space_spec try_out",
    "rl_training.envs.rewards": "RewardTransformConfig RewardScaleWrapper RewardShiftWrapper RewardClipWrapper "
    "apply_reward_wrappers",
    "rl_training.experiment": "AlgorithmSpec ExperimentManager SeedProgress TrainConfig export_with_report "
    "get_algorithm_spec list_algorithms plot_curves read_runs report_content summarize write_report",
    "rl_training.experiment.manager": "ExperimentManager",
    "rl_training.experiment.registry": "AlgorithmSpec get_algorithm_spec list_algorithms",
    "rl_training.models": "BehaviorVAE DeterministicActor EnsembleMLP GaussianActor MLP MLPAWACModel MLPAWRModel "
    "MLPBCModel MLPBCQModel MLPBEARModel MLPCQLModel MLPCRRModel MLPCrossQModel MLPDDPGModel MLPIQLModel "
    "MLPMARWILModel MLPREDQModel MLPReBRACModel MLPSACModel MLPSACNModel MLPTD3Model MLPTQCModel Model Multiplier "
    "PerturbationActor QEnsemble TanhGaussianActor ValueNetwork",
    "rl_training.models.mlp_bcq": "LATENT_CLIP LOG_STD_MAX LOG_STD_MIN BehaviorVAE MLPBCQModel best_action",
    "rl_training.runtime": "Callback EarlyStoppingCallback EarlyStoppingConfig EvaluationResult Export Policy "
    "SavedPolicy ScheduleSpec TrainResult TrainerState collect evaluate evaluate_policy export_policy fetch_run "
    "load_policy normalized_score predict read_options resolve_schedule_value resume train",
    "rl_training.runtime.callbacks": "Callback EarlyStoppingCallback",
    "rl_training.runtime.controls": "EarlyStoppingConfig",
    "rl_training.runtime.schedules": "ScheduleSpec resolve_schedule_value",
    "rl_training.runtime.trainer": "TrainerState TrainResult",
}
"""Every name that a front or a kept module has offered to users, beside those of algorithms."""


def _public_names() -> Iterator[tuple[str, str]]:
    for module, names in NAMES.items():
        yield from ((module, name) for name in names.split())
    for algo, name in OWN_NAMES.items():
        yield from (("rl_training", name), ("rl_training.api", name), ("rl_training.algorithms", name))
        yield from (("rl_training.algorithms", f"{name}Algorithm"), ("rl_training.algorithms", f"{algo}_loss"))
        yield from (("rl_training", f"train_{algo}"), ("rl_training.runtime", f"train_{algo}"))


@pytest.mark.parametrize(("module", "name"), list(_public_names()))
def test_a_public_name_is_where_it_belongs(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None
