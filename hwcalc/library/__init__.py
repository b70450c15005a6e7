"""What a notebook uses: plans, recommendations, explanations and comparisons as typed values."""
