"""TD3+BC in JAX: updates as one compiled scan. `jax_update.py` starts this file with an interpreter that has JAX.

    python benchmarks/jax_td3_bc.py check FILE RESULT      make the updates of a file, and write what came of them
    python benchmarks/jax_td3_bc.py serve FILE DESCRIPTOR  be timed, by the process at the other end of a connection

FILE has the arrays of `jax_update.make_case`. A scan goes over pairs of updates, since the actor moves on every second
one, so that no branch is needed. Batches are drawn from the data inside the scan.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

# Read when JAX is imported.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from interleaving import Work, answer, for_seconds
from jax import Array

GAMMA, TAU, NOISE, CLIP, BC_ALPHA = 0.99, 0.005, 0.2, 0.5, 2.5
LEARNING_RATE, BETA1, BETA2, EPS = 3e-4, 0.9, 0.999, 1e-8
BATCH, PAIRS = 256, 50
"""Rows of a batch, and pairs of updates in a scan."""
WARM_UP = 1.0

Layers = list[tuple[Array, Array]]
"""Weight (in, out) and bias of each layer."""
Batch = dict[str, Array]


class Moments(NamedTuple):
    """What Adam remembers."""

    means: Any
    squares: Any
    count: Array


class State(NamedTuple):
    """All that updates change."""

    actor: Layers
    critics: list[Layers]
    target_actor: Layers
    target_critics: list[Layers]
    actor_moments: Moments
    critic_moments: Moments


def mlp(layers: Layers, rows: Array) -> Array:
    """A perceptron."""
    for weight, bias in layers[:-1]:
        rows = jax.nn.relu(rows @ weight + bias)
    weight, bias = layers[-1]
    return rows @ weight + bias


def q_values(critic: Layers, obs: Array, actions: Array) -> Array:
    """Values (B,) by one critic."""
    return mlp(critic, jnp.concatenate([obs, actions], -1))[:, 0]


def critic_loss(critics: list[Layers], state: State, batch: Batch, noise: Array) -> Array:
    """The critics against the smaller of the target critics, at a smoothed target action."""
    smoothing = jnp.clip(noise * NOISE, -CLIP, CLIP)
    next_actions = jnp.clip(jnp.tanh(mlp(state.target_actor, batch["next_obs"])) + smoothing, -1, 1)
    next_q = jnp.minimum(*(q_values(each, batch["next_obs"], next_actions) for each in state.target_critics))
    targets = batch["rewards"] + GAMMA * (1 - batch["dones"]) * next_q
    losses = [jnp.square(q_values(each, batch["obs"], batch["actions"]) - targets).mean() for each in critics]
    return sum(losses, jnp.zeros(()))


def actor_loss(actor: Layers, state: State, batch: Batch) -> Array:
    """Cloning minus the normalised value by the first critic."""
    actions = jnp.tanh(mlp(actor, batch["obs"]))
    q = q_values(state.critics[0], batch["obs"], actions)
    scale = jnp.maximum(jax.lax.stop_gradient(jnp.abs(q)).mean(), 1e-6)
    return jnp.square(actions - batch["actions"]).mean() - BC_ALPHA / scale * q.mean()


def adam(params: Any, gradients: Any, moments: Moments) -> tuple[Any, Moments]:
    """One step of Adam."""
    count = moments.count + 1
    means = jax.tree.map(lambda mean, each: BETA1 * mean + (1 - BETA1) * each, moments.means, gradients)
    squares = jax.tree.map(lambda mean, each: BETA2 * mean + (1 - BETA2) * each**2, moments.squares, gradients)
    rate, root = LEARNING_RATE / (1 - BETA1**count), jnp.sqrt(1 - BETA2**count)
    moved = jax.tree.map(
        lambda value, mean, square: value - rate * mean / (jnp.sqrt(square) / root + EPS), params, means, squares
    )
    return moved, Moments(means, squares, count)


def follow(targets: Any, sources: Any) -> Any:
    """Target networks after a step towards their sources."""
    return jax.tree.map(lambda target, source: target + TAU * (source - target), targets, sources)


def update_critics(state: State, batch: Batch, noise: Array) -> tuple[State, Array]:
    """The first half of an update, which every update has."""
    loss, gradients = jax.value_and_grad(critic_loss)(state.critics, state, batch, noise)
    critics, moments = adam(state.critics, gradients, state.critic_moments)
    return state._replace(critics=critics, critic_moments=moments), loss


def update_actor(state: State, batch: Batch) -> tuple[State, Array]:
    """The second half, which every second update has: the actor, and all target networks."""
    loss, gradients = jax.value_and_grad(actor_loss)(state.actor, state, batch)
    actor, moments = adam(state.actor, gradients, state.actor_moments)
    targets = follow(state.target_actor, actor), follow(state.target_critics, state.critics)
    moved = state._replace(actor=actor, actor_moments=moments, target_actor=targets[0], target_critics=targets[1])
    return moved, loss


def update_pair(state: State, batches: tuple[Batch, Batch], noises: tuple[Array, Array]) -> tuple[State, Array]:
    """Two updates, and their three losses."""
    state, first = update_critics(state, batches[0], noises[0])
    state, second = update_critics(state, batches[1], noises[1])
    state, third = update_actor(state, batches[1])
    return state, jnp.stack([first, second, third])


def normalized(batch: Batch, mean: Array, std: Array) -> Batch:
    """A batch with observations as the networks see them."""
    return {name: (value - mean) / std if name in ("obs", "next_obs") else value for name, value in batch.items()}


def drawn(key: Array, data: Batch, mean: Array, std: Array) -> tuple[Batch, Array]:
    """A batch and its noise."""
    for_rows, for_noise = jax.random.split(key)
    rows = jax.random.randint(for_rows, (BATCH,), 0, len(data["rewards"]))
    batch = {name: value.at[rows].get(mode="promise_in_bounds") for name, value in data.items()}
    return normalized(batch, mean, std), jax.random.normal(for_noise, batch["actions"].shape)


def scan(state: State, key: Array, data: Batch, mean: Array, std: Array) -> tuple[State, Array, Array]:
    """Pairs of updates on fresh batches; the state, the next key, and all losses."""
    key, own = jax.random.split(key)

    def body(state: State, keys: Array) -> tuple[State, Array]:
        (first, noise), (second, other) = (drawn(keys[k], data, mean, std) for k in range(2))
        return update_pair(state, (first, second), (noise, other))

    state, losses = jax.lax.scan(body, state, jax.random.split(own, (PAIRS, 2)))
    return state, key, losses


def read_state(arrays: dict[str, Array]) -> State:
    """The networks of a file, with fresh moments."""

    def layers(network: str) -> Layers:
        names = [f"{network}.{k}" for k in range(3)]
        return [(arrays[f"{name}.weight"], arrays[f"{name}.bias"]) for name in names]

    def fresh(params: Any) -> Moments:
        return Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros(()))

    actor, critics = layers("actor"), [layers("critic0"), layers("critic1")]
    targets = layers("target_actor"), [layers("target_critic0"), layers("target_critic1")]
    return State(actor, critics, *targets, fresh(actor), fresh(critics))


def part(arrays: dict[str, Array], prefix: str) -> Batch:
    """The arrays whose names begin with a word, without it."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def check(arrays: dict[str, Array], result: str) -> None:
    """Make the updates of a file on its own batches and noise; write losses and networks."""
    state, losses, batches, noises = read_state(arrays), [], part(arrays, "batch."), arrays["noises"]
    step = jax.jit(update_pair)
    for first in range(0, len(noises), 2):
        pair = [
            normalized({name: value[k] for name, value in batches.items()}, arrays["mean"], arrays["std"])
            for k in (first, first + 1)
        ]
        state, found = step(state, tuple(pair), (noises[first], noises[first + 1]))
        losses.append(found)
    networks = {"actor": state.actor, "target_actor": state.target_actor}
    for k in range(2):
        networks |= {f"critic{k}": state.critics[k], f"target_critic{k}": state.target_critics[k]}
    named: dict[str, Any] = {
        f"{name}.{k}.{kind}": np.asarray(value)
        for name, layers in networks.items()
        for k, layer in enumerate(layers)
        for kind, value in zip(("weight", "bias"), layer, strict=True)
    }
    np.savez(result, losses=np.stack(losses), **named)


def make(arrays: dict[str, Array]) -> Work[float]:
    """Updates for a number of seconds; how many there were per second."""
    data, mean, std = part(arrays, "data."), arrays["mean"], arrays["std"]
    compiled = jax.jit(scan, donate_argnums=(0, 1))
    # A buffer cannot be given away twice.
    state, key = jax.tree.map(jnp.copy, read_state(arrays)), jax.random.key(0)

    def run() -> None:
        nonlocal state, key
        state, key, losses = compiled(state, key, data, mean, std)
        losses.block_until_ready()

    scans = for_seconds(run)
    return lambda seconds: 2 * PAIRS * scans(seconds)


def main() -> None:
    """Check or serve."""
    what, file, last = sys.argv[1:]
    # Without it, JAX reads float64 as float32.
    jax.config.update("jax_enable_x64", what == "check")
    with np.load(file) as stored:
        arrays = {name: jnp.asarray(stored[name]) for name in stored.files}
    if what == "check":
        check(arrays, last)
        return
    work = make(arrays)
    work(WARM_UP)
    answer(work, Connection(int(last)))


if __name__ == "__main__":
    main()
