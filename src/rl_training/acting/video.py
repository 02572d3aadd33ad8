"""Videos of a policy's episodes, or a window that shows them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from rl_training.acting.evaluation import Episodes, EvaluationResult, evaluate_policy
from rl_training.acting.policy import Policy
from rl_training.core.errors import ConfigError, UserError, import_extra, nearest
from rl_training.core.files import atomic_write
from rl_training.envs import rendering_kwargs

FORMATS: dict[str, dict[str, Any]] = {
    # The sides of a picture must be even.
    ".mp4": {"codec": "libx264", "macro_block_size": 2, "output_params": ["-f", "mp4"]},
    # The colours of all pictures are counted first, since a GIF has only 256 of them.
    ".gif": {
        "codec": "gif",
        "macro_block_size": 1,
        "pix_fmt_out": "pal8",
        "output_params": ["-f", "gif", "-vf", "split[a][b];[a]palettegen[p];[b][p]paletteuse"],
    },
}
"""How videos are written, by the ending of their name; the file has another name until it is whole."""
MOST_FPS = 50
"""Pictures per second of a video. Of faster tasks some are left out: browsers slow down GIFs with more."""


def record_policy(
    path: Path, policy: Policy, env_id: str, env_kwargs: Mapping[str, Any], **options: Unpack[Episodes]
) -> EvaluationResult:
    """Write a video of episodes, one after the other, at the speed of the task; evaluation has the same episodes."""
    check_video(path)
    kwargs, fps = rendering_kwargs(env_id, env_kwargs, "rgb_array")
    every = math.ceil(fps / MOST_FPS)
    with _video(path, fps / every) as add:
        steps = itertools.count()

        def watch(envs: Any) -> None:
            if next(steps) % every == 0:
                add(_picture(envs.render()[0], env_id))

        return evaluate_policy(policy, env_id, kwargs, num_envs=1, watch=watch, **options)


def play_policy(
    policy: Policy, env_id: str, env_kwargs: Mapping[str, Any], **options: Unpack[Episodes]
) -> EvaluationResult:
    """Show episodes in a window, one after the other; the environment draws by itself."""
    kwargs, _ = rendering_kwargs(env_id, env_kwargs, "human")
    return evaluate_policy(policy, env_id, kwargs, num_envs=1, **options)


def check_video(path: Path) -> None:
    """Refuse a video that could not be written, before there is anything to write."""
    if path.suffix not in FORMATS:
        hint = nearest(path.suffix, FORMATS)
        raise ConfigError(f"a video must end in {' or '.join(FORMATS)}, got {str(path)!r}{hint}")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of {str(path)!r} does not exist")
    _ffmpeg()


@contextmanager
def _video(path: Path, fps: float) -> Iterator[Callable[[NDArray[Any]], None]]:
    """A function that adds a picture to a video, which appears when it is whole."""
    ffmpeg, writer = _ffmpeg(), None
    with atomic_write(path) as temporary:

        def add(picture: NDArray[Any]) -> None:
            nonlocal writer
            if writer is None:
                height, width = picture.shape[:2]
                how = {"fps": fps, "ffmpeg_log_level": "error", **FORMATS[path.suffix]}
                writer = ffmpeg.write_frames(str(temporary), (width, height), **how)
                writer.send(None)
            writer.send(np.ascontiguousarray(picture))

        try:
            yield add
        finally:
            if writer is not None:
                writer.close()


def _picture(picture: Any, env_id: str) -> NDArray[Any]:
    array = np.asarray(picture)
    if array.ndim != 3 or array.shape[-1] != 3 or array.dtype != np.uint8:
        found = f"{array.dtype} of shape {array.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise UserError(f"render() of {env_id} must give uint8 pictures of shape (height, width, 3), got {found}")
    return array


def _ffmpeg() -> Any:
    return import_extra("imageio_ffmpeg", "video", "making a video")
