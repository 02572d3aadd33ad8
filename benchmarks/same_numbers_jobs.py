"""Jobs of `same_numbers.py`: what one source tree makes of a config, a log, or files of an earlier revision.

    PYTHONPATH=<tree>/src python benchmarks/same_numbers_jobs.py "train td3_bc/pendulum" run <tree> found.json

A job works in the current folder, and stores all it found as values with names. It uses commands and public names
only, so that this file works with trees whose modules have other places. Each command is `python -m rl_training ...`,
called in this process, which imports torch once.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

DATA = Path(os.environ.get("RL_TRAINING_DATA", Path(__file__).parents[2] / "shared" / "data"))
HOPPER = DATA / "d4rl" / "mujoco" / "hopper_medium-v2.hdf5"
CONFIGS = Path("src", "rl_training", "assets", "configs")
CHANGING = re.compile(
    r"run_id|date|started|ended|command|checksum|sha256|seconds|.*_seconds|.*_per_second|latency_us|versions|made_with|python|"
    r"platform|.*_sha256|pid|host|made_from"
)
"""Keys of values that no two runs share, or that tell of time."""
Leaf = str | float | bool | None
Found = Iterator[tuple[str, Leaf | NDArray[Any]]]
SMALL = "algo_kwargs.hidden_sizes=[16, 16]"
QUIET = ("--quiet", "--out", "runs")
JUDGED = ("--gamma", "0.9", "--members", "3", "--hidden-sizes", "16,16", "--quiet", "--json")
COLUMNS = ("--obs-columns", "x_*", "--action-columns", "u", "--reward-column", "r", "--episode-column", "run")
STARTS = 100
"""Environment steps before the first update of runs that act."""
LENGTHS: dict[str, list[str]] = {
    # Episodes enter the buffer when they have ended, after 200 steps.
    "cal_ql/pendulum_fine_tuning": ["total_timesteps=260"],
    # The 500 critics are for a GPU.
    "sac_n/hopper_medium": ["algo_kwargs.num_critics=20", "total_timesteps=20"],
}


class Skip(Exception):  # noqa: N818 - not an error
    """What a job needs is missing on this machine."""


@dataclass(frozen=True)
class Job:
    """What both trees do, after what only the earlier tree does."""

    run: Callable[[], Found]
    prepare: Callable[[], object] | None = None


def command(*arguments: str) -> str:
    """What `python -m rl_training` prints; a failure is an error, which it has explained itself."""
    printed, before = io.StringIO(), sys.argv
    sys.argv = ["rl_training", *arguments]
    try:
        with redirect_stdout(printed):
            runpy.run_module("rl_training", run_name="__main__")
    except SystemExit as end:
        # Status 1 is an answer: an audit found something.
        if end.code not in {None, 0, 1}:
            raise RuntimeError(f"{' '.join(arguments)}: status {end.code} {printed.getvalue()[-500:]}") from None
    finally:
        sys.argv = before
    return printed.getvalue()


def flat(name: str, value: Any) -> Found:
    """All values of a nested one, by their path; those that change from run to run are left out."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not CHANGING.fullmatch(str(key)):
                yield from flat(f"{name}.{key}", each)
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from flat(f"{name}[{number}]", each)
    elif hasattr(value, "numpy") or isinstance(value, (np.ndarray, np.generic)):
        yield name, np.asarray(value)
    elif isinstance(value, str):
        # A path begins in the folder of the job, wherever that is.
        yield name, value.replace(str(Path.cwd()), ".")
    else:
        yield name, value


def answer(*arguments: str) -> Found:
    """The JSON value that a command prints."""
    return flat(" ".join(arguments[:2]), json.loads(command(*arguments)))


def arrays_of(path: Path) -> Found:
    """The arrays of a .npz file."""
    with np.load(path) as file:
        for name in file.files:
            yield f"{path}:{name}", file[name]


def found_in(run: Path, *, exported: bool = False) -> Found:
    """What a run has learned: its checkpoint, metrics, result, data and predictions, and an exported policy."""
    import torch

    tree = torch.load(run / "checkpoints" / "latest.pt", weights_only=True)
    del tree["run"]["id"]
    yield from flat(f"{run}/latest.pt", tree)
    for number, line in enumerate((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()):
        yield from flat(f"{run}/metrics.jsonl[{number}]", json.loads(line))
    for name in ("result.json", "metadata.json"):
        yield from flat(f"{run}/{name}", json.loads((run / name).read_text(encoding="utf-8")))
    yield from predictions(run, tree)
    if exported:
        yield from bundle_of(run)


def predictions(policy: Path, tree: Mapping[str, Any]) -> Found:
    """Actions of a policy on sixteen observations that are always the same."""
    import rl_training

    rng = np.random.default_rng(0)
    shapes = {name: part["shape"] for name, part in tree["spaces"]["obs"].items()}
    obs = {name: rng.normal(size=(16, *shape)).astype(np.float32) for name, shape in shapes.items()}
    yield f"predict {policy}", rl_training.predict(policy, obs["obs"] if obs.keys() == {"obs"} else obs)


def environment(env_id: str) -> Any:
    """An environment, or the reason why there is none here."""
    import gymnasium as gym

    import rl_training.envs  # noqa: F401 - it registers the bundled task

    try:
        return gym.make(env_id)
    except (gym.error.Error, ImportError) as error:
        raise Skip(f"{env_id}: {str(error).splitlines()[0]}") from None


def bundle_of(run: Path) -> Found:
    """An exported policy: description, arrays, and the graph's constants."""
    import onnx

    bundle = Path(f"bundle_{run.name}")
    try:
        command("export", str(run), "--out", str(bundle), "--no-report", "--quiet")
    except RuntimeError as refused:
        # After a few updates, the best of several sampled actions may be a near tie.
        yield f"{bundle} is refused", str(refused)
        return
    yield from flat(f"{bundle}/policy.json", json.loads((bundle / "policy.json").read_text(encoding="utf-8")))
    for path in sorted(bundle.glob("*.npz")):
        yield from arrays_of(path)
    graph = onnx.load(str(bundle / "policy.onnx")).graph
    yield f"{bundle}/policy.onnx", " ".join(node.op_type for node in graph.node)
    for constant in graph.initializer:
        yield f"{bundle}/policy.onnx:{constant.name}", onnx.numpy_helper.to_array(constant)


def configs(tree: Path) -> list[str]:
    """Packaged names."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in (tree / CONFIGS).glob("*/*.yaml"))


def short(name: str, config: Mapping[str, Any]) -> list[str]:
    """Overrides for a short run of a packaged config; its batches keep their size."""
    kwargs = config["algo_kwargs"]
    if config["algo"] == "ppo":
        rollout = 512
        chosen, total = [f"algo_kwargs.rollout_steps={rollout}", f"log_interval={rollout}"], 2 * rollout
    elif "dataset_kind" in kwargs and "learning_starts" not in kwargs:
        chosen, total = ["log_interval=10"], 60
    else:
        total = STARTS + round(60 / kwargs.get("update_to_data", 1))
        chosen = [f"algo_kwargs.learning_starts={STARTS}", "log_interval=10"]
    if kwargs.get("mode") == "offline_to_online":
        chosen.append("algo_kwargs.offline_pretrain_updates=40")
    if kwargs.get("dataset_kind") == "random":
        chosen.append("algo_kwargs.dataset_size=2000")
    elif "dataset_path" in kwargs:
        if not HOPPER.exists():
            raise Skip(f"there is no {HOPPER} (set RL_TRAINING_DATA)")
        chosen.append(f"algo_kwargs.dataset_path={HOPPER}")
    half = total // 2
    chosen += [f"total_timesteps={total}", f"checkpoint_interval={half}", f"algo_kwargs.eval_interval={half}"]
    return [*chosen, "eval_episodes=2", "algo_kwargs.compile=never", *LENGTHS.get(name, ())]


def train_config(name: str, tree: Path) -> Found:
    """A short run of a packaged config; the first config of an algorithm that needs no data is exported too."""
    config = yaml.safe_load((tree / CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    environment(config["env_id"])
    command("train", name, *short(name, config), *QUIET, "--run-name", "run")
    of_algo = [each for each in configs(tree) if each.startswith(f"{config['algo']}/") and "hopper" not in each]
    return found_in(Path("runs", "run"), exported=name == of_algo[0])


def write_logs() -> None:
    """Logs of policies that act at random, whose probabilities are known, one as a table too, and a broken one."""
    for name, env_id, limit in (("pendulum", "Pendulum-v1", 30), ("cartpole", "CartPole-v1", 12)):
        env, rng = environment(env_id), np.random.default_rng(0)
        rows: list[tuple[Any, ...]] = []
        for episode in range(120):
            obs, _ = env.reset(seed=episode)
            for step in range(limit):
                action = rng.uniform(-2, 2, 1).astype(np.float32) if name == "pendulum" else int(rng.integers(2))
                after, reward, terminated, _, _ = env.step(action)
                rows.append((obs, action, float(reward), after, terminated, not terminated and step == limit - 1))
                obs = after
                if terminated:
                    break
        fields = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
        log = {field: np.array(column) for field, column in zip(fields, zip(*rows, strict=True), strict=True)}
        log |= {"propensities": np.full(len(rows), 0.5)} if name == "cartpole" else {}
        log |= {"behavior_log_probs": np.full(len(rows), -np.log(4))} if name == "pendulum" else {}
        save(f"{name}.npz", log)
    write_table("cartpole.csv", log)
    log["rewards"][7], log["observations"][100:200, 0] = 1e6, 0.5
    save("broken.npz", {field: np.concatenate([column, column[-90:]]) for field, column in log.items()})


def save(path: str, log: Mapping[str, Any]) -> None:
    """A log as a .npz file."""
    np.savez(path, **log)


def write_table(path: str, log: Mapping[str, NDArray[Any]]) -> None:
    """A log with discrete actions as CSV."""
    ends = (log["terminals"] | log["timeouts"]).astype(int)
    columns = (np.cumsum(ends) - ends, *log["observations"].T, log["actions"], log["rewards"])
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["run", *(f"x_{number}" for number in range(len(columns) - 3)), "u", "r"])
        table.writerows(zip(*(column.tolist() for column in columns), strict=True))


def learn(algo: str, data: str, *more: str) -> None:
    """A short run on a log, with a checkpoint after half of it."""
    sizes = (SMALL, "algo_kwargs.batch_size=64", "algo_kwargs.compile=never")
    chosen = ("total_timesteps=60", "checkpoint_interval=30", "log_interval=10", *sizes, *more)
    command("train", algo, "--data", data, *QUIET, "--run-name", algo, *chosen)


def pendulum_runs() -> None:
    """Runs on the log with continuous actions, whose bounds the environment says."""
    write_logs()
    for algo in ("bc", "td3_bc", "iql"):
        learn(algo, "pendulum.npz", "env_id=Pendulum-v1", "eval_episodes=2", "algo_kwargs.eval_interval=30")


def cartpole_runs() -> None:
    """Runs on the log with discrete actions, without an environment; the log evaluates one."""
    write_logs()
    learn("bc", "cartpole.npz", "algo_kwargs.eval_fqe=true", "algo_kwargs.eval_interval=60")
    for algo in ("discrete_iql", "discrete_bcq"):
        learn(algo, "cartpole.npz")


def runs_in(folder: str) -> Found:
    """What all runs in a folder have learned."""
    for path in sorted(Path(folder).rglob("config.yaml")):
        yield from found_in(path.parent)


def estimates(runs: Callable[[], None], *splits: str) -> Found:
    """Values from a log, by FQE and by importance sampling."""
    runs()
    for split in splits:
        yield from answer("estimate", "runs", "--split", split, "--updates", "300", *JUDGED)


def selections() -> Found:
    """A choice among checkpoints by the log, by shuffled rewards too, and with real episodes."""
    pendulum_runs()
    yield from answer("select", "runs", "--checkpoints", "all", "--shuffle", "--updates", "300", *JUDGED)
    yield from answer("select", "runs", "--episodes", "3", "--split", "all", "--updates", "300", *JUDGED)


def checks_of_data() -> Found:
    """What the audit and the inspection say, of files with and without mistakes."""
    write_logs()
    patterns = ("cs285_expert/*.npz", "pendulum/*", "cartpole/*", "d4rl/*/*.hdf5")
    known = sorted(str(path) for pattern in patterns for path in DATA.glob(pattern))
    for path in ("pendulum.npz", "cartpole.npz", "broken.npz", *known):
        for what in ("audit", "inspect"):
            yield from ((f"{path} {name}", value) for name, value in answer("data", what, path, "--json"))


def forms_of_data() -> Found:
    """Collected, converted, split and mixed data, and tables."""
    write_logs()
    command(
        "data", "collect", "--out", "random.npz", "--random", "--env", "Pendulum-v1", "--steps", "300", "--seed", "1"
    )
    command("data", "split", "pendulum.npz", "--fraction", "0.3", "--out", "first.npz", "second.npz", "--seed", "1")
    command("data", "mix", "first.npz", "random.npz", "--ratio", "1,2", "--out", "mixed.npz", "--seed", "1")
    for form in ("log.rlt", "log.hdf5", "log.pt", "log.parquet"):
        command("data", "convert", "cartpole.npz", form)
        command("data", "convert", form, f"{form}.npz")
    command("data", "convert", "cartpole.csv", "table.npz", *COLUMNS)
    for path in sorted(Path().glob("*.npz")):
        yield from arrays_of(path)
    learn("discrete_cql", "cartpole.csv", *COLUMNS)
    learn("td3_bc", "mixed.npz", "env_id=Pendulum-v1", "eval_episodes=2")
    yield from runs_in("runs")


def many_options() -> dict[str, Any]:
    """Options of small runs."""
    kwargs = {"dataset_kind": "random", "dataset_size": 400, "batch_size": 32, "hidden_sizes": [16]}
    kwargs |= {"eval_interval": 10, "compile": "never"}
    return {"env_id": "Pendulum-v1", "total_timesteps": 20, "eval_episodes": 2, "algo_kwargs": kwargs}


def sweep(seeds: str) -> str:
    """A small sweep, or what is missing of it."""
    spec = {"options": many_options(), "grid": {"algo": ["td3_bc", "iql"]}, "seeds": seeds}
    Path("small.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    return command("sweep", "small.yaml", "--out", "many", "--quiet", "--json")


def sweep_and_report(seeds: str) -> Found:
    """A sweep, the report on it, and the content of its page."""
    yield from flat("sweep", json.loads(sweep(seeds)))
    yield from answer("report", "many", "--json")
    command("report", "many", "--html", "page.html")
    yield from flat("page", json.loads(Path("page.json").read_text(encoding="utf-8")))
    yield from runs_in("many")


def tune(trials: int) -> Found:
    """A small search, or what is missing of it."""
    space = {
        "algo_kwargs.bc_alpha": {"low": 0.5, "high": 10, "log": True},
        "algo_kwargs.layer_norm": ["none", "before"],
    }
    spec = {"config": "td3_bc", "options": many_options(), "space": space, "trials": trials, "check_seeds": "100-103"}
    Path("search.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    yield from flat("tune", json.loads(command("tune", "search.yaml", "--out", "many", "--quiet", "--json")))
    yield from runs_in("many")


def pipeline() -> Found:
    """The whole pipeline on a log, or what is missing of it."""
    if not Path("pendulum.npz").exists():
        write_logs()
    # A folder that was begun elsewhere names its log by that path.
    for path in (each for kind in ("json", "yaml") for each in Path("many").rglob(f"*.{kind}")):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(str(Path.cwd().with_name("prepared")), str(Path.cwd())), encoding="utf-8")
    limits = ("--updates", "150", "--algos", "td3_bc", "--seeds", "0", "--members", "3", "--gamma", "0.9")
    yield from answer(
        "pipeline", "pendulum.npz", "--out", "many", "--env", "Pendulum-v1", *limits, "-s", SMALL, "--quiet", "--json"
    )
    yield from runs_in("many")


def resumed() -> Found:
    """Runs that continue for as long again."""
    for path in sorted(Path("runs").iterdir()):
        total = 2 * json.loads((path / "result.json").read_text(encoding="utf-8"))["global_step"]
        command("resume", str(path), f"total_timesteps={total}", "--quiet")
    return runs_in("runs")


def online_runs() -> None:
    """Runs that act, with what they collected."""
    for algo, env_id in (("sac", "Pendulum-v1"), ("dqn", "CartPole-v1"), ("ppo", "CartPole-v1")):
        own = "algo_kwargs.rollout_steps=128" if algo == "ppo" else "algo_kwargs.learning_starts=100"
        chosen = ("total_timesteps=256", "log_interval=64", "eval_episodes=2", SMALL, own, "algo_kwargs.compile=never")
        command("train", algo, "--env", env_id, *QUIET, "--run-name", algo, *chosen, "algo_kwargs.batch_size=64")


def policies() -> Found:
    """Small policy files, and what they do in their environment."""
    import torch

    for path in sorted(Path("runs").glob("*/policies/*.pt")):
        tree = torch.load(path, weights_only=True)
        yield from flat(str(path), tree["algorithm"])
        yield from predictions(path, tree)
        yield from answer("eval", str(path), "--episodes", "2", "--json")


def bundles() -> Found:
    """Bundles of before check themselves, and bundles of the same runs made now have the same arrays."""
    for run in sorted(Path("runs").iterdir()):
        kept = Path(f"kept_{run.name}")
        with suppress(SystemExit):
            runpy.run_path(str(kept / "check.py"), run_name="__main__")
        command("report", str(run), "--html", "page.html", "--bundle", str(kept))
        yield from flat(f"page of {run}", json.loads(Path("page.json").read_text(encoding="utf-8")))
        yield from bundle_of(run)
        for path in sorted(kept.glob("*.npz")):
            now = dict(arrays_of(Path(f"bundle_{run.name}", path.name)))
            for name, value in arrays_of(path):
                yield f"{name} is as before", bool(np.all(now[name.replace("kept_", "bundle_", 1)] == value))


def write_bundles() -> None:
    """Runs with exported policies."""
    pendulum_runs()
    for run in sorted(Path("runs").iterdir()):
        command("export", str(run), "--out", f"kept_{run.name}", "--quiet")


def mapped() -> Found:
    """A mapped dataset: what is said of it, and what is learned from it."""
    for what in ("audit", "inspect"):
        yield from answer("data", what, "kept.rlt", "--json")
    learn("iql", "kept.rlt", "env_id=Pendulum-v1", "eval_episodes=2")
    yield from runs_in("runs")


def write_mapped() -> None:
    """A log as a folder that is read in place."""
    write_logs()
    command("data", "convert", "pendulum.npz", "kept.rlt")


JOBS = {
    # Runs with an environment hold no episodes out.
    "estimate continuous": Job(lambda: estimates(pendulum_runs, "all")),
    "estimate discrete": Job(lambda: estimates(cartpole_runs, "all", "held-out")),
    "select": Job(selections),
    "data checks": Job(checks_of_data),
    "data forms": Job(forms_of_data),
    "pipeline": Job(pipeline),
    "kept offline runs": Job(resumed, pendulum_runs),
    "kept online runs": Job(resumed, online_runs),
    "kept policies": Job(policies, online_runs),
    "kept bundles": Job(bundles, write_bundles),
    "kept mapped data": Job(mapped, write_mapped),
    "kept sweep": Job(lambda: sweep_and_report("0-2"), lambda: sweep("0-1")),
    "kept tune": Job(lambda: tune(4), lambda: list(tune(2))),
    "kept pipeline": Job(pipeline, lambda: list(pipeline())),
}


def find_job(name: str, tree: Path) -> Job:
    """A job by its name."""
    kind, _, config = name.partition(" ")
    return Job(lambda: train_config(config, tree)) if kind == "train" else JOBS[name]


def store(found: Found, path: Path) -> None:
    """Write values in the order in which they were found; arrays have a file of their own, and a number in it."""
    arrays: list[NDArray[Any]] = []
    listed: list[tuple[str, Leaf | list[int]]] = []
    for name, value in found:
        if isinstance(value, np.ndarray):
            listed.append((name, [len(arrays)]))
            arrays.append(value)
        else:
            listed.append((name, value))
    np.savez(path.with_suffix(".npz"), *arrays)
    path.write_text(json.dumps(listed), encoding="utf-8")


def main(name: str, part: str, tree: Path, out: Path) -> None:
    """Do a part of a job: what prepares it, or what is compared."""
    import rl_training

    assert tree in Path(str(rl_training.__file__)).parents, f"{rl_training.__file__} is not in {tree}"
    job = find_job(name, tree)
    try:
        if part == "prepare":
            assert job.prepare is not None
            job.prepare()
        else:
            store(job.run(), out)
    except Skip as reason:
        out.with_suffix(".skipped").write_text(str(reason), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
