"""A model in memory: base, new rows, adapters and front-end; how it is loaded, extended and cast."""
