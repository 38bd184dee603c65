"""Starts torchtitan; its configuration is named on the command line (see launch.sh)."""

from torchtitan.train import main

if __name__ == "__main__":
    main()
