"""How weights and caches are stored: quantisation schemes, names of formats, and the choice for a plan.

``planned`` chooses the quantisation of a plan. ``scheme`` says which format it gives to each weight, and ``config`` reads one from the
``quantization_config`` of a model. GGUF files have rules of their own: ``ggml`` (types, names of mixes and tensors), ``converted`` (the
tensors of the file that the converter makes), ``mixes`` (which type each gets in a mix) and ``gguf`` (the weights of a model by all three).
``patterns`` searches for regular expressions from users in bounded time.
"""
