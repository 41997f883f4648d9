-- view: whole_scores
-- description: As `scores`, one row per sequence and policy evaluation: parts that context-parallel ranks wrote are put together. An evaluation of which a part is missing is left out; `scores` has its parts.
-- column attempt: restart counter
-- column step: training step
-- column sequence_id: the sampled response
-- column source: which policy evaluation
-- column update (optimizer steps): optimizer steps since the sequence's first use
-- column logprobs (nats): log-probability of each response token
-- column entropies (nats): entropy at each response token; null where a part has none
-- column policy_version: label of the weights
-- column policy_updates (optimizer steps): the weights as a count of optimizer steps
-- column token_updates (optimizer steps): policy_updates of each response token, where the parts differ in it; null otherwise
-- column parts: how many rows it was put together from; null or 1 for a row that was whole
CREATE OR REPLACE VIEW whole_scores AS
SELECT attempt, step, sequence_id, source, "update", logprobs, entropies, policy_version, policy_updates, NULL::BIGINT[] AS token_updates, parts
FROM scores
WHERE coalesce(parts, 1) = 1
UNION ALL
SELECT attempt, step, sequence_id, source, "update",
       flatten(list(logprobs ORDER BY first_position)) AS logprobs,
       CASE WHEN count(entropies) = count(*) THEN flatten(list(entropies ORDER BY first_position)) END AS entropies,
       any_value(policy_version) AS policy_version,
       CASE WHEN count(DISTINCT policy_updates) = 1 THEN any_value(policy_updates) END AS policy_updates,
       CASE WHEN count(DISTINCT policy_updates) > 1
            THEN flatten(list(list_transform(logprobs, lambda unused: policy_updates) ORDER BY first_position)) END AS token_updates,
       max(parts) AS parts
FROM scores
WHERE parts > 1
GROUP BY attempt, step, sequence_id, source, "update"
HAVING count(DISTINCT first_position) = max(parts) AND count(*) = max(parts)
   AND sum(len(logprobs)) = max(first_position + len(logprobs)) AND min(first_position) = 0;
