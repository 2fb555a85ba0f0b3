"""The roof: the `aie` command, one file per command or group of commands.

    main                                 the application; where errors become exit codes
    settings, assemble, local            defaults, file, variables and flags into engines, guards, a server
    console, version                     what a person sees
    serve, generate, chat, bench/        use and measure a model
    models, load, memdebug, doctor, …    look into things

It may import every stage, by its public names; no stage imports it. Modules are imported inside the command that needs
them, so that `aie --help` is instant.
"""

__all__: list[str] = []
