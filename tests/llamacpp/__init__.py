"""llama.cpp's own library, to compare with."""
