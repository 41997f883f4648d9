"""The SQL that recomputes a report's numbers through the public views, running as it stands (``rlaudit query RUN "..."``)."""

from __future__ import annotations

from rlaudit.analyzers.measured import Measured

METRICS_SQL = """count(*) AS tokens,
       corr(exp(rollout_logp), exp(trainer_logp)) AS pearson_prob,
       corr(rollout_logp, trainer_logp) AS pearson_logp,
       avg(abs(exp(trainer_logp) - exp(rollout_logp))) AS prob_diff_mean,
       stddev_samp(abs(exp(trainer_logp) - exp(rollout_logp))) AS prob_diff_std,
       max(abs(exp(trainer_logp) - exp(rollout_logp))) AS prob_diff_max,
       quantile_cont(abs(exp(trainer_logp) - exp(rollout_logp)), 0.5) AS prob_diff_p50,
       quantile_cont(abs(exp(trainer_logp) - exp(rollout_logp)), 0.99) AS prob_diff_p99,
       avg(abs(delta)) AS logp_diff_mean,
       stddev_samp(abs(delta)) AS logp_diff_std,
       quantile_cont(abs(delta), 0.5) AS logp_diff_p50,
       quantile_cont(abs(delta), 0.9) AS logp_diff_p90,
       quantile_cont(abs(delta), 0.99) AS logp_diff_p99,
       quantile_cont(abs(delta), 0.999) AS logp_diff_p999,
       max(abs(delta)) AS logp_diff_max,
       avg(k1(delta)) AS k1,
       avg(k3(delta)) AS k3,
       avg(importance_ratio(delta)) AS ratio_mean,
       avg(ratio_beyond(delta, 2)::INT) AS ratio_gt2,
       pow(avg(importance_ratio(delta)), 2) / avg(pow(importance_ratio(delta), 2)) AS ess"""

TOKENS_SQL = "FROM tokens\nWHERE comparable AND phase = 'train'{more}"
WHOLE_SQL = """
  AND (attempt, step, sequence_id) NOT IN (
    SELECT (q.attempt, q.step, q.sequence_id) FROM sequences q
    JOIN whole_scores s ON q.attempt = s.attempt AND q.step = s.step AND q.sequence_id = s.sequence_id
    WHERE s.source IN ('rollout', 'trainer', 'update')
      AND (len(s.logprobs) IS DISTINCT FROM len(q.response_tokens) OR len(q.sampled_mask) <> len(q.response_tokens)))"""
"""Leaves out the sequences that LEN_MISMATCH withholds; only added where there are any."""

ROUTING_SQL = """FROM routing_pairs
WHERE source_a = 'rollout' AND source_b = '{source}' AND update_b = 0 AND {lag}"""
TRAIN_SQL = """
  AND (attempt, step, sequence_id) IN (SELECT (attempt, step, sequence_id) FROM sequences WHERE phase = 'train')"""
"""Keeps other phases out of ``routing_pairs``, which has no phase; only added where there are any."""

QUERYABLE_TOKENS = 20_000_000
"""More tokens than this don't fit into a small machine's memory at once (about 15 bytes a token): the queries then take one step range."""


def report_queries(measured: Measured) -> dict[str, str]:
    """Title to SQL; empty where nothing was compared."""
    stats = measured.at_basis()
    if not stats.tokens:
        return {}
    lag = "lag = 0" if measured.basis == "equal" else "lag IS NULL"
    whole = WHOLE_SQL if measured.joined.length_mismatches else ""
    steps = sorted(measured.step_numbers)
    part, note = "", ""
    if measured.tokens > QUERYABLE_TOKENS and len(steps) > 1:
        count = max(1, len(steps) * QUERYABLE_TOKENS // measured.tokens)
        part, note = (
            f" AND step BETWEEN {steps[0]} AND {steps[count - 1]}",
            " (a range of steps that fits into memory; change it for others)",
        )
    queries = {
        f"Metrics by step{note}": f"SELECT attempt, step, lag, {METRICS_SQL}\n{TOKENS_SQL.format(more=part + whole)}\nGROUP "
        f"BY attempt, step, lag\nORDER BY attempt, step, lag",
        f"Metrics over the run at {'equal' if lag == 'lag = 0' else 'unknown'} policy version{note}": f"SELECT "
        f"{METRICS_SQL}\n{TOKENS_SQL.format(more=f' AND {lag}' + part + whole)}",
        f"Tokens that differ most{note}": "SELECT step, sequence_id, position, token_id, rollout_logp, trainer_logp, delta\n"
        f"{TOKENS_SQL.format(more=f' AND {lag}' + part + whole)}\nORDER BY abs(delta) DESC\nLIMIT 20",
    }
    if measured.routing_at().joined:
        source = "trainer" if measured.routing_at().sources.get("trainer") else "update"
        rows = ROUTING_SQL.format(source=source, lag=lag) + part + (TRAIN_SQL if measured.not_train else "")
        queries[f"Routing by layer{note}"] = (
            f"SELECT layer, count(*) AS tokens, avg(differs::INT) AS disagreement, sum(overlap) / sum(top_k) AS "
            f"overlap\n{rows}\nGROUP BY layer\nORDER BY layer"
        )
        queries[f"Routing by step{note}"] = (
            "SELECT step, count(*) AS tokens, sum(differing) / sum(layers) AS disagreement, avg((differing > 0)::INT) AS any_layer\n"
            "FROM (SELECT attempt, step, sequence_id, absolute_position, count(*) AS layers, count(*) FILTER (WHERE differs) AS differing\n"
            f"{rows}\nGROUP BY ALL)\nGROUP BY step\nORDER BY step"
        )
    return queries
