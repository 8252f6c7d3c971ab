"""Qwen2.5-VL in Flax NNX, addressed as (config, params) pairs of pure functions."""

import os

# transformers says on import that without torch models are not available; ours are.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
