"""Soft Sequence Policy Optimization and its family, taught in runnable lines."""
