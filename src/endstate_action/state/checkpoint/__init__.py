"""Checkpoints: a journal and a workspace that belong together, sealed into one object, or nothing."""
