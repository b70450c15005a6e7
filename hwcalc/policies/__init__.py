"""Cache policies: which tokens each keeps, after the prefill and after every decode step, and what keeping them costs."""
