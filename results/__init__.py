"""What a search found: the front, the choice out of it, tables, pictures and manifests."""
