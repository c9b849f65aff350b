"""Captures of running models, and the file from which the explorer's page is made. Needs NumPy only, but for collector.py, which watches
PyTorch's models.
"""
