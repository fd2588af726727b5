"""The page: one file per tab, each a pure reader of job directories. Never loads torch."""
