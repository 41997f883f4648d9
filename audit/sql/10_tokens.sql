-- view: tokens
-- description: One row per response token, with the rollout's and the trainer's log-probability of it. The trainer's is the score of source `trainer` where there is one, otherwise the first `update` score. Filter by step: an unfiltered query holds about 15 bytes a token in memory.
-- column attempt: restart counter
-- column step: training step
-- column sequence_id: the sampled response
-- column group_id: GRPO group
-- column phase: train, eval, warmup or reward
-- column position (tokens): 0 at the first response token
-- column absolute_position (tokens): 0 at the prompt's first token
-- column token_id: the token (a keyed hash under --tokens hashed)
-- column is_sampled: the policy sampled this token (false for tool and environment tokens)
-- column in_loss: the token counted in the loss; null where unknown
-- column rollout_logp (nats): log-probability at sampling time; null where missing
-- column trainer_logp (nats): log-probability as the trainer computed it; null where missing
-- column trainer_source: trainer or update
-- column trainer_update (optimizer steps): optimizer steps between the sequence's first use and that score
-- column delta (nats): trainer_logp - rollout_logp
-- column comparable: is_sampled, and both log-probabilities are there and finite
-- column lag (optimizer steps): age of the rollout's weights relative to the trainer's; null where unknown
-- column rollout_entropy (nats): entropy at sampling time; null where not recorded
-- column trainer_entropy (nats): entropy in the trainer's forward; null where not recorded
-- column policy_version: label of the weights that sampled
-- column reward: the sequence's reward
-- column advantage: the sequence's advantage
-- column host: host that wrote the sequence
-- column rank: rank that wrote the sequence
CREATE OR REPLACE VIEW tokens AS
WITH choice AS (
    SELECT attempt, step, sequence_id,
           min({'place': CASE source WHEN 'trainer' THEN 0 ELSE 1 END, 'update': "update", 'source': source}) AS best
    FROM whole_scores
    WHERE source IN ('trainer', 'update')
    GROUP BY attempt, step, sequence_id
),
trainer AS (
    SELECT scores.attempt, scores.step, scores.sequence_id, scores.source, scores."update",
           scores.logprobs, scores.entropies, scores.policy_updates
    FROM whole_scores AS scores
    JOIN choice ON scores.attempt = choice.attempt AND scores.step = choice.step
        AND scores.sequence_id = choice.sequence_id
        AND scores.source = choice.best.source AND scores."update" IS NOT DISTINCT FROM choice.best."update"
    WHERE scores.source IN ('trainer', 'update')
),
rollout AS (
    SELECT attempt, step, sequence_id, logprobs, entropies, policy_updates, token_updates, policy_version
    FROM whole_scores
    WHERE source = 'rollout'
),
unnested AS (
    SELECT q.attempt, q.step, q.sequence_id, q.group_id, q.phase,
           unnest(range(greatest(len(q.response_tokens), coalesce(len(r.logprobs), 0), coalesce(len(t.logprobs), 0)))) AS position,
           len(q.prompt_tokens) AS prompt_length,
           unnest(q.response_tokens) AS token_id,
           unnest(q.sampled_mask) AS sampled,
           unnest(q.loss_mask) AS in_loss,
           unnest(r.logprobs)::DOUBLE AS rollout_logp,
           unnest(t.logprobs)::DOUBLE AS trainer_logp,
           t.source AS trainer_source,
           t."update" AS trainer_update,
           t.policy_updates AS trainer_updates, r.policy_updates AS rollout_updates, unnest(r.token_updates) AS token_updates,
           unnest(r.entropies) AS rollout_entropy,
           unnest(t.entropies) AS trainer_entropy,
           r.policy_version, q.reward, q.advantage, q.host, q.rank
    FROM sequences q
    LEFT JOIN rollout r ON q.attempt = r.attempt AND q.step = r.step AND q.sequence_id = r.sequence_id
    LEFT JOIN trainer t ON q.attempt = t.attempt AND q.step = t.step AND q.sequence_id = t.sequence_id
)
SELECT attempt, step, sequence_id, group_id, phase, position, prompt_length + position AS absolute_position, token_id,
       coalesce(sampled, token_id IS NOT NULL) AS is_sampled, in_loss,
       rollout_logp, trainer_logp, trainer_source, trainer_update,
       trainer_logp - rollout_logp AS delta,
       coalesce(coalesce(sampled, token_id IS NOT NULL) AND isfinite(rollout_logp) AND isfinite(trainer_logp), false) AS comparable,
       trainer_updates - coalesce(token_updates, rollout_updates) AS lag, rollout_entropy, trainer_entropy, policy_version, reward, advantage, host, rank
FROM unnested;
