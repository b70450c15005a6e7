"""How weights and caches are stored: quantisation schemes, names of formats, and the choice for a plan."""
