"""One module for each family of models whose routers rlaudit can read."""
