"""`python -m octavo_cli` is `octavo`."""

from octavo_cli.main import main

if __name__ == "__main__":
    main()
