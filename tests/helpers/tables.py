"""Tables as commands print them, read again."""


def rows_of(out: str) -> dict[str, list[str]]:
    """Return the cells of every line of a table by its first one."""
    lines = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("|")]
    return {first.strip(): others for first, *others in lines}
