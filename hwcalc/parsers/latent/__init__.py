"""DeepSeek-V2 and the models after it: latent attention, with or without an indexer, and experts."""
