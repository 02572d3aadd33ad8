"""The whole objective of every algorithm with logged numbers of one or two rows, added up by hand."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch

Numbers = dict[str, Any]
LN2, ROOT_E = math.log(2), math.exp(0.5)

# Errors of 1 and 3, mean square 5, and of 0 and 2, mean square 2; a third critic errs by 1 and 1.
CRITICS: Numbers = {"q_values": [[1.0, 4.0], [0.0, 3.0]], "target_q_values": [0.0, 1.0]}
THREE_CRITICS = CRITICS | {"q_values": [*CRITICS["q_values"], [1.0, 2.0]]}
# The smaller values are 1 and -2, all of them add up to 8 with those of a third critic; log-densities have the mean 1.
SOFT_ACTOR: Numbers = {"policy_q_values": [[1.0, 4.0], [2.0, -2.0]], "policy_log_probs": [-1.0, 3.0]}
THREE_SOFT = SOFT_ACTOR | {"policy_q_values": [*SOFT_ACTOR["policy_q_values"], [3.0, 0.0]]}
TEMPERATURE: Numbers = {"log_temperature": 0.5, "target_entropy": -3.0}
# Reconstruction errors of 0.5 and 0 are 0.125; the divergence of every latent is 0.5, with the weight 0.5.
BEHAVIOR: Numbers = {"reconstructions": [[0.5], [0.0]], "actions": [[0.0], [0.0]]}
BEHAVIOR |= {"latent_mean": [[1.0] * 2] * 2, "latent_log_std": [[0.0] * 2] * 2}
# Errors of 0.5 and 3 of the logged actions 0 and 1; the other actions are worth more by 8 and by 5.
DISCRETE: Numbers = {"q_values": [[1.0, 9.0], [9.0, 4.0]], "actions": [0, 1], "target_q_values": [0.5, 1.0]}
# A policy that takes two actions by a quarter and three quarters, whose entropy is 0.5623351.
POLICY: Numbers = {"log_probs": [[math.log(0.25), math.log(0.75)]], "actions": [1]}
GAP = (math.log1p(math.exp(8)) + math.log1p(math.exp(5))) / 2

CASES: list[tuple[str, Numbers, dict[str, float]]] = [
    (
        "ddpg",
        {"q_values": [[1.0, 4.0]], "target_q_values": [0.0, 1.0], "policy_q_values": [1.0, -3.0]},
        {"critic_loss": 5.0, "actor_loss": 1.0, "q_mean": 2.5, "q_std": 1.5, "target_q_mean": 0.5},
    ),
    (
        "td3",
        {**CRITICS, "policy_q_values": [1.0, -3.0]},
        {"critic_loss": 7.0, "actor_loss": 1.0, "q_mean": 2.0, "target_q_mean": 0.5},
    ),
    (
        # lambda = 2.5 / 2, mean value -1, mean squared error 0.125.
        "td3_bc",
        {**CRITICS, "policy_q_values": [1.0, -3.0], "bc_alpha": 2.5}
        | {"policy_actions": [[0.5], [0.0]], "actions": [[0.0], [0.0]]},
        {"critic_loss": 7.0, "actor_loss": 1.375, "q_mean": 2.0, "target_q_mean": 0.5},
    ),
    (
        # lambda = 1 / 3; 0.1 times the mean of the squared distances 0.25 and 0.75.
        "rebrac",
        {**CRITICS, "policy_q_values": [2.0, 4.0], "actor_bc_weight": 0.1}
        | {"policy_actions": [[0.5, 0.0], [0.5, 0.5]], "actions": [[0.0, 0.0], [0.0, 0.5 - math.sqrt(0.5)]]},
        {"critic_loss": 7.0, "actor_loss": -0.95},
    ),
    (
        "bcq",
        {**BEHAVIOR, **CRITICS, "policy_q_values": [1.0, -3.0]},
        {"vae_loss": 0.375, "vae_reconstruction": 0.125, "vae_kl": 0.5, "critic_loss": 7.0, "actor_loss": 1.0},
    ),
    (
        # Excess distances of 0.15 and 0.05, twice that less the values 1 and 3: mean of -0.7 and -2.9.
        "bear",
        {**BEHAVIOR, **CRITICS, "policy_q_values": [1.0, 3.0], "mmd": [0.2, 0.1], "multiplier": 2.0},
        {"vae_loss": 0.375, "critic_loss": 7.0, "actor_loss": -1.8, "lagrange_loss": -0.2},
    ),
    (
        # Half of the critics' 7. Temperature e^0.5 times 1, less the mean of 1 and -2. -0.5 * (1 - 3) = 1.
        "sac",
        {**CRITICS, **SOFT_ACTOR, **TEMPERATURE},
        {"critic_loss": 3.5, "actor_loss": ROOT_E + 0.5, "temperature_loss": 1.0, "temperature": ROOT_E}
        | {"entropy": -1.0, "q_mean": 2.0, "target_q_mean": 0.5},
    ),
    (
        # A sum over critics, not a mean. Deviations of (1, 2, 3) and (4, -2, 0): sqrt(2 / 3) and sqrt(56 / 9).
        "sac_n",
        {**THREE_CRITICS, **THREE_SOFT, **TEMPERATURE},
        {"critic_loss": 8.0, "actor_loss": ROOT_E + 0.5, "temperature_loss": 1.0, "temperature": ROOT_E}
        | {"entropy": -1.0, "q_policy_std": (math.sqrt(2 / 3) + math.sqrt(56 / 9)) / 2},
    ),
    (
        # Gradients in the action that are equal on the first row, 2, and orthogonal on the second, 0: half of 1.
        "edac",
        {**CRITICS, **SOFT_ACTOR, **TEMPERATURE, "diversity_weight": 0.5}
        | {"action_gradients": [[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]},
        {"critic_loss": 7.5, "actor_loss": ROOT_E + 0.5, "temperature_loss": 1.0, "diversity_loss": 1.0},
    ),
    (
        # The mean of all values, 8 / 6; deviations of (1, 0, 1) and (4, 3, 2): sqrt(2 / 9) and sqrt(2 / 3).
        "redq",
        {**THREE_CRITICS, **THREE_SOFT, **TEMPERATURE, "target_entropy": -1.5},
        {"critic_loss": 8.0, "actor_loss": ROOT_E - 8 / 6, "temperature_loss": 0.25, "temperature": ROOT_E}
        | {"entropy": -1.0, "q_std_ensemble": (math.sqrt(2 / 9) + math.sqrt(2 / 3)) / 2},
    ),
    (
        # Each pair of quantile and atom counts as in a row of its own, see the tests of TQC. The mean of 1 to 8 is 4.5.
        # The spread is that of [0, 0, 1, 1] but for the ends: ranks round(0.15) = 0 and round(2.85) = 3.
        "tqc",
        {"quantiles": [[[0.0, 1.0]] * 2] * 2, "target_atoms": [[0.5, 3.0], [3.0, 0.5]], **TEMPERATURE}
        | {"policy_quantiles": [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]], "policy_log_probs": [-1.0, 3.0]},
        {"critic_loss": 0.453125, "actor_loss": ROOT_E - 4.5, "temperature_loss": 1.0, "temperature": ROOT_E}
        | {"q_mean": 0.5, "q_std": 0.0, "q_std_ensemble": 0.0, "quantile_spread": 1.0, "target_atoms_mean": 1.75}
        | {"entropy": -1.0},
    ),
    (
        # Temperature 2. Values of (s, a) are (1, 4) and (3, 0), of (s', a') (5, 7) and (6, 2), smallest (5, 2).
        # Targets: 1 + 0.5 * (5 - 2 * 1) = 2.5, and 3 where the task ends. Squared errors 2.25, 1 and 0.25, 9: half the
        # sum of their means. Actor: 2 * mean(-1, 3) - mean(1, -2). Around 2, values differ by 1, 2, 1, 2; by row by 1
        # and 2.
        "crossq",
        {"joint_q_values": [[1.0, 4.0, 5.0, 7.0], [3.0, 0.0, 6.0, 2.0]], "next_log_probs": [1.0, 1.0], **SOFT_ACTOR}
        | {"rewards": [1.0, 3.0], "dones": [0.0, 1.0], "log_temperature": LN2, "target_entropy": -3.0, "gamma": 0.5},
        {"critic_loss": 3.125, "actor_loss": 2.5, "temperature_loss": 2 * LN2, "temperature": 2.0, "entropy": -1.0}
        | {"q_mean": 2.0, "q_std": math.sqrt(2.5), "q_std_ensemble": 1.5, "target_q_mean": 2.75},
    ),
    (
        # Samples have the values of the logged actions and the density of a uniform policy: ln 2 + ln 3, ten times that
        # for each of two critics.
        "cql",
        {**CRITICS, **{f"{of}_q_values": [CRITICS["q_values"]] for of in ("random", "policy", "next_policy")}}
        | {f"{of}_log_probs": [[-LN2] * 2] for of in ("policy", "next_policy")}
        | {"action_dim": 1, "conservative_weight": 10.0},
        {"td_loss": 7.0, "critic_loss": 7.0 + 20 * math.log(6)}
        | dict.fromkeys(("cql_penalty_1", "cql_penalty_2"), math.log(6)),
    ),
    *(
        (
            # Mean squares 1 / 2 and 4 / 2. Advantages 0 and ln 2: -(1 * -1 + 2 * -3) / 2, or a third and two thirds.
            "awac",
            {"q_values": [[1.0, 0.0], [0.0, -2.0]], "target_q_values": [0.0, 0.0], "log_probs": [-1.0, -3.0]}
            | {
                "data_q_values": [3.0, 3.0 + LN2],
                "policy_q_values": [3.0, 3.0],
                "awac_lambda": 1.0,
                "weights": weights,
            },
            {"critic_loss": 2.5, "q_mean": -0.25, "log_prob_data": -2.0, "actor_loss": actor_loss}
            | {"weight_mean": mean, "weight_max": largest, "advantage_mean": LN2 / 2, "advantage_max": LN2},
        )
        for weights, actor_loss, mean, largest in (("exp", 3.5, 1.5, 2.0), ("softmax", 7 / 3, 1.0, 4 / 3))
    ),
    (
        # Advantages ln 2 and -ln 2 over samples of mean 0: weights 2 and 1 / 2, (2 * 1 + 0.5 * 3) / 2.
        "crr",
        {**CRITICS, "data_q_values": [LN2, -LN2], "policy_q_values": [[1.0, -1.0], [-1.0, 1.0]]}
        | {"log_probs": [-1.0, -3.0]},
        {"critic_loss": 7.0, "target_q_mean": 0.5, "actor_loss": 1.75, "weight_mean": 1.25, "weight_max": 2.0}
        | {"filter_rate": 0.5, "advantage_mean": 0.0, "advantage_max": LN2, "log_prob_data": -2.0},
    ),
    (
        # Squares 0, 1 and 4, the last two with weights 0.7. Weights 1, e^3, and e^6 cut at 100. Squares of 1 and of 4.
        "iql",
        {
            "values": [2.0] * 3,
            "target_q_values": [2.0, 3.0, 4.0],
            "log_probs": [-0.5] * 3,
            "expectile": 0.7,
            "beta": 3.0,
        }
        | {"q_values": [[3.0] * 3, [0.0] * 3], "bellman_targets": [2.0] * 3},
        {"value_loss": 3.5 / 3, "v_mean": 2.0, "actor_loss": 0.5 * 121.085537 / 3, "weight_mean": 121.085537 / 3}
        | {"weight_max": 100.0, "weight_clip_fraction": 1 / 3, "advantage_mean": 1.0, "advantage_max": 2.0}
        | {"log_prob_data": -0.5, "critic_loss": 5.0, "target_q_mean": 2.0},
    ),
    (
        # Advantages 0, 1, 2, whose weights are by beta alone, whatever the temperature of the value's loss is.
        "xql",
        {"values": [2.0] * 3, "target_q_values": [2.0, 3.0, 4.0], "log_probs": [-0.5] * 3, "loss_temperature": 0.5}
        | {"beta": 3.0, "q_values": [[5.0], [3.0]], "bellman_targets": [3.0], "huber_delta": 20.0},
        {"weight_mean": 121.085537 / 3, "actor_loss": 0.5 * 121.085537 / 3, "weight_clip_fraction": 1 / 3}
        | {"critic_loss": 2.0},
    ),
    (
        # Errors of 100 and 200 are 1 and 2 of the network's units. Weights 2: 2 * 1; 10 * 0.5 * 0.5^2 beyond a bound.
        "awr",
        {"lambda_returns": [100.0, -100.0], "values": [0.0, 100.0], "advantages": [LN2] * 2, "log_probs": [-1.0] * 2}
        | {"means": [[1.5], [-1.5]]},
        {"value_loss": 1.25, "v_mean": 50.0, "lambda_return_mean": 0.0, "actor_loss": 3.25, "bound_loss": 0.125},
    ),
    (
        # The root of the scale is 10: weights e^0.5 and e^-1. A tenth of half of the squares 100 and 400.
        "marwil",
        {"lambda_returns": [10.0, -20.0], "values": [0.0] * 2, "log_probs": [-1.0] * 2, "scale": 100.0}
        | {"beta": 0.5, "value_weight": 0.1},
        {"value_loss": 12.5, "actor_loss": (ROOT_E + math.exp(-1)) / 2, "weight_max": ROOT_E, "advantage_mean": -5.0},
    ),
    (
        "dqn",
        DISCRETE,
        {"critic_loss": 1.3125, "td_error_abs": 1.75, "q_mean": 2.5, "q_greedy_mean": 9.0, "q_gap": 6.5}
        | {"agreement": 0.0, "target_q_mean": 0.75},
    ),
    ("dqn", {**DISCRETE, "huber_delta": None}, {"critic_loss": 4.625}),
    # Uniform logits have no penalty.
    ("discrete_bcq", {**DISCRETE, "logits": [[0.0, 0.0]] * 2}, {"critic_loss": 1.3125, "clone_loss": LN2}),
    (
        "discrete_cql",
        {**DISCRETE, "conservative_weight": 0.1},
        {"td_loss": 1.3125, "cql_penalty": GAP, "critic_loss": 1.3125 + 0.1 * GAP, "q_soft_max": GAP + 2.5},
    ),
    (
        # Errors 1 and 2; gaps ln(e + e^2) - 2 and ln(e + e^3) - 3, of which the sum counts. The policy is worth 1.75,
        # so that the advantage is 0.25: exp(0.25) = 1.284025.
        "discrete_crr",
        {**POLICY, "q_values": [[[1.0, 2.0]], [[1.0, 3.0]]], "target_q_values": [1.0], "conservative_weight": 0.5},
        {"td_loss": 5.0, "critic_loss": 5 + 0.5 * (math.log1p(math.exp(-1)) + math.log1p(math.exp(-2)))}
        | {"cql_penalty": (math.log1p(math.exp(-1)) + math.log1p(math.exp(-2))) / 2, "advantage_mean": 0.25}
        | {"actor_loss": -1.284025 * math.log(0.75), "filter_rate": 1.0, "entropy_normalized": 0.5623351 / LN2},
    ),
    (
        # The value of the policy is 1.75 and a tenth of its entropy. Half of ln 2 is the entropy to reach.
        "discrete_sac",
        {**POLICY, "q_values": [[[1.0, 2.0]]], "target_q_values": [0.5], "log_temperature": math.log(0.1)},
        {"critic_loss": 2.25, "actor_loss": -1.8062335, "temperature_loss": math.log(0.1) * (0.5623351 - LN2 / 2)},
    ),
]


@pytest.mark.parametrize(("name", "numbers", "expected"), CASES, ids=[case[0] for case in CASES])
def test_the_parts_of_an_objective_are_what_they_add_up_to_by_hand(
    name: str, numbers: Numbers, expected: dict[str, float]
) -> None:
    objective = getattr(importlib.import_module(f"rl_training.algorithms.{name}"), f"{name}_loss")
    tensors = {
        key: torch.tensor(value, dtype=torch.int64 if isinstance(value, list) and type(value[0]) is int else None)
        for key, value in numbers.items()
        if isinstance(value, list) or key in ("log_temperature", "multiplier", "scale")
    }
    metrics = objective(**numbers | tensors)
    assert {key: float(metrics[key]) for key in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
