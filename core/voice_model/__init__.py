"""A voice model in memory: base, new rows, adapters and front-end as one."""
