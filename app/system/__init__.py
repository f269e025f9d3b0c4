"""What the program stands on: the machine, its devices, folders, versions, the service manager."""
