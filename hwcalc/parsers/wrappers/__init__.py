"""Documents of several parts: which towers stand beside the language model, and what joins them to it."""
