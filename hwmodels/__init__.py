"""What machines can do: profiles, units, costs, VRAM arithmetic, published runs."""
