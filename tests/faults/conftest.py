"""Scripts, which the tests run and do not import."""

collect_ignore = ["disks.py", "nodes.py", "ranks.py", "small_world.py", "torture.py"]
