"""One module per group of subcommands: they parse arguments and print; the work is done by the modules beside this folder."""
