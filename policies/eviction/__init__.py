"""Built-in eviction policies, one file each."""
