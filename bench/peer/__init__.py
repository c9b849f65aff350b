"""The parts of bench/peers.py: the cases, one module per peer, the worker process that runs a peer, the report."""
