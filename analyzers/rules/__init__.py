"""One small module for each rule: what it needs, what it measures, and what it must not be confused with."""
