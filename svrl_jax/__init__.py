"""SVRL in functional JAX: a multimodal search agent trained to verify its own evidence."""
