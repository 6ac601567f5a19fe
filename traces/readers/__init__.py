"""Readers of trace formats, one file each; the entry-point group `expert_residency.readers` finds them."""
