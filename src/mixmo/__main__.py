"""python -m mixmo"""

from mixmo.cli.app import command

command()
