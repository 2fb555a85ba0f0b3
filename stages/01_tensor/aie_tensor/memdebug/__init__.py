"""Tools that look into memory: snapshots, growth, exports, replay, who holds what. Used by `aie memdebug`.

Nothing here runs while a server serves, except to take a snapshot when somebody asks for one.
"""
