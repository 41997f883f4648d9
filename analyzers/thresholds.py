"""Every number that decides a severity, in one place, with where it comes from.

No universal collapse threshold exists: published runs are healthy at a KL of 0.01 and others collapse at 0.013. So absolute
lines here only say "more than published healthy runs show"; what is wrong follows from exclusion (semantics) and from the
run's own measured noise floor.
"""

from __future__ import annotations

LOGP_DIFF_WARN = 0.05
"""Mean |Δ log p| (nats) at equal weights above which numerics are named. Healthy: dense <= 0.012, MoE <= 0.03 (vime and Miles reports);
NeMo-RL's token_mult_prob_error of 1.05, verl's probability difference of 0.01 and Tinker's KL of 0.01 all convert to 0.045-0.053."""

K3_WARN = 0.01
"""Mean k3 (nats) at equal weights above which numerics are named. Tinker: < 0.01; prime-rl's bar for new models: < 0.015, aim < 0.01."""

RATIO_MEAN_LOW, RATIO_MEAN_HIGH = 0.9, 1.1
"""Mean importance ratio outside which the rollout's log-probabilities are not the law that sampled (if its interval lies outside too).
Healthy is 0.99-1.01; verl's rollout-correction health check flags outside 0.5-2, too wide for a temperature of 0.7 (1.2) or a
top-p of 0.9 (0.94)."""

K3_K1_LOW, K3_K1_HIGH = 0.5, 2.0
"""k3/k1 outside which two valid laws of the same tokens are doubtful; healthy runs show 0.98-1.04 (dynamo's verl recipe)."""

K3_TOKENS_TO_TEST = 50.0
"""k3 · tokens below which k3/k1 is not tested: its relative standard error is about sqrt(2 / (k3 · tokens))."""

INTERVAL_STANDARD_ERRORS = 3.0
"""Half-width, in clustered standard errors, of the interval that an importance-ratio finding must clear (99.7 % if normal)."""

BAD_ZERO_SHARE = 0.001
"""Share of tokens with a log-probability of exactly 0 that the other side contradicts (p < 0.999) above which zeros are placeholders.
In float32 an exact 0 means p = 1 to 24 bits; healthy runs have none that the other side puts below 0.999."""

ROUTING_EFFECT_NAMED = 2.0
"""Mean |Δ log p| of tokens with a routing difference over that of the others, from which routing is named as a part of a difference
above the line. Near-tie flips give a heavy tail (arXiv 2510.11370, IcePop); 2 is rlaudit's own choice. About 0.10 of routers
differing without
replay is normal there, so the share alone is never a warning."""

MISSING_SHARE_WARN = 0.01
"""Share of sampled tokens without a log-probability above which the comparison may not be of the run any more; rlaudit's own choice."""

FLOOR_RATIO_NAMED = 2.0
"""Level over measured noise floor from which the rollout engine adds something beyond the trainer's own repeatability."""

GROWTH_NAMED = 5.0
"""Mean |Δ log p| of the last step over that of the first from which weights that nobody received are named as not applied; rlaudit's own
choice: one optimizer step of the tiny models in tests moves it by more than ten times."""

PROBE_SAME_WEIGHTS = 0.01
"""Mean change (nats) of a probe over a load of equal weights from which the load is named. Working reloads: 9e-7 (vLLM, dense fp32), 0 or
rounding in bfloat16; experts in the wrong layout: above 0.3."""

VANISHED_SHARE = 0.2
"""Movement of the engine's probe over that of the trainer's own below which updates count as lost in the engine's dtype; rlaudit's own
choice."""

RETURNED_ROUNDING = 0.0625
"""Largest difference (nats) between what an engine returned and what the trainer keeps of it that rounding explains: half the spacing of
bfloat16 at 16 nats."""

FRAMEWORK_RELATIVE_TOLERANCE = 1e-4
"""Agreement with a framework's own number: float32 sums of up to 10⁵ tokens in another order and masks of equal tokens."""

FRAMEWORK_ABSOLUTE_TOLERANCE = 1e-7
"""Below one unit in the last place of a float32 log-probability near 1 nat."""
