"""One module for each rollout engine whose calls rlaudit can read."""
