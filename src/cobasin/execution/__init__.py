"""How work is run: jobs in threads, parts that share a folder, a cluster."""
