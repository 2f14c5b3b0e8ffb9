"""The command `mixmo`: one file per command, each with one function `main(arguments)`."""
