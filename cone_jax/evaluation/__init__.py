"""Judging a trained network."""
