"""Captures of running models, and the file from which the explorer's page is made, need NumPy only; what watches PyTorch's models, cuts their heads
and serves the page needs PyTorch: collector.py, outputs.py, writes.py, cuts.py, behaviour.py, explored.py.
"""
