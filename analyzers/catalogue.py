"""The catalogue of metrics: each defined once, with its source and the names that frameworks use for the same number.

Notation: Δ = log p_trainer - log p_rollout of a sampled token; p = exp(log p). Every mean is a mean over tokens (all sampled tokens of
the step or run with equal weight), not a mean of sequence means, unless ``aggregation`` says otherwise. Only tokens whose two
log-probabilities are there and finite count.

``aliases`` lists only names whose *definition* is the same: the formula and the aggregation, over the same tokens.
"""

from __future__ import annotations

from rlaudit.analyzers.results import MetricDefinition

_TOKENS = "over tokens"

_DEFINITIONS = (
    MetricDefinition(
        "pearson_prob",
        "Pearson correlation of probabilities",
        "corr(p_rollout, p_trainer)",
        None,
        "over tokens; undefined without variance",
        "MiniMax-M1 (arXiv 2506.13585), as in verl/utils/debug/metrics.py calculate_debug_metrics",
        {"verl": "training/rollout_actor_probs_pearson_corr"},
    ),
    MetricDefinition(
        "pearson_logp",
        "Pearson correlation of log-probabilities",
        "corr(log p_rollout, log p_trainer)",
        None,
        "over tokens; undefined without variance",
        "Pearson's r; weighs unlikely tokens, where pearson_prob is ruled by those near 1",
    ),
    MetricDefinition(
        "prob_diff_mean",
        "Mean probability difference",
        "mean |p_trainer - p_rollout|",
        None,
        _TOKENS,
        "verl/utils/debug/metrics.py calculate_debug_metrics",
        {"verl": "training/rollout_probs_diff_mean"},
    ),
    MetricDefinition(
        "prob_diff_std",
        "Standard deviation of the probability difference",
        "std |p_trainer - p_rollout|, divisor n - 1",
        None,
        _TOKENS,
        "verl/utils/debug/metrics.py calculate_debug_metrics",
        {"verl": "training/rollout_probs_diff_std"},
    ),
    MetricDefinition(
        "prob_diff_max",
        "Largest probability difference",
        "max |p_trainer - p_rollout|",
        None,
        _TOKENS,
        "verl/utils/debug/metrics.py calculate_debug_metrics",
        {"verl": "training/rollout_probs_diff_max"},
    ),
    MetricDefinition(
        "prob_diff_p50",
        "Median probability difference",
        "50th percentile of |p_trainer - p_rollout|",
        None,
        _TOKENS,
        "order statistics, linear interpolation",
    ),
    MetricDefinition(
        "prob_diff_p99",
        "99th percentile of the probability difference",
        "99th percentile of |p_trainer - p_rollout|",
        None,
        _TOKENS,
        "order statistics, linear interpolation",
    ),
    MetricDefinition(
        "logp_diff_mean",
        "Mean absolute log-probability difference",
        "mean |Δ|",
        "nats",
        _TOKENS,
        "trl/trainer/grpo_trainer.py (token mean); slime, Miles and vime log the mean of sequence means of it as "
        "train_rollout_logprob_abs_diff, which differs where it depends on length",
        {
            "trl": "sampling/sampling_logp_difference/mean",
            "skyrl": "rollout_train_logprobs_abs_diff_mean",
            "open-instruct": "vllm_vs_local_logprob_diff_mean",
        },
    ),
    MetricDefinition(
        "logp_diff_std",
        "Standard deviation of the absolute log-probability difference",
        "std |Δ|, divisor n - 1",
        "nats",
        _TOKENS,
        "SkyRL and open-instruct",
        {"skyrl": "rollout_train_logprobs_abs_diff_std", "open-instruct": "vllm_vs_local_logprob_diff_std"},
    ),
    *(
        MetricDefinition(
            name,
            f"{words} of the absolute log-probability difference",
            f"{share} percentile of |Δ|",
            "nats",
            "over tokens; exact within a step and over up to 8 million tokens, beyond from a histogram of every eighth (bins of 0.2 %)",
            "order statistics, linear interpolation",
        )
        for name, words, share in (
            ("logp_diff_p50", "Median", "50th"),
            ("logp_diff_p90", "90th percentile", "90th"),
            ("logp_diff_p99", "99th percentile", "99th"),
            ("logp_diff_p999", "99.9th percentile", "99.9th"),
        )
    ),
    MetricDefinition(
        "logp_diff_max",
        "Largest absolute log-probability difference",
        "max |Δ|",
        "nats",
        _TOKENS,
        "trl/trainer/grpo_trainer.py, SkyRL, open-instruct",
        {
            "trl": "sampling/sampling_logp_difference/max",
            "skyrl": "rollout_train_logprobs_abs_diff_max",
            "open-instruct": "vllm_vs_local_logprob_diff_max",
        },
    ),
    MetricDefinition(
        "k1",
        "KL estimate k1",
        "mean -Δ; estimates KL(rollout || trainer), may be negative",
        "nats",
        _TOKENS,
        "Schulman, Approximating KL Divergence (2020); blind to shifts and permutations of tokens",
        {"verl": "rollout_corr/kl", "openrlhf": "vllm_kl", "tinker": "optim/kl_sample_train_v1"},
    ),
    MetricDefinition(
        "k3",
        "KL estimate k3",
        "mean exp(Δ) - 1 - Δ; estimates KL(rollout || trainer)",
        "nats",
        _TOKENS,
        "Schulman, Approximating KL Divergence (2020)",
        {"verl": "rollout_corr/k3_kl", "prime-rl": "mismatch_kl/all/mean", "nemo-rl": "gen_kl_error"},
    ),
    MetricDefinition(
        "ratio_mean",
        "Mean importance ratio",
        "mean exp(Δ); 1 in expectation where the rollout log-probabilities are the law that sampled",
        None,
        _TOKENS,
        "importance sampling identity",
        {"nemo-rl": "sampling_importance_ratio"},
    ),
    MetricDefinition(
        "ratio_gt2",
        "Share of tokens whose probability ratio is beyond 2",
        "mean [max(p_trainer/p_rollout, p_rollout/p_trainer) > 2]",
        None,
        _TOKENS,
        "F(τ) with τ = 2 of Ma et al., Rollout Routing Replay (arXiv 2510.11370)",
    ),
    MetricDefinition(
        "ess",
        "Effective sample size as a share",
        "1 / mean((w / mean w)²) with w = exp(Δ)",
        None,
        _TOKENS,
        "Kish's effective sample size; verl clamps Δ to ±20 first and this does not",
    ),
    MetricDefinition(
        "routing_disagreement",
        "Routing disagreement",
        "share of (token, layer) pairs whose two expert sets differ",
        None,
        "over all token positions (prompt and response) and layers that both sides routed",
        "router mismatch of Ma et al., Rollout Routing Replay (arXiv 2510.11370)",
    ),
    MetricDefinition(
        "routing_overlap",
        "Expert overlap",
        "mean |experts_rollout ∩ experts_trainer| / top_k",
        None,
        "over token positions and layers that both sides routed",
        "intersection of expert sets",
    ),
    MetricDefinition(
        "routing_any_layer",
        "Tokens with any layer routed differently",
        "share of tokens with a layer whose two expert sets differ",
        None,
        "over token positions that both sides routed",
        "token mismatch of Ma et al., Rollout Routing Replay (arXiv 2510.11370)",
    ),
)

CATALOGUE: dict[str, MetricDefinition] = {definition.name: definition for definition in _DEFINITIONS}
"""Every metric by name, in printing order."""
