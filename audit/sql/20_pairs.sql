-- view: pairs
-- description: One row per response token and pair of policy evaluations of it (rollout before trainer before update before reference before replays). Filter by source_a and source_b, and by step.
-- column attempt: restart counter
-- column step: training step
-- column sequence_id: the sampled response
-- column phase: train, eval, warmup or reward
-- column position (tokens): 0 at the first response token
-- column is_sampled: the policy sampled this token
-- column in_loss: the token counted in the loss; null where unknown
-- column source_a: the first evaluation
-- column update_a (optimizer steps): its optimizer steps since the sequence's first use
-- column source_b: the second evaluation
-- column update_b (optimizer steps): its optimizer steps since the sequence's first use
-- column logp_a (nats): log-probability by the first
-- column logp_b (nats): log-probability by the second
-- column delta (nats): logp_b - logp_a
-- column comparable: is_sampled, and both log-probabilities are there and finite
-- column lag (optimizer steps): optimizer steps between the two evaluations' weights; null where unknown
CREATE OR REPLACE VIEW pairs AS
WITH ranked AS (
    SELECT attempt, step, sequence_id, source, "update", logprobs, policy_updates,
           CASE source WHEN 'rollout' THEN 0 WHEN 'trainer' THEN 1 WHEN 'update' THEN 2 WHEN 'reference' THEN 3 ELSE 4 END AS place
    FROM whole_scores
),
unnested AS (
    SELECT a.attempt, a.step, a.sequence_id, q.phase,
           unnest(range(greatest(len(q.response_tokens), len(a.logprobs), len(b.logprobs)))) AS position,
           unnest(q.response_tokens) AS token_id,
           unnest(q.sampled_mask) AS sampled,
           unnest(q.loss_mask) AS in_loss,
           a.source AS source_a, a."update" AS update_a, b.source AS source_b, b."update" AS update_b,
           unnest(a.logprobs)::DOUBLE AS logp_a,
           unnest(b.logprobs)::DOUBLE AS logp_b,
           b.policy_updates - a.policy_updates AS lag
    FROM ranked a
    JOIN ranked b ON a.attempt = b.attempt AND a.step = b.step AND a.sequence_id = b.sequence_id
        AND (a.place < b.place OR (a.place = b.place AND (a.source < b.source OR (a.source = b.source AND a."update" < b."update"))))
    JOIN sequences q ON a.attempt = q.attempt AND a.step = q.step AND a.sequence_id = q.sequence_id
)
SELECT attempt, step, sequence_id, phase, position, coalesce(sampled, token_id IS NOT NULL) AS is_sampled, in_loss,
       source_a, update_a, source_b, update_b, logp_a, logp_b, logp_b - logp_a AS delta,
       coalesce(coalesce(sampled, token_id IS NOT NULL) AND isfinite(logp_a) AND isfinite(logp_b), false) AS comparable,
       lag
FROM unnested;
