"""Live runs: a schedule sent in real time to processes of the installed `forebay` command, on this machine."""
