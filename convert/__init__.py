"""Checkpoints to GGUF."""
