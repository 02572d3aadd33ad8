"""Where batches come from: logs, replay buffers, rollouts."""
