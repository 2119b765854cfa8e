"""Several processes on one port (`forebay serve --workers`).

`supervisor` starts them and looks after them, each in its `slot`; `panel` answers operators for all of them, from what
`channels` bring and `merge` makes one of. `needed` says what a configuration must have for it.
"""
