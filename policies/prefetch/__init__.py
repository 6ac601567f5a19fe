"""Built-in prefetch policies, one file each."""
