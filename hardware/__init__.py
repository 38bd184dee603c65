"""What machines are: accelerators, links, tiers, clusters, and the catalogue that reads them."""
