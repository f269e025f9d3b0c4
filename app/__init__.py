"""The program: commands, settings, store, screens, gateways."""
