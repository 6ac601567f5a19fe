"""A stranger's policies, one of each kind."""
