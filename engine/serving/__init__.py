"""The engine as a service: the threads around a core, and the models that come and go."""
