"""Use a trained policy: load, predict, export."""
