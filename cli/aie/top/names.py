"""What servers call the same thing. Ours has vLLM's names where vLLM has one, under a prefix of its own."""

from dataclasses import dataclass
from typing import Final

from aie.top.prometheus import Scrape

__all__ = ["COUNTERS", "GAUGES", "GPU", "HISTOGRAMS", "PHASES", "Dialect", "dialect_of"]

# What we show → its names without prefix, in the order of trying: ours and vLLM's, SGLang's, llama-server's, Triton's;
# of each the newer name before the older. What ends in `_us` is in microseconds, and read as seconds.
GAUGES: Final = {
    "running": ("num_requests_running", "num_running_reqs", "requests_processing"),
    "waiting": ("num_requests_waiting", "num_queue_reqs", "requests_deferred", "inference_pending_request_count"),
    "kv_usage": (
        "kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage", "full_token_usage", "kv_cache_usage_ratio",
    ),
    "hit_rate": ("cache_hit_rate",),
    "mean_batch": ("n_busy_slots_per_decode",),
    "batch_limit": ("max_batch_size",),
    "accept_length": ("spec_accept_length",),
    "engine_memory": ("engine_resident_memory_bytes",),
    "inputs_waiting": ("prediction_inputs_waiting",),
    "inputs_running": ("prediction_inputs_running",),
    "utilisation": ("prediction_batch_utilisation",),
}  # fmt: skip
COUNTERS: Final = {
    "prompt_tokens": ("prompt_tokens_total",),
    "generated_tokens": ("generation_tokens_total", "tokens_predicted_total"),
    "hit_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "hits": (
        "prefix_cache_hits_total", "gpu_prefix_cache_hits_total", "cached_tokens_total", "prompt_tokens_cached_total",
    ),
    "drafted": ("spec_decode_num_draft_tokens_total",),
    "accepted": ("spec_decode_num_accepted_tokens_total",),
    "preemptions": ("num_preemptions_total", "num_retracted_requests_total"),
    "steps": ("engine_steps_total", "iteration_tokens_total_count", "n_decode_total", "inference_exec_count"),
    "step_requests": ("engine_step_requests_total", "inference_count"),
    "step_tokens": ("iteration_tokens_total_sum",),
    "step_s": ("engine_step_seconds_total",),
    "execute_s": ("engine_execute_seconds_total",),
    "inputs": ("prediction_inputs_total",),
    "batch_inputs": ("prediction_batch_inputs_total",),
    "input_tokens": ("prediction_tokens_total",),
    "refused": ("prediction_inputs_refused_total",),
    "ended": ("request_success_total", "num_requests_total", "inference_request_success"),
    "failed": ("inference_request_failure",),
}  # fmt: skip
HISTOGRAMS: Final = {
    "ttft": ("time_to_first_token_seconds",),
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot": ("request_time_per_output_token_seconds",),
    "e2e": ("e2e_request_latency_seconds",),
    "queued": ("request_queue_time_seconds", "queue_time_seconds"),
}
# Where the time of requests goes, summed over them: phase → names. Predictors of ours have a label instead.
PHASES: Final = {
    "queue": ("request_queue_time_seconds_sum", "inference_queue_duration_us"),
    "prefill": ("request_prefill_time_seconds_sum",),
    "decode": ("request_decode_time_seconds_sum",),
    "input": ("inference_compute_input_duration_us",),
    "infer": ("inference_compute_infer_duration_us",),
    "output": ("inference_compute_output_duration_us",),
}
# Of the GPUs that a server looks after itself: ratio from 0 to 1, bytes, watts, joules since its start.
GPU: Final = {
    "utilisation": ("gpu_utilization",),
    "memory_used": ("gpu_memory_used_bytes",),
    "memory_total": ("gpu_memory_total_bytes",),
    "power_w": ("gpu_power_usage",),
    "energy_j": ("energy_consumption",),
}

_KNOWN: Final = {"aie_": "aie", "vllm:": "vLLM", "sglang:": "SGLang", "llamacpp:": "llama-server", "nv_": "Triton"}
_MODEL_LABELS: Final = {"Triton": "model"}
_TELLING: Final = (*GAUGES["running"], "inference_pending_request_count", "prediction_inputs_waiting")


@dataclass(frozen=True, slots=True)
class Dialect:
    """Whose names they are, and what stands before each."""

    server: str
    prefix: str

    @property
    def model_label(self) -> str:
        """The label that names the model."""
        return _MODEL_LABELS.get(self.server, "model_name")

    def find(self, scrape: Scrape, names: tuple[str, ...]) -> str | None:
        """The first of `names` that the server has."""
        return next((self.prefix + name for name in names if self.prefix + name in scrape.samples), None)


def dialect_of(scrape: Scrape) -> Dialect | None:
    """None for metrics of something that serves no models. Ours may have been given any prefix."""
    for name in scrape.samples:
        for telling in _TELLING:
            if name.endswith(telling):
                prefix = name.removesuffix(telling)
                is_ours = f"{prefix}engine_steps_total" in scrape.samples or telling == _TELLING[-1]
                return Dialect("aie" if is_ours else _KNOWN.get(prefix, "a server"), prefix)
    # Counters come before the first request, gauges perhaps only with it.
    for prefix, server in _KNOWN.items():
        if any(name.startswith(prefix) for name in scrape.samples):
            return Dialect(server, prefix)
    return None
