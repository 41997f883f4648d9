-- view: routing_pairs
-- description: One row per token, layer and pair of policy evaluations that routed it (rollout before trainer before update): how many experts both chose. Only positions and layers that both cover; rows that lie in parts are compared part by part. Large: filter by step.
-- column attempt: restart counter
-- column step: training step
-- column sequence_id: the sampled response
-- column source_a: the first evaluation
-- column update_a (optimizer steps): its optimizer steps since the sequence's first use
-- column source_b: the second evaluation
-- column update_b (optimizer steps): its optimizer steps since the sequence's first use
-- column lag (optimizer steps): optimizer steps between the two evaluations' weights; null where unknown
-- column absolute_position (tokens): 0 at the prompt's first token
-- column layer: absolute decoder layer
-- column top_k (experts): experts chosen per token
-- column overlap (experts): experts that both chose, as sets
-- column differs: the two sets are not the same
CREATE OR REPLACE VIEW routing_pairs AS
WITH ranked AS (
    SELECT *, CASE source WHEN 'rollout' THEN 0 WHEN 'trainer' THEN 1 WHEN 'update' THEN 2 WHEN 'reference' THEN 3 ELSE 4 END AS place
    FROM routing
    WHERE experts IS NOT NULL AND sequence_id IS NOT NULL
),
joined AS (
    SELECT a.attempt, a.step, a.sequence_id, a.source AS source_a, a."update" AS update_a,
           b.source AS source_b, b."update" AS update_b, b.policy_updates - a.policy_updates AS lag,
           list_filter(a.layer_ids, lambda layer: list_contains(b.layer_ids, layer)) AS layer_ids,
           a.top_k, greatest(a.first_position, b.first_position) AS first_position,
           routing_overlap(a.experts, b.experts, a.first_position, b.first_position, a.layer_ids, b.layer_ids, a.top_k, a.num_experts) AS common
    FROM ranked a
    JOIN ranked b ON a.attempt = b.attempt AND a.step = b.step AND a.sequence_id = b.sequence_id
        AND (a.place < b.place OR (a.place = b.place AND (a.source < b.source OR (a.source = b.source AND a."update" < b."update"))))
    WHERE a.top_k = b.top_k AND a.num_experts = b.num_experts
),
unnested AS (
    SELECT * EXCLUDE (common), unnest(common) AS overlap, unnest(range(len(common))) AS cell
    FROM joined
    WHERE len(layer_ids) > 0
)
SELECT attempt, step, sequence_id, source_a, update_a, source_b, update_b, lag,
       first_position + cell // len(layer_ids) AS absolute_position,
       layer_ids[cell % len(layer_ids) + 1] AS layer,
       top_k, overlap, overlap < top_k AS differs
FROM unnested;
