"""A change held against a baseline: both are measured in turn on this machine, and the difference is judged."""
