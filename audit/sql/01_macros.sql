-- macros: k1, k2, k3, importance_ratio, ratio_beyond
-- description: The field's per-token estimators, of delta = trainer log-probability - rollout log-probability (nats).
-- macro k1(delta): -delta; its mean over tokens sampled by the rollout policy estimates KL(rollout || trainer), may be negative
-- macro k2(delta): delta^2 / 2
-- macro k3(delta): exp(delta) - 1 - delta; the non-negative estimator of the same KL
-- macro importance_ratio(delta): exp(delta)
-- macro ratio_beyond(delta, bound): true where the probability ratio is beyond the bound either way
CREATE OR REPLACE MACRO k1(delta) AS -(delta::DOUBLE);
CREATE OR REPLACE MACRO k2(delta) AS 0.5::DOUBLE * delta * delta;
CREATE OR REPLACE MACRO k3(delta) AS exp(delta) - 1.0::DOUBLE - delta;
CREATE OR REPLACE MACRO importance_ratio(delta) AS exp(delta);
CREATE OR REPLACE MACRO ratio_beyond(delta, bound) AS abs(delta) > ln(bound);
