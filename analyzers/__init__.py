"""What is computed from a run. Every analyzer is a function of a ``Run`` that returns a frozen result."""
