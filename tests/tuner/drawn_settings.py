"""Random settings of every kind, for properties that hold for all of them."""

from hypothesis import strategies as st

from engine.config import BATCHING_MODES, POLICIES, PREEMPTION_MODES, PREEMPTION_VICTIMS
from tuner.settings import Settings

SECONDS = st.sampled_from([0.0, 0.02, 0.1, 1.5, 5.0, 90.0])
LIMITS = st.integers(0, 4096)

SETTINGS = st.builds(
    Settings,
    gpu_memory_utilization=st.floats(0.01, 1.0),
    max_num_seqs=st.integers(1, 4096),
    max_num_batched_tokens=st.integers(1, 32768),
    chunk_size=st.integers(0, 32768),
    block_size=st.sampled_from([8, 16, 32]),
    enable_prefix_caching=st.booleans(),
    policy=st.sampled_from(POLICIES),
    short_first_tokens=LIMITS,
    retried_first=st.booleans(),
    aging=SECONDS,
    batching=st.sampled_from(BATCHING_MODES),
    max_queue_delay=SECONDS,
    preferred_batch_size=LIMITS,
    max_queue_len=LIMITS,
    max_queue_tokens=LIMITS,
    queue_timeout=SECONDS,
    max_predicted_wait=SECONDS,
    preemption_mode=st.sampled_from(PREEMPTION_MODES),
    swap_space=st.sampled_from([0, 1, 3 << 20, 512 << 20, 4 << 30]),
    preemption_victim=st.sampled_from(PREEMPTION_VICTIMS),
)
