"""The program's environment: the machine, its devices, folders, versions, the service manager."""
