"""Rendering of environments: as pictures, or in a window."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Literal

import gymnasium as gym

from rl_training.core.errors import ConfigError, MissingExtraError, UserError
from rl_training.envs.factory import GIVEN, make_native_env

DEFAULT_FPS = 30


def rendering_kwargs(
    env_id: str, env_kwargs: Mapping[str, Any], mode: Literal["rgb_array", "human"]
) -> tuple[dict[str, Any], float]:
    """The `env_kwargs` with which an environment renders, and its pictures per second.

    An environment that cannot is refused after an attempt: a drawing library may be missing, or find no display.
    """
    _prepare_display(mode)
    with closing(make_native_env(env_id, env_kwargs, raw_rewards=True)) as env:
        is_ready, modes = env.render_mode == mode, list(env.metadata.get("render_modes") or ())
        fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
    # Gymnasium shows the pictures of an environment in a window where it has no window of its own.
    if not is_ready and "rgb_array" not in modes and mode not in modes:
        names = ", ".join(modes) or "none"
        raise ConfigError(f"{env_id} cannot show itself: expected the render mode {mode!r}, it has {names}")
    if not is_ready and env_id.startswith(GIVEN):
        raise ConfigError(f"{env_id} was passed as an object: make it with render_mode={mode!r}")
    kwargs = {**env_kwargs} if is_ready else {**env_kwargs, "render_mode": mode}
    _try_out(env_id, kwargs)
    return kwargs, fps


def _prepare_display(mode: str) -> None:
    """Draw without a display where there is none; a window needs one."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in names):
        return
    if mode == "human":
        raise UserError(
            "there is no display to open a window on (neither DISPLAY nor WAYLAND_DISPLAY is set); "
            "`rl-training record` makes a video instead"
        )
    # Read when the first picture is drawn: by MuJoCo, and by the library that draws classic control.
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _check_window(env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse a window that is not visible: the drawing library falls back to a display that does not exist."""
    pygame: Any = sys.modules.get("pygame")
    if kwargs.get("render_mode") != "human" or pygame is None or "SDL_VIDEODRIVER" in os.environ:
        return
    if pygame.display.get_init() and pygame.display.get_driver() in ("dummy", "offscreen", "evdev"):
        raise UserError(
            f"no window can be opened for {env_id}: the display {os.environ.get('DISPLAY')!r} does not answer"
        )


def _try_out(env_id: str, kwargs: Mapping[str, Any]) -> None:
    try:
        with closing(make_native_env(env_id, kwargs, raw_rewards=True)) as env:
            env.reset(seed=0)
            env.render()
            _check_window(env_id, kwargs)
    except gym.error.DependencyNotInstalled as error:
        package = "pygame" if "pygame" in str(error) else str(error)
        raise MissingExtraError(package, "video", f"showing {env_id}") from None
    except UserError:
        raise
    # The libraries that draw raise errors of many kinds, some of which derive from nothing more special.
    except Exception as error:
        hint = "; MuJoCo draws by the library that MUJOCO_GL names: egl, osmesa or glfw" if "GL" in str(error) else ""
        raise UserError(f"{env_id} cannot show itself: {type(error).__name__}: {error}{hint}") from None
