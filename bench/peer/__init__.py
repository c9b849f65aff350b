"""What bench/peers.py is made of: the cases, one module for each peer, the worker that runs one, the report and the plot."""
