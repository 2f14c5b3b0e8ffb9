"""python -m mixmo"""

from mixmo.cli import command

command()
