"""llama.cpp, and Ollama, which runs it."""
