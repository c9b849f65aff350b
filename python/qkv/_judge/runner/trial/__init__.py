"""The calls before the tool's probes exist: what code takes, and what it does beside the formula."""
