"""Measurements, always as ratios to a floor taken in the same run: machines are noisy."""
