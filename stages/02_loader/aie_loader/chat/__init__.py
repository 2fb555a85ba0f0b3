"""Messages into a prompt, by the model's own template: a program from a stranger, which runs in a sandbox with limits.

template.py            the interface
files.py, messages.py  where models keep templates; what a message may hold
sandbox.py             what a template may touch; meter.py: how long and how large; filters.py: what it may call
"""
