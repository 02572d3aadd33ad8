"""`rl-training sweep` on this machine: what it trains, what it leaves out when it is given again, what it says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, Command, call_main
from small_runs import differences

from rl_training.config import dump_yaml, parse_overrides
from rl_training.core.errors import CheckpointError
from rl_training.core.torch_files import read_tree
from rl_training.data.dataset_loaders import use_shared
from rl_training.experiment import run_sweep
from rl_training.experiment import sweep as sweeping
from rl_training.runtime import train
from rl_training.storage import RunLock, is_finished, read_json, read_metrics

SWEEP = {"config": "td3_bc/pendulum", "options": parse_overrides(TINY), "seeds": "0-1"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(call_main, monkeypatch, capsys)


def write_sweep(folder: Path, **changes: Any) -> Path:
    path = folder / "small.yaml"
    path.write_text(dump_yaml({**SWEEP, **changes}), encoding="utf-8")
    return path


def networks(run: Path) -> Any:
    return read_tree(run / "checkpoints" / "latest.pt", CheckpointError, what="checkpoint")["algorithm"]


def test_a_sweep_trains_what_is_missing(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_sweep(tmp_path)
    first = run("sweep", file, "--json")
    assert first.code == 0, first.err
    found = json.loads(first.out)
    assert [(each["status"], each["values"]) for each in found] == [("done", {"seed": 0}), ("done", {"seed": 1})]
    assert all("return_mean" in each["metrics"] for each in found)
    runs = [Path(each["run_dir"]) for each in found]
    assert all(each.parent == Path("sweeps/small") and is_finished(each) for each in runs)
    assert len(read_json(Path("sweeps/small/sweep.json"))["cells"]) == 2
    # A larger sweep in the same folder leaves them alone.
    before = [(each / "metrics.jsonl").read_bytes() for each in runs]
    write_sweep(tmp_path, grid={"algo_kwargs.batch_size": [16, 24]})
    more = run("sweep", file)
    assert more.code == 0, more.err
    assert "report: rl-training report sweeps/small" in more.out
    assert [(each / "metrics.jsonl").read_bytes() for each in runs] == before
    assert len(list(Path("sweeps/small").glob("td3_bc*"))) == 4
    table = run("report", "sweeps/small")
    head, columns, *rows = table.out.splitlines()
    assert head == "4 runs in sweeps/small, td3_bc on Pendulum-v1: return_mean"
    assert columns.split()[:2] == ["batch_size", "n"]
    assert [row.split()[:2] for row in rows[:2]] == [["16", "2"], ["24", "2"]]
    assert rows[2] == "batch_size=16 over batch_size=24 (return_mean):"
    assert "2 and 2 runs are too few for an interval" in rows[3]


def test_a_run_that_fails_does_not_stop_the_others(run: Command, tmp_path: Path) -> None:
    # At run time only: the file is there, and is no dataset.
    (tmp_path / "no.npz").write_bytes(b"PK")
    options = {**parse_overrides(TINY), "env_id": None}
    kwargs = {name: value for name, value in options["algo_kwargs"].items() if name != "dataset_size"}
    good = tmp_path / "good.npz"
    assert run("data", "collect", "--random", "--env", "Pendulum-v1", "--steps", "400", "--out", good).code == 0
    file = write_sweep(
        tmp_path,
        config="td3_bc",
        options={**options, "algo_kwargs": kwargs},
        grid={"algo_kwargs.dataset_path": [str(tmp_path / "no.npz"), str(good)]},
        seeds=[0],
    )
    answer = run("sweep", file, "--out", tmp_path / "out")
    assert answer.code == 2
    assert "1 of 2 runs failed" in answer.err
    assert "no.npz" in answer.err
    assert "Traceback" not in answer.err
    table = run("report", tmp_path / "out")
    assert "1 of 2 runs of the sweep" in table.out
    assert "are not done, 1 failed" in table.out
    assert "no.npz" in table.out.splitlines()[-2]
    found = {each["status"]: each for each in read_json(tmp_path / "out" / "sweep.json")["cells"]}
    assert "no.npz" in found["failed"]["error"]
    assert is_finished(Path(found["done"]["run_dir"]))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the command is given."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep with two combinations."""
    out = tmp_path_factory.mktemp("sweep")
    run_sweep({**SWEEP, "grid": {"algo_kwargs.batch_size": [16, 24]}}, out)
    return out


def test_the_report_of_a_sweep_compares_and_draws(run: Command, sweep_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "profiles.svg"
    asked = ("--compare", "batch_size=24", "batch_size=16", "--profiles", picture, "--title", "Batches")
    text = run("report", sweep_folder, *asked)
    assert text.code == 0, text.err
    assert "batch_size=24 over batch_size=16 (return_mean):" in text.out
    assert f"profiles in {picture}" in text.out
    assert "Batches" in picture.read_text()
    found = json.loads(run("report", sweep_folder, *asked, "--json").out)
    assert [row["values"] for row in found["rows"]] == [{"batch_size": 16}, {"batch_size": 24}]
    assert (found["not_done"], found["over_tasks"], found["note"]) == ([], [], "")
    (improvement,) = found["improvements"]
    assert (improvement["first"], improvement["interval"]) == ("batch_size=24", None)
    # Runs of a sweep by themselves can be compared too, and so can any others.
    runs = sorted(sweep_folder.glob("td3_bc*"))
    assert len(json.loads(run("report", *runs, "--json").out)["improvements"]) == 1
    page = run("report", sweep_folder, "--html", tmp_path / "page.html")
    assert page.code == 0, page.err
    assert "Performance profiles on Pendulum-v1" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compare", "batch_siz=16", "batch_size=24"], "no option 'batch_siz' varies; did you mean 'batch_size'?"),
        (["--compare", "batch_size=16", "batch_size=16"], "stand for the same runs"),
        (["--profiles", "p.gif"], "--profiles 'p.gif': expected one of the endings .png, .svg, .pdf"),
        (["--profiles", "p.png", "--smooth", "3"], "--smooth, --title and --size change a picture"),
        (["--profiles", "p.png", "--plot", "p.png"], "--plot and --profiles name the same file"),
        (
            ["--html", "p.html", "--compare", "a", "b"],
            "--html has curves of its own: leave --plot, --profiles, --compare",
        ),
        (["--html", "p.html", "--profiles", "p.png"], "--html has curves of its own"),
    ],
)
def test_mistakes_in_the_report_of_a_sweep(
    run: Command, sweep_folder: Path, here: Path, arguments: list[str], words: str
) -> None:
    answer = run("report", sweep_folder, *arguments)
    assert answer.code == 2
    assert words in answer.err
    assert not list(here.iterdir())


def test_a_dry_run_measures_and_writes_nothing(run: Command, tmp_path: Path) -> None:
    file = write_sweep(tmp_path)
    answer = run("sweep", file, "--out", tmp_path / "out", "--dry-run", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert [each["status"] for each in found["cells"]] == ["to do", "to do"]
    assert all(each["steps_per_second"] > 0 for each in found["cells"])
    assert found["seconds"] >= sum(each["seconds"] for each in found["cells"]) - 1e-6
    assert not (tmp_path / "out").exists()


def test_two_sweeps_do_not_share_a_folder(run: Command, tmp_path: Path) -> None:
    file, out = write_sweep(tmp_path), tmp_path / "out"
    out.mkdir()
    # The lock belongs to a process, so another one must have it.
    code = f"from pathlib import Path; from rl_training.storage.lock import RunLock; l = RunLock(Path({str(out)!r}))"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{code}; print('locked', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    answer = run("sweep", file, "--out", out)
    holder.communicate(b"\n")
    assert answer.code == 2
    assert f"in use by process {holder.pid}" in answer.err
    assert not (out / "sweep.yaml").exists()
    RunLock(out).release()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.yaml"], "'gone.yaml' does not exist"),
        (["small.yaml", "--workers", "0"], "--workers must be a number >= 1 or auto"),
        (["small.yaml", "--ray", "nowhere"], "--ray expects auto or an address such as"),
        (["small.yaml", "--ray", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
    ],
)
def test_mistakes_in_the_command(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path)
    answer = run("sweep", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert not Path("sweeps").exists()


def test_a_sweep_without_ray_names_the_extra(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = run("sweep", write_sweep(tmp_path), "--out", tmp_path / "out", "--ray", "auto")
    assert answer.code == 2
    assert "pip install 'rl-training[ray]'" in answer.err
    assert not answer.out


def test_a_program_without_a_main_part_is_told_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    spec = {**SWEEP, "seeds": [0]}
    program.write_text(f"from rl_training import run_sweep\nprint(run_sweep({spec!r}, 'out')[0].progress.status)\n")
    found = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout == "failed\n"
    assert "if __name__ == '__main__':" in found.stderr
    assert "Traceback" not in found.stderr


def test_an_interrupted_sweep_continues_bit_for_bit(tmp_path: Path) -> None:
    long = parse_overrides([*TINY, "total_timesteps=1500", "checkpoint_interval=100", "algo_kwargs.eval_interval=750"])
    file, alone = write_sweep(tmp_path, options=long), tmp_path / "alone"
    run_sweep(str(file), alone, workers=2)
    out = str(tmp_path / "out")
    command = [sys.executable, "-m", "rl_training", "sweep", str(file), "--out", out, "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    while not list((tmp_path / "out").glob("*/checkpoints/update_*[1-9]*.pt")):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 143
    assert b"interrupted; run the same command to continue" in err
    assert b"Traceback" not in err
    assert not all(map(is_finished, (tmp_path / "out").glob("td3_bc*")))
    results = run_sweep(str(file), tmp_path / "out", workers=2)
    assert [each.progress.status for each in results] == ["done", "done"]
    for each in results:
        ours, theirs = tmp_path / "out" / each.planned.name, alone / each.planned.name
        assert differences(networks(ours), networks(theirs)) == []


def test_large_files_are_shared_and_change_nothing(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "log.npz"
    assert run("data", "collect", "--random", "--env", "Pendulum-v1", "--steps", "400", "--out", data).code == 0
    options = parse_overrides([each for each in TINY if "dataset_size" not in each])
    options["algo_kwargs"] |= {"dataset_path": str(data), "dataset_kind": None, "dataset_size": None}
    spec = {"config": "td3_bc/pendulum", "options": options, "seeds": [0, 1]}
    plain = run_sweep(spec, tmp_path / "plain")
    monkeypatch.setattr(sweeping, "SHARED_BYTES", 0)
    runs = [each.planned for each in plain]
    shared = sweeping.share_data(runs, tmp_path / "data")
    assert len(shared) == 1
    assert all(Path(folder, "index.json").is_file() for folder in shared.values())
    with use_shared(shared), monkeypatch.context() as patch:
        # The file itself is not read.
        patch.setattr("rl_training.data.dataset_loaders._read_file", None)
        result = train({**runs[0].config.to_plain(), "output_dir": str(tmp_path / "other")})
    assert differences(networks(result.run_dir), networks(tmp_path / "plain" / runs[0].name)) == []
    ours, theirs = (
        [{name: value for name, value in row.items() if not name.endswith("per_second")} for row in read_metrics(each)]
        for each in (result.run_dir, tmp_path / "plain" / runs[0].name)
    )
    assert [row.get("td_error") for row in ours] == [row.get("td_error") for row in theirs]
    # A sweep throws the folder away when all its runs are done.
    run_sweep(spec, tmp_path / "sweep", workers=2)
    assert not (tmp_path / "sweep" / sweeping.DATA).exists()
