"""The serving engine: paged KV cache, continuous batching, executors. It knows nothing of tuning."""
