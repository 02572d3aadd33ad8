"""A log in, a policy and a report out."""

from __future__ import annotations

from rl_training.pipeline.config import PipelineConfig, read_values
from rl_training.pipeline.run import PipelineResult, run_pipeline
from rl_training.pipeline.time_budget import describe_times

__all__ = ["PipelineConfig", "PipelineResult", "describe_times", "read_values", "run_pipeline"]
