"""Laws and worked examples of the layer kinds."""
