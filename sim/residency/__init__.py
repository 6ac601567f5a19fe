"""Which experts are resident: the pool of slots, its quotas, and what is known of the future."""
