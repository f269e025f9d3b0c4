"""Views of the engine: the panels of the dashboard, and their parts.

Lists share one cursor and one set of keys (`list_cursor`, `scroll_panel`). The KV map joins
neighbouring blocks into the cells that it has room for (`kv_cells`), so that a single held block
shows in a pool of any size.
"""
