"""The same block bookkeeping by vLLM's `KVCacheManager`, for `benchmarks.store`.

Run by an interpreter that has vLLM; prints one line of JSON: figure -> value. Touches no tensor.
"""

import gc
import json
import statistics
import sys
import time
import tracemalloc

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


class Peer:
    """A full pool of cached prompts."""

    def __init__(self, capacity: int, block_size: int, max_tokens: int) -> None:
        spec = FullAttentionSpec(block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
        config = KVCacheConfig(capacity + 1, [], [KVCacheGroupSpec(["layer"], spec)])
        self.manager = KVCacheManager(
            config,
            max_model_len=max_tokens,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=True,
        )
        digest = get_hash_fn_by_name("sha256")  # its default
        init_none_hash(digest)
        self._hasher = get_request_block_hasher(block_size, digest)
        self._params = SamplingParams(max_tokens=16)
        self._count = 0

    def admit(self, prompt: list[int]) -> Request:
        """Hash, look up, take blocks."""
        self._count += 1
        request = Request(f"r{self._count}", prompt, self._params, None, block_hasher=self._hasher)
        blocks, hit, _ = self.manager.get_computed_blocks(request)
        got = self.manager.allocate_slots(request, len(prompt) - hit, hit, blocks)
        assert got is not None
        request.num_computed_tokens = len(prompt)
        return request


def main() -> None:
    """Measure what the arguments say: capacity, block size, repeats, seed, lengths."""
    capacity, block_size, repeats, seed, batch, *lengths = map(int, sys.argv[1:])
    rng = np.random.default_rng(seed)
    longest = max(lengths) + 4096

    def prompt(length: int) -> list[int]:
        tokens: list[int] = rng.integers(0, 50_000, length).tolist()
        return tokens

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    peer = Peer(capacity, block_size, longest)
    for _ in range(-(-capacity * block_size // 4096)):
        peer.manager.free(peer.admit(prompt(4096)))
    gc.collect()
    figures = {"bytes": (tracemalloc.get_traced_memory()[0] - before) / capacity}
    tracemalloc.stop()
    gc.freeze()
    for length in lengths:
        hits, news, releases = [], [], []
        for _ in range(repeats):
            tokens = prompt(length)
            begun = time.perf_counter()
            request = peer.admit(tokens)
            news.append((time.perf_counter() - begun) * 1e6)
            begun = time.perf_counter()
            peer.manager.free(request)
            releases.append((time.perf_counter() - begun) * 1e6)
            begun = time.perf_counter()
            request = peer.admit(tokens)
            hits.append((time.perf_counter() - begun) * 1e6)
            peer.manager.free(request)
        figures[f"hit{length}"] = statistics.median(hits)
        figures[f"new{length}"] = statistics.median(news)
        figures[f"release{length}"] = statistics.median(releases)
    running = [peer.admit(prompt(600 + i)) for i in range(batch)]
    steps = []
    for step in range(20 * repeats):
        begun = time.perf_counter()
        peer.manager.new_step_starts()
        for request in running:
            request.append_output_token_ids(step)
            got = peer.manager.allocate_slots(request, 1)
            assert got is not None
            request.num_computed_tokens += 1
        steps.append((time.perf_counter() - begun) * 1e9 / batch)
    figures["decode"] = statistics.mean(steps)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
