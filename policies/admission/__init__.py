"""Built-in admission policies, one file each."""
