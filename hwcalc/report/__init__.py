"""Reports: one plan as a table, Markdown, CSV or JSON. Nothing is computed here but sums, and nothing is printed."""
