"""Programs that build what Lisan ships and check what it claims."""
