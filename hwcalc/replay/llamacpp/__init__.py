"""llama-server's slots: ``scheduler`` is the loop over slots, its queue and its prompt cache; ``settings`` makes it from a deployment."""
