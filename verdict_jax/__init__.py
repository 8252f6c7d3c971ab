"""VERDICT: step-wise verification of multimodal reasoning by a judge coordination game."""
