-- view: steps
-- description: The core metrics per training step, phase and lag, over comparable tokens, under the names of the metric catalogue. Reads every token: filter by step.
-- column attempt: restart counter
-- column step: training step
-- column phase: train, eval, warmup or reward
-- column lag (optimizer steps): age of the rollout's weights relative to the trainer's; null where unknown
-- column tokens (tokens): comparable tokens
-- column pearson_prob: Pearson correlation of the two probabilities
-- column pearson_logp: Pearson correlation of the two log-probabilities
-- column prob_diff_mean: mean |p_trainer - p_rollout|
-- column prob_diff_max: largest |p_trainer - p_rollout|
-- column logp_diff_mean (nats): mean |delta|
-- column logp_diff_std (nats): sample standard deviation of |delta|
-- column logp_diff_p50 (nats): median of |delta|
-- column logp_diff_p99 (nats): 99th percentile of |delta|
-- column logp_diff_max (nats): largest |delta|
-- column k1 (nats): mean of k1(delta)
-- column k3 (nats): mean of k3(delta)
-- column ratio_mean: mean importance ratio exp(delta)
-- column ratio_gt2: share of tokens whose probability ratio is beyond 2 either way
CREATE OR REPLACE VIEW steps AS
SELECT attempt, step, phase, lag, count(*) AS tokens,
       corr(exp(rollout_logp), exp(trainer_logp)) AS pearson_prob,
       corr(rollout_logp, trainer_logp) AS pearson_logp,
       avg(abs(exp(trainer_logp) - exp(rollout_logp))) AS prob_diff_mean,
       max(abs(exp(trainer_logp) - exp(rollout_logp))) AS prob_diff_max,
       avg(abs(delta)) AS logp_diff_mean,
       stddev_samp(abs(delta)) AS logp_diff_std,
       quantile_cont(abs(delta), 0.5) AS logp_diff_p50,
       quantile_cont(abs(delta), 0.99) AS logp_diff_p99,
       max(abs(delta)) AS logp_diff_max,
       avg(k1(delta)) AS k1,
       avg(k3(delta)) AS k3,
       avg(importance_ratio(delta)) AS ratio_mean,
       avg(ratio_beyond(delta, 2)::INT) AS ratio_gt2
FROM tokens
WHERE comparable
GROUP BY attempt, step, phase, lag;
