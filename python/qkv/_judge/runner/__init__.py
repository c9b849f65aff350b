"""The runner of `qkv judge`: finds a person's attention, fills it with parameters, calls it on probes and writes the answers.

Python >= 3.9 and NumPy; PyTorch only where the person's file uses it. Runs as part of the package and, as a folder, on its own
(`python3 -B FOLDER GIVEN DIR`): nothing here imports qkv. Not: whether an answer is right (the tool's verdict says that).
"""
