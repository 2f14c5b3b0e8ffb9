"""python -m mixmo"""

from mixmo.cli.app import command

if __name__ == "__main__":  # processes that are spawned import this file too
    command()
