"""The functions of the library: plans, recommendations, explanations and comparisons as typed values."""
