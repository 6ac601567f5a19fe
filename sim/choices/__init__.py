"""What is asked: words turned into checked values, without simulating anything."""
