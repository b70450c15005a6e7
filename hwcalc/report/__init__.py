"""Reports: results as text. This room computes nothing but sums, and prints nothing."""
