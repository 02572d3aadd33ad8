"""Written by `make docs` from the code: what editors and type checkers know about this package."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict

from typing_extensions import Unpack

from rl_training.api import ManagedAlgorithm
from rl_training.config import TrainConfig as TrainConfig
from rl_training.experiment import run_sweep as run_sweep
from rl_training.experiment import run_tuning as run_tuning
from rl_training.pipeline import run_pipeline as run_pipeline
from rl_training.runtime import ConfigSource, TrainResult
from rl_training.runtime import evaluate as evaluate
from rl_training.runtime import fetch_run as fetch_run
from rl_training.runtime import predict as predict
from rl_training.runtime import resume as resume
from rl_training.runtime import train as train
from rl_training.selection import estimate as estimate
from rl_training.selection import select as select

__version__: str

# Algorithms of one's own, once they are registered.
def __getattr__(name: str) -> Any: ...

class _TrainConfig(TypedDict, total=False):
    seed: int
    total_timesteps: int
    output_dir: Any
    run_name: str | None
    device: str
    num_envs: int | None
    eval_episodes: int
    log_interval: int
    checkpoint_interval: int
    keep_checkpoints: int | Literal['all']
    upload_url: str | None
    tags: Sequence[str]
    sinks: Sequence[Literal['mlflow', 'wandb']]
    algo_kwargs: Mapping[str, Any]
    env_kwargs: Mapping[str, Any]

class _DatasetSpec(TypedDict, total=False):
    dataset_kind: Literal['random', 'npz', 'pt', 'hdf5', 'mapped', 'minari', 'csv', 'parquet'] | None
    dataset_path: Any | None
    dataset_columns: Mapping[str, Any] | None
    dataset_id: str | None
    dataset_download: bool
    dataset_size: int | None
    dataset_seed: int

class _DataOptions(_DatasetSpec, total=False):
    dataset_mix: Sequence[Mapping[str, Any]]
    reward_scale: float | None
    reward_shift: float | None
    reward_clip_min: float | None
    reward_clip_max: float | None
    reward_preset: Literal['sign_clip', 'clip_1', 'sparse_goal_zero_one'] | None
    reward_normalize: Literal['none', 'return_range', 'standard']
    normalize_obs: bool
    clip_actions: bool
    action_low: Sequence[float] | None
    action_high: Sequence[float] | None
    num_actions: int | None
    invalid_actions: Literal['error', 'drop']
    accept_audit: bool
    best_fraction: float | None
    validation_fraction: float | None
    validation_folds: int | None
    validation_fold: int

class _LoopOptions(TypedDict, total=False):
    mode: Literal['offline', 'online', 'offline_to_online'] | None
    batch_size: int
    n_step: int
    min_buffer_size: int
    compile: Literal['auto', 'always', 'never']

class _OnlineOptions(TypedDict, total=False):
    buffer_capacity: int
    learning_starts: int
    update_to_data: float | None
    train_frequency: int | None
    gradient_updates_per_step: int | None
    exploration_noise: float
    exploration_schedule: Any | None
    vector_env: Literal['sync', 'async']
    replay: Literal['uniform', 'hindsight']
    her_ratio: float
    goal_selection_strategy: Literal['future', 'final', 'episode']
    save_replay: bool
    initial_checkpoint: Any | None
    offline_pretrain_updates: int
    offline_batch_ratio: float | Literal['proportional']

class _ControlOptions(TypedDict, total=False):
    eval_interval: int | None
    eval_max_steps: int | None
    eval_fqe: bool
    max_updates: int | None
    max_epochs: int | None
    learning_rate_schedule: Any | None
    actor_learning_rate_schedule: Any | None
    warmup_steps: int | None
    early_stopping: Mapping[str, Any] | None

class _GuardOptions(TypedDict, total=False):
    on_divergence: Literal['stop', 'warn', 'rollback']
    guard_value_slack: float | None
    guard_saturation: float | None
    guard_action_spread: float | None
    guard_weight_growth: float | None
    guard_ensemble_spread: float | None
    guard_clone_error: float | None
    guard_clone_after: int

class _Options(_TrainConfig, _DataOptions, _LoopOptions, _OnlineOptions, _ControlOptions, _GuardOptions, total=False):
    pass

class _Hyper(_Options, total=False):
    learning_rate: float
    hidden_sizes: Sequence[int]
    activation: Literal['relu', 'leaky_relu', 'elu', 'selu', 'gelu', 'silu', 'mish', 'tanh']
    layer_norm: Literal['none', 'before', 'after']
    encoder: Any | None
    encoder_kwargs: Mapping[str, Any]
    max_grad_norm: float | None
    precision: Literal['float32', 'bfloat16']

class _ActorCriticHyper(_Hyper, total=False):
    gamma: float
    actor_learning_rate: float | None
    critic_learning_rate: float | None
    actor_hidden_sizes: Sequence[int] | None
    critic_hidden_sizes: Sequence[int] | None

class _ValueHyper(_ActorCriticHyper, total=False):
    tau: float

class _AWACHyper(_ValueHyper, total=False):
    awac_lambda: float
    weights: Literal['exp', 'softmax']
    max_weight: float
    baseline: Literal['sample', 'mean']
    num_action_samples: int
    spread: Literal['clipped', 'sigmoid']
    squash_mean: bool
    actor_weight_decay: float

class AWAC(ManagedAlgorithm):
    """AWAC: imitate the data, weighted by how much better each action is than the policy's own."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_AWACHyper],
    ) -> None: ...

def train_awac(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _LambdaReturnHyper(_Hyper, total=False):
    value_learning_rate: float | None
    gamma: float
    td_lambda: float
    recompute_interval: int
    max_weight: float

class _AWRHyper(_LambdaReturnHyper, total=False):
    temperature: float
    action_std: float
    bound_weight: float
    value_scale: float

class AWR(ManagedAlgorithm):
    """AWR: regression of the value on returns, and of the policy on the actions that did better than it."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_AWRHyper],
    ) -> None: ...

def train_awr(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _BCHyper(_Hyper, total=False):
    policy: Literal['deterministic', 'stochastic']

class BC(ManagedAlgorithm):
    """BC: imitate the logged actions."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_BCHyper],
    ) -> None: ...

def train_bc(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _VAEHyper(_ValueHyper, total=False):
    vae_hidden_sizes: Sequence[int]
    vae_learning_rate: float | None
    vae_kl_weight: float
    min_q_weight: float
    num_target_samples: int
    num_action_samples: int

class _BCQHyper(_VAEHyper, total=False):
    phi: float

class BCQ(ManagedAlgorithm):
    """BCQ: choose by value among actions that a model of the behaviour would take, slightly perturbed."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_BCQHyper],
    ) -> None: ...

def train_bcq(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _BEARHyper(_VAEHyper, total=False):
    mmd_kernel: Literal['laplacian', 'gaussian']
    mmd_sigma: float
    mmd_threshold: float
    mmd_warmup_updates: int
    num_mmd_samples: int
    lagrange_learning_rate: float | None
    target_policy: Literal['current', 'lagged']
    policy_value: Literal['first', 'mean']

class BEAR(ManagedAlgorithm):
    """BEAR: improve the policy only within the support of the behaviour, measured by a kernel distance between samples."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_BEARHyper],
    ) -> None: ...

def train_bear(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _EntropyHyper(_Hyper, total=False):
    alpha: float | Literal['auto']
    target_entropy: float | None
    temperature_learning_rate: float | None

class _CalibrationHyper(_Hyper, total=False):
    calibrated: bool
    online_calibrated: bool
    failure_reward: float | None

class _CQLHyper(_ValueHyper, _EntropyHyper, _CalibrationHyper, total=False):
    conservative_weight: float
    online_conservative_weight: float | None
    num_action_samples: int
    penalty_temperature: float
    importance_sampled: bool
    penalty_clip_min: float | None
    penalty_clip_max: float | None
    conservative_gap: float | None
    lagrange_form: Literal['weight_outside', 'weight_inside']
    initial_log_lagrange: float
    lagrange_learning_rate: float | None
    orthogonal_actor: bool
    target_action: Literal['sample', 'mean']
    max_backup: Literal['none', 'max_of_min', 'min_of_max']
    backup_entropy: bool
    bc_updates: int

class _CalQLHyper(_CQLHyper, total=False):
    pass

class CalQL(ManagedAlgorithm):
    """CalQL: CQL that never values the policy below what the data achieved, so that fine-tuning does not unlearn first."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_CalQLHyper],
    ) -> None: ...

def train_cal_ql(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class CQL(ManagedAlgorithm):
    """CQL: SAC whose critics are pushed down where actions are sampled and up where they were logged."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_CQLHyper],
    ) -> None: ...

def train_cql(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _CrossQHyper(_ActorCriticHyper, _EntropyHyper, total=False):
    actor_beta1: float
    critic_beta1: float
    num_critics: int
    policy_delay: int
    norm_momentum: float
    norm_warmup: int

class CrossQ(ManagedAlgorithm):
    """CrossQ: SAC without target networks, whose critics normalise (s, a) and (s', a') together."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_CrossQHyper],
    ) -> None: ...

def train_crossq(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _FilterHyper(_ValueHyper, total=False):
    weights: Literal['exp', 'binary', 'constant']
    beta: float
    max_weight: float

class _CRRHyper(_FilterHyper, total=False):
    advantage: Literal['mean', 'max']
    num_action_samples: int
    num_critics: int
    critic_layer_norm: bool
    target_update_interval: int

class CRR(ManagedAlgorithm):
    """CRR: imitate the data, but only or mostly where the critic prefers its actions to the policy's own."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_CRRHyper],
    ) -> None: ...

def train_crr(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _DDPGHyper(_ValueHyper, total=False):
    critic_weight_decay: float

class DDPG(ManagedAlgorithm):
    """DDPG: a deterministic actor that climbs the slope of its critic."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_DDPGHyper],
    ) -> None: ...

def train_ddpg(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _DQNHyper(_Hyper, total=False):
    gamma: float
    double: bool
    dueling: bool
    num_quantiles: int | None
    huber_delta: float | None
    tau: float
    target_update_interval: int

class _DiscreteBCQHyper(_DQNHyper, total=False):
    threshold: float
    logit_penalty: float

class DiscreteBCQ(ManagedAlgorithm):
    """DiscreteBCQ: double DQN restricted to actions that are likely enough in the data."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_DiscreteBCQHyper],
    ) -> None: ...

def train_discrete_bcq(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _DiscreteCQLHyper(_DQNHyper, total=False):
    conservative_weight: float
    online_conservative_weight: float | None

class DiscreteCQL(ManagedAlgorithm):
    """DiscreteCQL: DQN whose values are pushed down over all actions and up at the logged ones."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_DiscreteCQLHyper],
    ) -> None: ...

def train_discrete_cql(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _DiscreteCRRHyper(_FilterHyper, total=False):
    target_policy: Literal['target', 'online']
    conservative_weight: float
    num_critics: int
    target_update_interval: int

class DiscreteCRR(ManagedAlgorithm):
    """DiscreteCRR: imitate the data, but only or mostly where the critic prefers its actions to the policy's own."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_DiscreteCRRHyper],
    ) -> None: ...

def train_discrete_crr(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _DiscreteIQLHyper(_ValueHyper, total=False):
    expectile: float
    beta: float
    max_weight: float
    value_learning_rate: float | None
    extraction: Literal['weighted', 'constrained', 'shifted']
    threshold: float

class DiscreteIQL(ManagedAlgorithm):
    """DiscreteIQL: learn how good the best logged actions are without asking for any other action."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_DiscreteIQLHyper],
    ) -> None: ...

def train_discrete_iql(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _DiscreteSACHyper(_ValueHyper, total=False):
    alpha: float | Literal['auto']
    target_entropy_ratio: float
    temperature_learning_rate: float | None
    conservative_weight: float
    online_conservative_weight: float | None
    bc_weight: float
    huber_delta: float | None
    num_critics: int
    target_update_interval: int

class DiscreteSAC(ManagedAlgorithm):
    """DiscreteSAC: SAC whose policy is categorical, so that all expectations over actions are exact."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_DiscreteSACHyper],
    ) -> None: ...

def train_discrete_sac(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class DQN(ManagedAlgorithm):
    """DQN: learn the value of every action, and take the best."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_DQNHyper],
    ) -> None: ...

def train_dqn(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _SACHyper(_ValueHyper, _EntropyHyper, total=False):
    num_critics: int

class _SACNHyper(_SACHyper, total=False):
    pass

class _EDACHyper(_SACNHyper, total=False):
    diversity_weight: float

class EDAC(ManagedAlgorithm):
    """EDAC: SAC-N whose critics must disagree in how they would change an action, so that fewer of them suffice."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_EDACHyper],
    ) -> None: ...

def train_edac(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _HERHyper(_SACHyper, total=False):
    pass

class HER(ManagedAlgorithm):
    """HER: SAC that also learns from relabelled goals: goals that were reached, instead of the given ones."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_HERHyper],
    ) -> None: ...

def train_her(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _ImplicitHyper(_ValueHyper, total=False):
    beta: float
    max_weight: float
    value_learning_rate: float | None
    policy: Literal['stochastic', 'deterministic']
    spread: Literal['clipped', 'sigmoid']
    huber_delta: float | None
    actor_dropout: float

class _IQLHyper(_ImplicitHyper, total=False):
    expectile: float

class IQL(ManagedAlgorithm):
    """IQL: learn how good the best logged actions are without asking for any other action."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_IQLHyper],
    ) -> None: ...

def train_iql(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _MARWILHyper(_LambdaReturnHyper, total=False):
    beta: float
    value_weight: float
    scale_start: float | None
    scale_rate: float
    log_std_weight: float

class MARWIL(ManagedAlgorithm):
    """MARWIL: imitate the data, weighted by how much the return exceeded the value of the state."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_MARWILHyper],
    ) -> None: ...

def train_marwil(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _PPOHyper(_Hyper, total=False):
    adam_eps: float
    gamma: float
    gae_lambda: float
    rollout_steps: int
    epochs: int
    clip_range: float
    value_clip: float | None
    value_weight: float
    entropy_weight: float
    normalize_rewards: bool
    normalize_advantage: bool
    log_std: float

class PPO(ManagedAlgorithm):
    """PPO: several passes over each rollout, with a policy that may not move far from the one that acted."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_PPOHyper],
    ) -> None: ...

def train_ppo(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _SmoothingHyper(_ValueHyper, total=False):
    policy_noise: float
    noise_clip: float
    policy_delay: int

class _ReBRACHyper(_SmoothingHyper, total=False):
    actor_bc_weight: float
    critic_bc_weight: float
    actor_q_weight: float
    normalize_q: bool
    online_actor_bc_factor: float
    online_critic_bc_factor: float
    critic_layer_norm: bool

class ReBRAC(ManagedAlgorithm):
    """ReBRAC: TD3+BC that stays near the data in the critic's target too, with deeper, normalised critics."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_ReBRACHyper],
    ) -> None: ...

def train_rebrac(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _REDQHyper(_SACHyper, total=False):
    num_target_critics: float
    policy_delay: int
    backup_entropy: bool
    critic_dropout: float
    critic_layer_norm: bool

class REDQ(ManagedAlgorithm):
    """REDQ: SAC with many critics of which a random few make the target, so that many updates per step do no harm."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_REDQHyper],
    ) -> None: ...

def train_redq(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _RLPDHyper(_REDQHyper, total=False):
    pass

class RLPD(ManagedAlgorithm):
    """RLPD: REDQ with normalised critics, on batches of which half is logged data."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_RLPDHyper],
    ) -> None: ...

def train_rlpd(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class SAC(ManagedAlgorithm):
    """SAC: a stochastic actor that is paid for entropy as well as for value."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_SACHyper],
    ) -> None: ...

def train_sac(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class SACN(ManagedAlgorithm):
    """SACN: SAC that believes the most pessimistic of many critics."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_SACNHyper],
    ) -> None: ...

def train_sac_n(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _TD3Hyper(_SmoothingHyper, total=False):
    num_critics: int

class TD3(ManagedAlgorithm):
    """TD3: a deterministic actor that follows the more pessimistic of two critics."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_TD3Hyper],
    ) -> None: ...

def train_td3(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _TD3BCHyper(_TD3Hyper, total=False):
    bc_alpha: float

class TD3BC(ManagedAlgorithm):
    """TD3BC: TD3 whose actor is also asked to stay near the data."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_TD3BCHyper],
    ) -> None: ...

def train_td3_bc(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _TQCHyper(_SACHyper, total=False):
    num_quantiles: int
    dropped_quantiles: int

class TQC(ManagedAlgorithm):
    """TQC: SAC whose critics know the distribution of the return, and whose targets leave its top out."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_TQCHyper],
    ) -> None: ...

def train_tqc(config: ConfigSource, **arguments: Any) -> TrainResult: ...

class _XQLHyper(_ImplicitHyper, total=False):
    loss_temperature: float
    gumbel_clip: float
    two_sided_clip: bool
    value_updates: int
    value_layer_norm: bool
    random_actions: int
    action_noise: float

class XQL(ManagedAlgorithm):
    """XQL: IQL whose value is the soft maximum over logged actions, fitted by Gumbel regression."""

    algo: ClassVar[str]
    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        dataset: Any = None,
        env: Any = None,
        **options: Unpack[_XQLHyper],
    ) -> None: ...

def train_xql(config: ConfigSource, **arguments: Any) -> TrainResult: ...
