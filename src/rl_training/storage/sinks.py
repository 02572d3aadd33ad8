"""Sinks of metrics beside `metrics.jsonl`: TensorBoard, MLflow, W&B. Nothing is sent unless an option asks for it."""

from __future__ import annotations

import io
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rl_training.config import flatten
from rl_training.core.errors import ConfigError, StorageError, import_extra, nearest
from rl_training.core.files import writing
from rl_training.core.text import value_text

Ending = Literal["finished", "failed", "interrupted"]
"""The end of a run, as far as this process knows."""


class About(NamedTuple):
    """Facts about a run for sinks."""

    run_id: str
    folder: Path
    config: Mapping[str, Any]
    """The options, every one written out."""
    ids: MutableMapping[str, str]
    """By sink, the name of the run there; a sink that starts one adds it."""


class Sink:
    """Takes rows of metrics.

    A failure does not end the run: the sink is switched off with a warning. Only files of the run itself that cannot
    be written are an error.
    """

    name = ""
    is_on = True

    def check(self) -> None:
        """Refuse a sink that is not installed or does not answer, before the run exists."""

    def start(self, about: About) -> None:
        """Begin to take rows of a run."""

    def send(self, row: Mapping[str, float], step: int) -> None:
        """Take the numbers in the row of one event."""

    def finish(self, ending: Ending) -> None:
        """Send what is left; nothing is written after that."""

    def attempt(self, method: Callable[..., None], *arguments: Any, warns: bool = True) -> None:
        """Call a method of this sink, unless it is switched off, and switch it off if it fails."""
        if not self.is_on:
            return
        try:
            method(*arguments)
        except StorageError:
            raise
        except Exception as error:
            self.is_on = False
            if warns:
                text = f"the sink {self.name} is switched off: {_reason(error)}; metrics.jsonl has every row"
                warnings.warn(text, stacklevel=4)


class TensorBoardSink(Sink):
    """Event files in a folder of the run, where TensorBoard is installed; the first row makes the folder."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def send(self, row: Mapping[str, float], step: int) -> None:
        """Write scalars; the first row makes the folder."""
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self.is_on = False
                return
        with writing(self._folder):
            self._writer = self._writer or SummaryWriter(str(self._folder))
            for name, value in row.items():
                self._writer.add_scalar(name, value, step)

    def finish(self, ending: Ending) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class MLflowSink(Sink):
    """A run of MLflow, where `MLFLOW_TRACKING_URI` says, or else where MLflow has its default."""

    name = "mlflow"

    def check(self) -> None:
        """Ask for the experiment, which needs a server that answers and lets us in."""
        mlflow = _import_mlflow()
        where = _without_password(mlflow.get_tracking_uri())
        if not where.startswith(("http", "file:", "databricks")) and find_spec("sqlalchemy") is None:
            advice = "set MLFLOW_TRACKING_URI to a server, such as http://localhost:5000, or: pip install mlflow"
            raise ConfigError(f"MLflow at {where} is a database, for which the client alone is not enough: {advice}")
        try:
            found = _find_experiment(mlflow.MlflowClient())
        except Exception as error:
            advice = "start the server, set MLFLOW_TRACKING_URI, or leave mlflow out of sinks"
            raise ConfigError(f"MLflow at {where} cannot be used: {_reason(error)}; {advice}") from None
        if found is not None and found.lifecycle_stage != "active":
            advice = "restore it, or set MLFLOW_EXPERIMENT_NAME"
            raise ConfigError(f"the MLflow experiment {found.name!r} is deleted: {advice}")

    def start(self, about: About) -> None:
        """Reopen the run of MLflow, or create one."""
        self._mlflow = _import_mlflow()
        self._client = self._mlflow.MlflowClient()
        known = about.ids.get("mlflow")
        self._id = about.ids["mlflow"] = known if known and self._reopen(known) else self._create(about)

    def send(self, row: Mapping[str, float], step: int) -> None:
        """Send the numbers as one batch."""
        now, new = int(time.time() * 1000), self._mlflow.entities.Metric
        self._client.log_batch(self._id, metrics=[new(_allowed(name), row[name], now, step) for name in row])

    def finish(self, ending: Ending) -> None:
        """Mark the run as ended."""
        status = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}[ending]
        # MLflow prints the address of the run; the output of a command may be JSON.
        with redirect_stdout(io.StringIO()):
            self._client.set_terminated(self._id, status)

    def _reopen(self, known: str) -> bool:
        """Resume a run; false if there is none of this id where metrics go now."""
        try:
            is_there: bool = self._client.get_run(known).info.lifecycle_stage == "active"
        except self._mlflow.exceptions.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        if is_there:
            self._client.update_run(known, status="RUNNING")
        return is_there

    def _create(self, about: About) -> str:
        """A new run with the options as parameters, which MLflow keeps as they were first."""
        tags = {"run_id": about.run_id, "run_dir": str(about.folder)}
        run = self._client.create_run(self._experiment_id(), run_name=about.folder.name, tags=tags)
        new = self._mlflow.entities.Param
        params = [new(_allowed(name), value_text(value)) for name, value in flatten(about.config).items()]
        # The most that a request may have.
        for first in range(0, len(params), 100):
            self._client.log_batch(run.info.run_id, params=params[first : first + 100])
        return str(run.info.run_id)

    def _experiment_id(self) -> str:
        if (found := _find_experiment(self._client)) is None:
            try:
                return str(self._client.create_experiment(_experiment_name()))
            except self._mlflow.exceptions.MlflowException:
                # Another run may have made it in the meantime.
                if (found := _find_experiment(self._client)) is None:
                    raise
        return str(found.experiment_id)


class WandbSink(Sink):
    """A run of W&B: files in the run directory, or in `WANDB_DIR`; it is sent only if `WANDB_MODE` says so."""

    name = "wandb"

    def check(self) -> None:
        """Look for credentials, and try them, where metrics are sent."""
        wandb = _import_wandb()
        if _wandb_mode() in ("offline", "disabled"):
            return
        try:
            with redirect_stdout(sys.stderr):
                wandb.login()
        except Exception as error:
            advice = "set WANDB_MODE=offline, or leave wandb out of sinks"
            raise ConfigError(f"W&B cannot be used: {_reason(error)}; {advice}") from None

    def start(self, about: About) -> None:
        """Open the run of W&B, or resume it."""
        wandb = _import_wandb()
        about.ids.setdefault("wandb", about.run_id)
        with redirect_stdout(sys.stderr):
            self._run = wandb.init(
                id=about.ids["wandb"],
                resume="allow",
                name=about.folder.name,
                dir=os.environ.get("WANDB_DIR", str(about.folder)),
                mode=_wandb_mode(),
                config={**flatten(about.config), "run_id": about.run_id, "run_dir": str(about.folder)},
                allow_val_change=True,
                # A run that the program itself has under way is not ours to end.
                reinit="create_new",
                # The output of the program is not a metric.
                settings=wandb.Settings(console="off", silent=True),
            )
            # W&B drops rows whose own step goes back, as a run does that is resumed from an earlier checkpoint.
            self._run.define_metric("*", step_metric="global_step")

    def send(self, row: Mapping[str, float], step: int) -> None:
        """Log the numbers with their timestep."""
        self._run.log({"global_step": step, **row})

    def finish(self, ending: Ending) -> None:
        """End the run with an exit code."""
        with redirect_stdout(sys.stderr):
            self._run.finish(exit_code={"finished": 0, "failed": 1, "interrupted": 255}[ending])


REMOTE: dict[str, type[Sink]] = {"mlflow": MLflowSink, "wandb": WandbSink}
"""The sinks that a run has if its option `sinks` names them."""


def check_sinks(names: Sequence[str]) -> None:
    """Refuse sinks that are not installed or do not answer."""
    for name in dict.fromkeys(names):
        REMOTE[name]().check()


def numbers(kind: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, under the names that they have in every sink."""
    return {
        f"{kind}/{name}": value
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _import_mlflow() -> Any:
    # Read at the import: MLflow would report its use to its makers.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # By default a request to a server that is gone takes minutes, in which the run would stand still.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    return import_extra("mlflow", "mlflow", "the sink mlflow")


def _experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"


def _find_experiment(client: Any) -> Any:
    """The experiment that the environment names, by its id or its name; None if it has to be made."""
    if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return client.get_experiment(number)
    return client.get_experiment_by_name(_experiment_name())


def _import_wandb() -> Any:
    # Read at the import: W&B would report errors to its makers, and wait for a server that is gone without end.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_INIT_TIMEOUT", "30")
    os.environ.setdefault("WANDB_FINISH_TIMEOUT", "60")
    # By default a kill costs the rows of 15 seconds, which a resumed run does not write again.
    os.environ.setdefault("WANDB__TRANSACTION_LOG_FLUSH_INTERVAL", "1")
    return import_extra("wandb", "wandb", "the sink wandb")


def _wandb_mode() -> str:
    """The mode of W&B; nothing is sent by default."""
    mode, modes = os.environ.get("WANDB_MODE") or "offline", ("offline", "online", "shared", "disabled")
    if mode not in modes:
        raise ConfigError(f"WANDB_MODE must be one of {', '.join(modes)}, got {mode!r}{nearest(mode, modes)}")
    return mode


def _allowed(name: str) -> str:
    """A name that MLflow accepts."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _reason(error: BaseException) -> str:
    """The cause of an error in a sentence: the system's error beneath those of libraries, or else the error itself."""
    each: BaseException | None = error
    while each is not None:
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
        each = each.__cause__ or each.__context__
    sentence = re.split(r"\.\s|\n", str(error).strip() or type(error).__name__)[0]
    return _without_password(sentence)[:300].rstrip(".")


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)
