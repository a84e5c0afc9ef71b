"""Who runs in the next step. Plain Python over integers, the same under the real and the simulated executor."""
