"""Baselines: settings and what was measured of them, kept in a plain folder to hold later changes against."""

DEFAULT_STORE = "baselines"
"""The folder of all baselines."""
