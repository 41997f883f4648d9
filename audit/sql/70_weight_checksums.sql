-- view: weight_checksums
-- description: One row per weight synchronisation or check, tensor and copy of it: the checksums of all ranks' shards added up modulo 2^64. Equal bits have equal checksums, however they were sharded, where dtype and stride are equal too.
-- column attempt: restart counter
-- column fact: sent, received, resident or saved
-- column policy_version: label of the weights
-- column policy_syncs (synchronisations): the weights as a count of observed weight synchronisations
-- column engine_id: the engine concerned; null on the trainer's side
-- column tensor: parameter name
-- column replica: which copy of the tensor, where ranks hold several
-- column dtype: dtype of the bits
-- column stride: every how manieth element counts
-- column checksum: the sum in hexadecimal; null where a part is missing or there twice
-- column elements (elements): elements that were summed
-- column elements_of (elements): elements that the whole tensor's checksum covers
-- column parts: how many rows of weights were added up
CREATE OR REPLACE VIEW weight_checksums AS
SELECT attempt, fact, policy_version, policy_syncs, engine_id, tensor, replica, dtype, stride,
       CASE WHEN sum(elements) = max(elements_of)
            -- Sums of 64-bit numbers need more bits: up to 2^63 parts fit into 128.
            THEN lpad(lower(to_hex((sum(('0x' || checksum)::UBIGINT::HUGEINT) % 18446744073709551616)::UBIGINT)), 16, '0') END AS checksum,
       sum(elements)::BIGINT AS elements,
       max(elements_of) AS elements_of,
       count(*) AS parts
FROM weights
WHERE checksum IS NOT NULL AND tensor IS NOT NULL AND elements IS NOT NULL
GROUP BY ALL;
