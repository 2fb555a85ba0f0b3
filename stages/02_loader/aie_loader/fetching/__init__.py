"""Models from elsewhere into the cache: verified, and shown under their names only when complete.

pulling.py, known_models.py, pip_command.py   the models that come through the Python package index
hub.py, hub_names.py, hub_files.py, hub_cache.py   models of a hub, by org/name[@revision]
"""
