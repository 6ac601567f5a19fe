"""Which split: placing a model on one to four cards and host memory."""
